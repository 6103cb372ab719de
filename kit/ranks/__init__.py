"""Several processes from a notebook: `start_ranks`.

At the bottom are the `engines`, processes that ipyparallel starts, restarts and
watches. A `call` runs one function on some of them, follows it and tells of failures;
`rank` is its other end, in each process. `ranks` is what a reader holds, with the runs
of an experiment that is measured there: each start, stretch and close is one call.
"""

from kit.errors import RankError
from kit.ranks.ranks import Ranks, start_ranks

__all__ = ["RankError", "Ranks", "start_ranks"]
