"""Measure your PyTorch training on the machine in front of you, with honest intervals.

An experiment is a generator: each `yield n` says "one step is done, n items handled".

>>> import kit
>>> def count(*, upto=1000):
...     while True:
...         yield sum(range(upto)) and 1
>>> kit.compare(count, upto=[1000, 100_000], seconds=2.0).ratio.value < 0.5
True
"""

from kit import costs, data, tools, tuning
from kit.clock import measure
from kit.comparison import compare
from kit.diagnosis import diagnose, timeline
from kit.machine import this_machine
from kit.panel import explore
from kit.ranks import start_ranks
from kit.recording import load, recorded, save
from kit.teaching import claim, guess

__all__ = [
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
    "tools",
    "tuning",
]
