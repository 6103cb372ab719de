"""Finders: the settings that suit this machine, predicted first and then verified.

`find_batch_size` lives in `batch`. Of `tune_loader`, `loader` is the door, `search`
asks the questions in turn; `loop` is the training loop that it measures, `probes` what
it finds out, `prediction` what follows from that, `result` the answer and `reasons` its
words. `checks` refuses what cannot be tuned, `faults` words what goes wrong on the way.
"""

from kit.tuning.batch.finder import find_batch_size
from kit.tuning.batch.result import BatchSizeTuning
from kit.tuning.loader import tune_loader
from kit.tuning.result import LoaderTuning

__all__ = ["BatchSizeTuning", "LoaderTuning", "find_batch_size", "tune_loader"]
