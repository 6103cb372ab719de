"""oneDNN's own log: the kernels that it ran for a function.

It writes a line for each to C's standard output:
https://uxlfoundation.github.io/oneDNN/dev_guide_verbose.html
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kit.experiment import ExperimentError
from kit.tools.onednn.names import TYPES, explain_name

_LOG = ("onednn_verbose,", "dnnl_verbose,")
_TYPE = re.compile(r"[_:](f\w+|tf32|bf16|s\d+|u\d+|undef|boolean):")
_ONE_AT_A_TIME = threading.RLock()


@dataclass(frozen=True)
class Kernel:
    """One kernel that oneDNN ran.

    `types` are those of its tensors, by PyTorch's names, `shape` is its problem in
    oneDNN's letters: mb is the batch, ic and oc are channels in and out.

    >>> line = "onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_amx"
    >>> line += ",undef,src:bf16::blocked:ab::f0 dst:bf16::blocked:ab::f0,,,64x64,0.5"
    >>> (kernel,) = parse_log(line)
    >>> kernel.types, kernel.seconds
    ('bfloat16', 0.0005)
    """

    primitive: str
    implementation: str
    types: str
    shape: str
    seconds: float

    @property
    def reason(self) -> str:
        """What the implementation's name tells, in words."""
        return explain_name(self.implementation, self.primitive)


def record_kernels(function: Callable[[], Any]) -> list[Kernel]:
    """Run a function once, and return the kernels that oneDNN ran for it, in order.

    For that time, C's standard output goes to a file; what is not oneDNN's is written
    out afterwards. Raises ExperimentError where PyTorch is built without oneDNN, and
    what the function raises.

    >>> import torch
    >>> record_kernels(lambda: torch.ones(3) + 1)
    []
    """
    import torch

    refuse_without("record_kernels")
    mkldnn = torch.backends.mkldnn
    with (
        _ONE_AT_A_TIME,
        _catching_output() as caught,
        mkldnn.verbose(mkldnn.VERBOSE_ON),
    ):
        function()
    return parse_log(caught.log)


def parse_log(text: str) -> list[Kernel]:
    """Return the kernels that a log of oneDNN's tells of.

    Lines that tell of anything else, or that another program's output has torn, are
    left out.
    """
    found = []
    for line in text.splitlines():
        fields = line.strip().split(",")
        if not line.startswith(_LOG) or "exec" not in fields:
            continue
        place = fields.index("exec")
        if fields[place - 1] == "graph" or len(fields) < place + 9:
            continue
        _, primitive, implementation, _, tensors, *_ = fields[place + 1 :]
        with contextlib.suppress(ValueError):
            seconds = float(fields[-1]) / 1000
            types = _read_types(tensors)
            kernel = Kernel(primitive, implementation, types, fields[-2], seconds)
            found.append(kernel)
    return found


def refuse_without(caller: str) -> None:
    """Raise ExperimentError where PyTorch is built without oneDNN."""
    import torch

    if not torch.backends.mkldnn.is_available():
        raise ExperimentError(
            f"{caller}(): this PyTorch ({torch.__version__}) is built without oneDNN, "
            "so there are no kernels of it to tell of.\n"
            "torch.__config__.show() lists what it is built with."
        )


class _Caught:
    """What oneDNN wrote."""

    log = ""


@contextlib.contextmanager
def _catching_output() -> Iterator[_Caught]:
    """Send file descriptor 1 to a file; afterwards keep the log, and write the rest."""
    caught = _Caught()
    with tempfile.TemporaryFile() as file:
        _flush()
        kept = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            yield caught
        finally:
            _flush()
            os.dup2(kept, 1)
            os.close(kept)
            file.seek(0)
            lines = file.read().decode(errors="replace").splitlines(keepends=True)
            log = [line for line in lines if line.startswith(_LOG)]
            caught.log = "".join(log)
            rest = "".join(line for line in lines if not line.startswith(_LOG))
            while rest:  # what others wrote in the meantime
                written = os.write(1, rest.encode())
                rest = rest.encode()[written:].decode(errors="replace")


def _flush() -> None:
    """Let Python and C write what they still hold back."""
    for stream in (sys.stdout, sys.__stdout__):
        with contextlib.suppress(Exception):  # closed, or none
            stream.flush()
    library = ctypes.CDLL("ucrtbase" if os.name == "nt" else None)
    library.fflush(None)


def _read_types(tensors: str) -> str:
    """Return the tensors' types: one where all have it, else one for each tensor.

    >>> _read_types("src:bf16::blocked:ab::f0 wei:bf16:a:any:::f0 dst:f32::::f0")
    'src bfloat16, wei bfloat16, dst float32'
    """
    found = {}
    for tensor in tensors.split():
        if (match := _TYPE.search(tensor)) and match[1] != "undef":
            found[tensor[: match.start()]] = TYPES.get(match[1], match[1])
    if len(set(found.values())) == 1:
        return next(iter(found.values()))
    return ", ".join(f"{name} {kind}" for name, kind in found.items())
