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
    from kit import costs, data, tuning
    from kit.diagnosis import diagnose, timeline
    from kit.machine import this_machine
    from kit.measurement import compare, measure
    from kit.panel import explore
    from kit.ranks import start_ranks
    from kit.recording import load, recorded, save
    from kit.teaching import check, claim, guess

    #: Whether KIT_QUICK=1 asks for quick mode, in which notebooks are tested.
    quick: bool

__all__ = ["check", "claim", "compare", "costs", "data", "diagnose", "explore"]
__all__ += ["guess", "load", "measure", "quick", "recorded", "save", "start_ranks"]
__all__ += ["this_machine", "timeline", "tuning"]

#: What is offered here is built in these rooms; `costs`, `data`, `tuning` are rooms.
_OFFERED = {
    "measurement": ("compare", "measure"),
    "diagnosis": ("diagnose", "timeline"),
    "machine": ("this_machine",),
    "panel": ("explore",),
    "ranks": ("start_ranks",),
    "recording": ("load", "recorded", "save"),
    "teaching": ("check", "claim", "guess"),
}


def __getattr__(name: str) -> Any:
    """Import a room when it is first asked for, so that `import kit` is fast."""
    if name == "quick":
        return import_module("kit.experiment").is_quick()
    for room, names in _OFFERED.items():
        if name in names:
            return getattr(import_module(f"kit.{room}"), name)
    if find_spec(f"kit.{name}"):
        return import_module(f"kit.{name}")
    raise AttributeError(f"module 'kit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
