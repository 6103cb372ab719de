"""Drives one experiment by the protocol; with machine's probes, all that reads clocks.

`experiment` says what an experiment is, `origin` what it is made of, `snapshot` and
`shared` what must not leak out of it; `stepping` times the steps of a generator in its
`surroundings`, `run` is its life from start to close, kept in a `log`, and `measuring`
makes a Trial of it.
"""

from kit.clock.experiment import ExperimentError
from kit.clock.measuring import measure

__all__ = ["ExperimentError", "measure"]
