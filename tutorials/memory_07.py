"""Chapter 07: how to see the bytes of a step.

`Watcher` counts tensors, `measure_process` what the system gives to the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

#: The kinds of memory of a step, in the order in which a picture stacks them.
KINDS = ("weights", "optimizer state", "gradients", "activations", "temporary")


class Watcher(TorchDispatchMode):
    """Count the bytes of all tensors of a step, by kind, after each operation.

    PyTorch calls `__torch_dispatch__` for each operation: forward, backward, update.
    Tensors that share a storage count once. The optimizer has made a step before, so
    its state is there. Without an optimizer, what is made inside counts as temporary.
    `rows` has the bytes after each operation, in the order of `KINDS`.

    >>> net = nn.Linear(10, 10, bias=False)
    >>> optimizer = torch.optim.SGD(net.parameters())
    >>> with Watcher(net, optimizer) as watcher:
    ...     net(torch.ones(5, 10)).sum().backward()
    ...     optimizer.step()
    >>> [max(kind) for kind in zip(*watcher.rows)]
    [400, 0, 400, 200, 408]
    """

    def __init__(self, net: nn.Module | None = None, optimizer: Any = None) -> None:
        super().__init__()
        self.bytes = dict.fromkeys(KINDS, 0)
        self.rows: list[list[int]] = []
        self.places = WeakIdKeyDictionary()  # of each living storage: [kind, bytes]
        self.parameters: list[torch.Tensor] = []
        if net is not None:
            for tensor in [*net.parameters(), *net.buffers()]:
                self.note(tensor, "weights")
            self.parameters = [p for p in net.parameters() if p.requires_grad]
        if optimizer is not None:
            for state in optimizer.state.values():
                for tensor in state.values():
                    if isinstance(tensor, torch.Tensor):
                        self.note(tensor, "optimizer state")
        self.handles: list[Any] = []
        self.saving: Any = contextlib.nullcontext()
        if optimizer is not None:
            hooks = torch.autograd.graph.saved_tensors_hooks
            self.saving = hooks(self.note_saved, lambda x: x)

    def note(self, tensor: torch.Tensor, kind: str) -> None:
        """Count a tensor's storage as of a kind, until the storage is freed."""
        storage = tensor.untyped_storage()
        place = self.places.get(storage)
        if place is None:
            place = self.places[storage] = [kind, storage.nbytes()]
            weakref.finalize(storage, self.forget, place).atexit = False
        elif place[0] in ("weights", "optimizer state", kind):
            return  # a view of it, or known already
        else:
            self.bytes[place[0]] -= place[1]
            place[0] = kind
        self.bytes[kind] += place[1]

    def note_saved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note what autograd saves for the backward pass."""
        self.note(tensor, "activations")
        return tensor

    def note_gradient(self, parameter: torch.Tensor) -> None:
        """Note a gradient, as soon as it is there."""
        if parameter.grad is not None:
            self.note(parameter.grad, "gradients")

    def forget(self, place: list[Any]) -> None:
        """Take the bytes of a storage that is freed from its kind."""
        kind, size = place
        self.bytes[kind] -= size

    def __enter__(self) -> Watcher:
        for parameter in self.parameters:
            hook = parameter.register_post_accumulate_grad_hook(self.note_gradient)
            self.handles.append(hook)
        self.saving.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.saving.__exit__(*error)
        for handle in self.handles:
            handle.remove()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, and note what it has made."""
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            is_tensor = isinstance(tensor, torch.Tensor)
            if is_tensor and tensor.untyped_storage() not in self.places:
                self.note(tensor, "temporary")
        self.rows.append([*self.bytes.values()])
        return result

    def peak(self) -> dict[str, float]:
        """Return the megabytes of each kind at the peak of their sum, and the sum."""
        row = max(self.rows, key=sum)
        kinds = {kind: size / 1e6 for kind, size in zip(KINDS, row, strict=True)}
        return {**kinds, "all": sum(row) / 1e6}


def find_peak(steps: Iterator[object]) -> float:
    """Return the megabytes of tensors at the peak of a loop's first two steps.

    `steps` is a generator that has not begun, so its network and optimizer count.
    """
    with Watcher() as watcher:
        next(steps)
        next(steps)
    return watcher.peak()["all"]


def measure_process(steps: Iterator[object], fixed: float) -> float:
    """Return the most megabytes that a process has during a loop's third step.

    The zero point is what it has before the step, less `fixed` megabytes, those of
    tensors that are there already. On a GPU it is what PyTorch reserves at most. nan
    where the system does not say.
    """
    next(steps)
    next(steps)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        next(steps)
        return fixed + (torch.cuda.max_memory_reserved() - before) / 1e6
    give_back()
    before = psutil.Process().memory_info().rss
    try:
        Path("/proc/self/clear_refs").write_text("5")  # forget the last peak
        next(steps)
        status = Path("/proc/self/status").read_text()
    except OSError:
        return math.nan
    peak = 1024 * int(status.partition("VmHWM:")[2].split()[0])
    return fixed + (peak - before) / 1e6


def give_back() -> None:
    """Ask the C library for all memory that is free but kept, where it can give it."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def measure_fresh_process(*arguments: int) -> float:
    """Measure a step in a process of its own, which gives freed memory back at once.

    `arguments` are width, texts, length, and 1 for checkpointing.
    """
    limit = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, __file__, *map(str, arguments)]
    environment = {**os.environ, **limit}
    run = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment
    )
    return float(run.stdout)


def main(width: int, texts: int, length: int, checkpointed: int) -> None:
    """Print what `measure_process` finds for a plain loop."""
    from net_07 import Net, draw_parts, find_loss

    torch.set_num_threads(1)

    def train(width: int) -> Iterator[None]:
        net = Net(width, checkpointed=bool(checkpointed))
        optimizer = torch.optim.Adam(net.parameters())
        while True:
            [batch] = draw_parts(texts, length, 1, torch.device("cpu"))
            find_loss(net, *batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            yield

    measure_process(train(16), 0)  # loads what PyTorch needs
    fixed = 12 * sum(p.numel() for p in Net(width).parameters()) / 1e6
    print(measure_process(train(width), fixed))


# Tables


def estimate(
    name: str, *, width: int, blocks: int, vocabulary: int, tokens: int, size: int
) -> list[str | float]:
    """Estimate a step's gigabytes: by parameters, of activations, and of logits.

    `size` is that of an activation, in bytes. Adam's weights, gradients and moments
    have 32 bits, and so have the scores, what the softmax saves, and their gradient.
    """
    parameters = 12 * blocks * width**2 + vocabulary * width
    activations = tokens * blocks * 16 * width * size
    logits = 3 * tokens * vocabulary * 4
    return [name, 16 * parameters / 1e9, activations / 1e9, logits / 1e9]


def print_rows(names: list[str], rows: list[list[str | float]], form: str) -> None:
    """Print a table, whose numbers have a format like `.1f`."""
    cells = [names]
    for row in rows:
        cells.append([x if isinstance(x, str) else format(x, form) for x in row])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        first, *others = zip(line, widths, strict=True)
        shown = [first[0].ljust(first[1])]
        print("  ".join(shown + [text.rjust(width) for text, width in others]))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
