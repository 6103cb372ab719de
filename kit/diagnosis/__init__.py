"""Where a step's time goes, what removing each cost would save, and what to do.

From the bottom up: `once` drives a run that is started once, `wrapping` lets it call
something else, `tracing` records it, `profiling` parts its steps into phases. `batches`
keeps what loaders give, `modules` finds optimizers and modules. `switches` leave causes
out of that run, `repairing` has those that apply a repair, `repairs` the table of when
each is tried. `steps` watches how long its steps take, `trials` makes blocks with and
without, `saving` is what they show. `causes` is the table of what can be said,
`verdict` chooses, `report` tells it. `diagnosing` holds them together; `timeline`
draws.
"""

from kit.diagnosis.diagnosing import diagnose
from kit.diagnosis.report import Diagnosis
from kit.diagnosis.timeline import timeline

__all__ = ["Diagnosis", "diagnose", "timeline"]
