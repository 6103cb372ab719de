"""Finders: the settings that suit this machine, predicted first and then verified.

`loader` is the door, `search` asks the questions in turn; `loop` is the training loop
that it measures, `probes` what it finds out, `prediction` what follows from that,
`result` the answer and `reasons` its words. `checks` refuses what cannot be tuned,
`faults` words what goes wrong on the way.
"""

from kit.tuning.loader import tune_loader
from kit.tuning.result import LoaderTuning

__all__ = ["LoaderTuning", "tune_loader"]
