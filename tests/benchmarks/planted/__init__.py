"""Real training loops with a planted fault each, and healthy ones.

>>> loops = make_planted()
>>> sorted({planted.cause for planted in loops if planted.cause})
['compute', 'input', 'memory', 'optimizer', 'overhead', 'python', 'threads']

They are sized for two cores: a step takes some milliseconds to some tens of them.
`repaired` is the same training as a good engineer would have written it.
"""

from .compute import COMPUTE, HEALTHY, MEMORY
from .input import INPUT
from .optimizers import OPTIMIZER
from .overhead import OVERHEAD, THREADS
from .python_code import PYTHON
from .settings import list_healthy, list_slow


def make_planted():
    """Return all planted loops by cause, the healthy ones last."""
    slow = [*INPUT, *PYTHON, *OVERHEAD, *OPTIMIZER, *THREADS]
    return [*slow, *MEMORY, *COMPUTE, *HEALTHY]


def make_settings():
    """Return loops that a setting makes slow here, and healthy ones beside them."""
    return [*list_slow(), *list_healthy()]
