"""Which kernels oneDNN ran for a function, and why those, in words.

oneDNN is the library that PyTorch asks, on a CPU, for convolutions, and for some matrix
products and recurrent layers. `log` reads what it says, `names` knows what its names
mean, `explanation` adds what PyTorch computed without it.
"""

from kit.tools.onednn.explanation import Explanation, Line, explain_kernels
from kit.tools.onednn.log import Kernel, parse_log, record_kernels
from kit.tools.onednn.names import explain_name

__all__ = [
    "Explanation",
    "Kernel",
    "Line",
    "explain_kernels",
    "explain_name",
    "parse_log",
    "record_kernels",
]
