"""Several processes from a notebook: `start_ranks`.

`ranks` is what a reader holds, a view of a `team`: the `engines`, which ipyparallel
keeps alive (each a `process` that ends with the kernel), and a store where they meet. A
`call` runs one function on them; `rank` is its other end, in each process, with the
process groups (`worlds`). How it ended on each rank (`outcomes`) is told as one error
(`failures`).

What `measure` and the others do with `on=ranks` is in `lives`: those of an experiment
which this process drives, command by command, in a `session` with the `player` on each
rank. What goes to the ranks is packed (`packing`).
"""

from kit.ranks.failures import RankError
from kit.ranks.ranks import Ranks, start_ranks

__all__ = ["RankError", "Ranks", "start_ranks"]
