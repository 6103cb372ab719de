"""What autocast does to a function, on each kind of device: the table of chapter 10.

Each function is called under autocast twice, with a matrix in float32 and with one in
bfloat16. The inputs are *fake tensors*, which have a shape, a format and a device, but
no numbers. PyTorch chooses formats for them as it does for real ones, so a GPU need not
be there.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import torch
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

FORMATS = (torch.float32, torch.bfloat16)
DEVICES = {"on a processor": "cpu", "on an NVIDIA GPU": "cuda"}


def attend(x: torch.Tensor) -> torch.Tensor:
    """Attend with the same matrix as queries, keys and values."""
    x = x[None]
    return F.scaled_dot_product_attention(x, x, x)


def embed(x: torch.Tensor) -> torch.Tensor:
    """Take two rows of the matrix."""
    return F.embedding(torch.zeros(2, dtype=torch.int64, device=x.device), x)


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "linear, x @ x": lambda x: x @ x,
    "conv2d": lambda x: F.conv2d(x[None, None], x[None, None]),
    "attention": attend,
    "embedding": embed,
    "relu": F.relu,
    "gelu": F.gelu,
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "softmax": lambda x: x.softmax(1),
    "exp": torch.exp,
    "sum": torch.sum,
    "mse_loss": lambda x: F.mse_loss(x, x),
    "cross_entropy": lambda x: F.cross_entropy(x, x),
    "16 bits + float32": lambda x: x + x.float(),
}


def tabulate_formats() -> pd.DataFrame:
    """Return the bits of each function's result, a column for each kind of device."""
    rows = {}
    for name, function in FUNCTIONS.items():
        rows[name] = [find_bits(function, device) for device in DEVICES.values()]
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(DEVICES))


def find_bits(function: Callable[[torch.Tensor], torch.Tensor], device: str) -> str:
    """Return "16", "32", or "as it comes", where the result's format is the input's."""
    was_enabled = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device)
    # torch.autocast() refuses a GPU that is not there, so set what it would set.
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, torch.bfloat16)
    try:
        with FakeTensorMode():
            inputs = [torch.ones(8, 8, device=device, dtype=dtype) for dtype in FORMATS]
            bits = [8 * function(x).dtype.itemsize for x in inputs]
    finally:
        torch.set_autocast_enabled(device, was_enabled)
        torch.set_autocast_dtype(device, dtype)
    return str(bits[0]) if bits[0] == bits[1] else "as it comes"
