"""Models that predict a time before it is measured, each with its source.

A DataLoader, and training whose batch is divided among ranks:

>>> from kit.costs import predict_data_parallel, predict_loader
>>> [predict_loader(n, load_seconds=0.08, step_seconds=0.03) for n in (0, 1, 2, 4)]
[0.11, 0.08, 0.04, 0.03]
>>> [predict_data_parallel(n, compute_seconds=0.08) for n in (1, 2, 4)]
[0.08, 0.04, 0.02]

What grows with the batch along a straight line, fitted on two sizes:

>>> from kit.costs import fit_line
>>> round(fit_line([1, 4], [0.75, 1.5]).predict(8), 6)
2.5

An all-reduce, in closed form, and message by message on a simulated network:

>>> from kit.costs import Link, Message, Network
>>> from kit.costs import predict_all_reduce, simulate_messages
>>> link = Link(latency_seconds=1e-3, bytes_per_second=1e9)
>>> predict_all_reduce("ring", 2, 8e6, link=link)
0.01
>>> halves = [(step, step < 1) for step in range(2)]
>>> ring = [[Message(0, 1, step, 2, adds), Message(1, 0, 1 - step, 2, adds)]
...         for step, adds in halves]
>>> simulate_messages(ring, 8e6, network=Network(link))
0.01

What a training step keeps, in bytes, and checkpointing, which keeps less:

>>> from torch import nn, zeros
>>> from kit.costs import predict_checkpointing, predict_step_memory
>>> predict_step_memory(nn.Linear(9, 9), zeros(1000, 9)).activations
36000
>>> predict_checkpointing(100, layer_bytes=1.0, boundary_bytes=1.0).activations
20.0

And a matrix product on a GPU, in tiles and in waves of tiles:

>>> from kit.costs import predict_matmul
>>> predict_matmul(1536, 2816, 4096).waves, predict_matmul(1536, 2817, 4096).waves
(1, 2)
"""

from kit.costs.all_reduce import find_crossover, fit_link, predict_all_reduce
from kit.costs.data_parallel import predict_data_parallel
from kit.costs.line import Line, fit_line
from kit.costs.links import LINKS, Link
from kit.costs.loader import predict_loader
from kit.costs.memory import (
    Checkpointing,
    StepMemory,
    predict_checkpointing,
    predict_step_memory,
)
from kit.costs.network import (
    Message,
    Network,
    count_messages,
    simulate_crossover,
    simulate_messages,
)
from kit.costs.tensor_cores import MatrixProduct, predict_matmul

__all__ = [
    "LINKS",
    "Checkpointing",
    "Line",
    "Link",
    "MatrixProduct",
    "Message",
    "Network",
    "StepMemory",
    "count_messages",
    "find_crossover",
    "fit_line",
    "fit_link",
    "predict_all_reduce",
    "predict_checkpointing",
    "predict_data_parallel",
    "predict_loader",
    "predict_matmul",
    "predict_step_memory",
    "simulate_crossover",
    "simulate_messages",
]
