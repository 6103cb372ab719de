"""Models that predict a time, or bytes, before they are measured, each with its source.

>>> link = LINKS["InfiniBand NDR"]
>>> [predict_data_parallel(n, compute_seconds=0.08) for n in (1, 2, 4)]
[0.08, 0.04, 0.02]
>>> predict_step_memory(nn.Linear(9, 9), torch.zeros(1000, 9)).activations
36000
"""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode


def predict_data_parallel(
    ranks: int,
    *,
    compute_seconds: float,
    latency_seconds: float = 0.0,
    gradient_bytes: float = 0.0,
    bytes_per_second: float = math.inf,
) -> float:
    """Predict the seconds per step of training whose batch is divided among ranks.

    `compute_seconds` is what one rank alone needs for the whole batch. All ranks then
    average `gradient_bytes` of gradients, all of them together. `latency_seconds` is
    what that costs however few bytes there are, and `bytes_per_second` how fast a rank
    sends. One rank alone sends nothing.

    t = compute / n + latency + sent / speed: nothing overlaps. In a ring each rank
    sends 2 (n - 1) / n times the gradients' bytes, and no all-reduce can do with less:
    Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", https://doi.org/10.1016/j.jpdc.2008.09.002. A latency and a bandwidth
    for communication: Thakur, Rabenseifner and Gropp 2005, "Optimization of collective
    communication operations in MPICH", https://doi.org/10.1177/1094342005051521.

    >>> link = {"latency_seconds": 0.001, "bytes_per_second": 1e9}
    >>> predict_data_parallel(2, compute_seconds=0.08, gradient_bytes=4e6, **link)
    0.045
    """
    if ranks == 1:
        return compute_seconds
    sent = 2 * (ranks - 1) / ranks * gradient_bytes
    return compute_seconds / ranks + latency_seconds + sent / bytes_per_second


# Links


class Link(NamedTuple):
    """A way from one rank to another, and as good a one back at the same time.

    A message of m bytes takes `latency_seconds` + m / `bytes_per_second`: the α–β
    model, α + m / β. Hockney 1994, "The communication challenge for MPP: Intel Paragon
    and Meiko CS-2", https://doi.org/10.1016/S0167-8191(06)80021-9.
    """

    latency_seconds: float
    bytes_per_second: float


#: Nominal, not measured: what standards and vendors promise at best. Before you rely on
#: one, measure your own.
#:
#: Bandwidths, one way:
#:
#: - Ethernet: its name, in bits.
#: - PCIe 5 x16: 32 GT/s on 16 lanes, 128 of 130 bits; PCI Express Base Specification
#:   5.0.
#: - InfiniBand NDR: 100 Gbit/s on each of four lanes; InfiniBand Trade Association.
#: - NVLink 4 and 5: 18 links of 25 and 50 GB/s.
#:   https://www.nvidia.com/en-us/data-center/nvlink/ counts both ways together: 900
#:   GB/s and 1.8 TB/s.
#:
#: Latencies, of a message between two processes, rounded:
#:
#: - Ethernet, 1 Gbit/s: 23 µs, NetPIPE between two Linux machines,
#:   http://norma.mbg.duth.gr/index.php?id=about:benchmarks:network
#: - Ethernet, 100 Gbit/s: 10 µs, MPI over TCP, tuned, on a fast card,
#:   https://blogs.cisco.com/performance/aint-your-fathers-tcp
#: - Between GPUs: what NCCL's own model takes for a hop of a ring with its protocol
#:   LL128: 1.9 µs over NVLink, 2.5 µs over PCIe, 4 µs over a network, `hwLat` in
#:   https://github.com/NVIDIA/nccl/blob/01afd20a77b5804e0ecf1042509dd9d20ebf9e93/src/graph/tuning.cc
LINKS: dict[str, Link] = {
    "Ethernet, 1 Gbit/s": Link(25e-6, 1e9 / 8),
    "Ethernet, 100 Gbit/s": Link(10e-6, 100e9 / 8),
    "PCIe 5 x16": Link(2.5e-6, 63e9),
    "InfiniBand NDR": Link(4e-6, 400e9 / 8),
    "NVLink 4": Link(2e-6, 450e9),
    "NVLink 5": Link(2e-6, 900e9),
}


# Bytes


class StepMemory(NamedTuple):
    """What a training step keeps, in bytes, by kind.

    The parameters and the optimizer's state are there all the time. Activations pile up
    in the forward pass; the backward pass frees them and makes gradients.

    >>> StepMemory(parameters=40, gradients=40, optimizer=80, activations=100).total
    260
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """All of it: what there is at once where old gradients outlive a forward pass.

        That is so where `zero_grad` comes after it.
        """
        return sum(self)

    @property
    def peak(self) -> int:
        """The least that there is at once, if gradients are dropped after the update.

        At the end of the forward pass there are all activations and no gradient, at
        the end of the backward pass the other way round.

        >>> StepMemory(parameters=40, gradients=40, optimizer=80, activations=100).peak
        220
        """
        return self.parameters + self.optimizer + max(self.gradients, self.activations)


def predict_step_memory(
    model: nn.Module, *inputs: Any, state_tensors: float = 2
) -> StepMemory:
    """Predict what a training step of a model keeps, without allocating any of it.

    A copy of the model with PyTorch's fake tensors, which have shapes and no numbers,
    runs forward on what else is given, `model(*inputs)`, and autograd says which
    tensors it saves; those that share memory count once, and parameters are no
    activations. The model, its buffers and the random state stay as they are, and an
    autocast around the call counts. `state_tensors` is how many tensors the optimizer
    keeps for each parameter: 2 for Adam, 1 for SGD with momentum, 0 without. Parameters
    are counted with the buffers.

    Not counted: what the loss saves (give a model that returns it), and what one
    operation needs while it runs. The forward pass fails if it needs numbers:
    `.item()`, `if x > 0`, `x[mask]`.
    https://docs.pytorch.org/docs/stable/torch.compiler_fake_tensor.html

    >>> net = nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10))
    >>> predict_step_memory(net, torch.zeros(8, 100), state_tensors=0)
    StepMemory(parameters=22240, gradients=22240, optimizer=0, activations=4800)
    """
    kept = sum(x.nbytes for x in (*model.parameters(), *model.buffers()))
    learned = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    activations = _count_saved(model, inputs)
    return StepMemory(kept, learned, round(state_tensors * learned), activations)


def _count_saved(model: nn.Module, inputs: tuple[Any, ...]) -> int:
    """Return the bytes that autograd saves in a forward pass, on fake tensors."""
    saved = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        # Held, so that no later tensor comes to lie at its place.
        saved[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
    # What a forward pass takes from elsewhere, a mask in a closure, may be real.
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with FakeCopyMode(fake):
        ghost, given = copy.deepcopy((model, inputs))
    with fake, hooks, torch.enable_grad():
        output = ghost(*given)
    del output  # until here the graph was alive
    for tensor in [*ghost.parameters(), *ghost.buffers()]:
        saved.pop(tensor.untyped_storage()._cdata, None)
    return sum(storage.nbytes() for storage in saved.values())
