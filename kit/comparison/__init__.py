"""Alternates two variants, and says with an interval how they compare.

`ratio` computes from raw blocks, `alternation` measures by turns, `budget` decides how
often, `comparing` is the door.
"""

from kit.comparison.comparing import compare
from kit.comparison.ratio import Ratio, compare_trials
from kit.comparison.result import Comparison

__all__ = ["Comparison", "Ratio", "compare", "compare_trials"]
