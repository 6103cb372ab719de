"""Alternates two variants, and says with an interval how they compare.

`ratio` computes from raw blocks, `alternation` measures by turns, `comparing` is the
door.
"""

from kit.comparison.comparing import Comparison, compare
from kit.comparison.ratio import Ratio, compare_trials

__all__ = ["Comparison", "Ratio", "compare", "compare_trials"]
