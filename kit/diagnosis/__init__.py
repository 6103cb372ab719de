"""Where a step's time goes, what removing each cost would save, and what to do.

From the bottom up: `once` drives a run that is started once, `wrapping` lets it call
something else, `tracing` records it, `profiling` parts its steps into phases. `batches`
keeps what loaders give, `modules` finds optimizers and modules. `switches` leave causes
out of that run, `repairing` has those that apply a repair, `repairs` is the table of
when each is tried, `named` the table of what is not. `trials` makes blocks with and
without, `saving` is what they show. `causes` has the words, `verdict` chooses, `advice`
is the table of what to do, `report` tells it. `diagnosing` holds them together;
`timeline` draws; `script` makes a script something that can be driven.
"""

from kit.diagnosis.diagnosing import diagnose
from kit.diagnosis.report import Diagnosis
from kit.diagnosis.timeline import timeline

__all__ = ["Diagnosis", "diagnose", "timeline"]
