"""Measure your PyTorch training on the machine in front of you, with honest intervals.

An experiment is a generator: each `yield n` says "one step is done, n items handled".

>>> import kit
>>> def count(*, upto=1000):
...     while True:
...         yield sum(range(upto)) and 1
>>> kit.compare(count, upto=[1000, 100_000], seconds=2.0).ratio.value < 0.5
True
"""

from __future__ import annotations

from importlib import import_module
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

__all__ = [
    "check",
    "claim",
    "compare",
    "costs",
    "data",
    "diagnose",
    "explore",
    "guess",
    "load",
    "measure",
    "recorded",
    "save",
    "start_ranks",
    "this_machine",
    "timeline",
    "tuning",
]

#: Where the names above come from, if they are no rooms themselves.
_ROOMS = {
    "measure": "measurement",
    "compare": "measurement",
    "diagnose": "diagnosis",
    "timeline": "diagnosis",
    "this_machine": "machine",
    "explore": "panel",
    "start_ranks": "ranks",
    "load": "recording",
    "recorded": "recording",
    "save": "recording",
    "check": "teaching",
    "claim": "teaching",
    "guess": "teaching",
}


def __getattr__(name: str) -> Any:
    """Import a room when it is first asked for, so that `import kit` is fast."""
    if name in _ROOMS:
        value = getattr(import_module(f"kit.{_ROOMS[name]}"), name)
    elif name.startswith("_"):
        raise AttributeError(f"module 'kit' has no attribute {name!r}")
    else:
        value = _import_room(name)
    globals()[name] = value
    return value


def _import_room(name: str) -> Any:
    try:
        return import_module(f"kit.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"kit.{name}":
            raise
        message = f"module 'kit' has no attribute {name!r}"
        raise AttributeError(message) from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
