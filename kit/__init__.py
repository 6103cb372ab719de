"""Measure your PyTorch training on the machine in front of you, with honest intervals.

An experiment is a generator: each `yield n` says "one step is done, n items handled".

>>> import kit
>>> def count(*, upto=1000):
...     while True:
...         yield sum(range(upto)) and 1
>>> kit.compare(count, upto=[1000, 100_000], seconds=2.0).ratio.value < 0.5
True
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kit import data, figures, tuning
    from kit.diagnosis import diagnose, timeline
    from kit.errors import DataError, ExperimentError, RankError, RecordingError
    from kit.machine import device, this_machine
    from kit.measuring.compare import compare, measure
    from kit.panel import explore
    from kit.ranks import start_ranks
    from kit.saving import load, save
    from kit.teaching import check, claim, guess

    #: Whether KIT_QUICK=1 asks for quick mode, in which notebooks are tested.
    quick: bool

__all__ = ["DataError", "ExperimentError", "RankError", "RecordingError"]
__all__ += ["check", "claim", "compare", "data", "device", "diagnose", "explore"]
__all__ += ["figures", "guess", "load", "measure", "quick", "save"]
__all__ += ["start_ranks", "this_machine", "timeline", "tuning"]

#: In which module each name is built; other public names are modules.
_MODULES = {
    "DataError": "errors",
    "ExperimentError": "errors",
    "RankError": "errors",
    "RecordingError": "errors",
    "check": "teaching",
    "claim": "teaching",
    "compare": "measuring.compare",
    "device": "machine",
    "diagnose": "diagnosis",
    "explore": "panel",
    "guess": "teaching",
    "load": "saving",
    "measure": "measuring.compare",
    "save": "saving",
    "start_ranks": "ranks",
    "this_machine": "machine",
    "timeline": "diagnosis",
}


def __getattr__(name: str) -> Any:
    """Import a module when it is first asked for, so that `import kit` is fast."""
    if name == "quick":
        return import_module("kit.mode").is_quick()
    if name in _MODULES:
        return getattr(import_module(f"kit.{_MODULES[name]}"), name)
    if find_spec(f"kit.{name}"):
        return import_module(f"kit.{name}")
    raise AttributeError(f"module 'kit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
