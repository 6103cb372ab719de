"""Closed formulas that predict a time before it is measured, each with its source.

>>> from kit.costs import predict_loader
>>> [predict_loader(n, load_seconds=0.08, step_seconds=0.03) for n in (0, 1, 2, 4)]
[0.11, 0.08, 0.04, 0.03]

>>> from kit.costs import predict_data_parallel
>>> [predict_data_parallel(n, compute_seconds=0.08) for n in (1, 2, 4)]
[0.08, 0.04, 0.02]
"""

from __future__ import annotations

import math


def predict_loader(
    num_workers: int,
    *,
    load_seconds: float,
    step_seconds: float = 0.0,
    waiting_seconds: float = 0.0,
    carry_seconds: float = 0.0,
    cores: float | None = None,
    step_cores: float = 1.0,
) -> float:
    """Predict the seconds per batch of a training loop that a DataLoader feeds.

    `load_seconds` is what one process needs to make a batch. For `waiting_seconds` of
    them it waits, for storage say, and needs no core. `step_seconds` is the training
    step alone, which keeps `step_cores` cores busy (its threads; few where a GPU does
    the work). `carry_seconds` is what the main process needs to take a batch over from
    a worker. `cores=None` means more cores than are needed. Raises ValueError for a
    negative number of workers and for times that cannot be.

    Without workers one process does everything in turn. With n workers a batch takes as
    long as the slowest of three: the workers, n at a time; the main process; the cores,
    which share all the computing. This is the bottleneck law of queueing networks
    (Lazowska et al. 1984, "Quantitative System Performance", chapter 5): no loop is
    faster than it, and one with enough batches in flight comes close.

    >>> predict_loader(4, load_seconds=0.08, step_seconds=0.03, cores=2)
    0.055
    >>> predict_loader(8, load_seconds=0.4, waiting_seconds=0.36, cores=2)
    0.05
    """
    times = (load_seconds, step_seconds, waiting_seconds, carry_seconds, step_cores)
    if num_workers < 0:
        raise ValueError(f"predict_loader(): num_workers={num_workers} is below 0")
    if not all(0 <= time < math.inf for time in times):
        raise ValueError("predict_loader(): times are finite and not below 0")
    if waiting_seconds > load_seconds:
        raise ValueError(
            f"predict_loader(): waiting_seconds={waiting_seconds} is part of "
            f"load_seconds={load_seconds} and cannot be more"
        )
    if cores is not None and not cores > 0:
        raise ValueError(f"predict_loader(): cores={cores} is not above 0")
    if num_workers == 0:
        return load_seconds + step_seconds
    computing = (
        load_seconds - waiting_seconds + step_cores * step_seconds + carry_seconds
    )
    return max(
        load_seconds / num_workers,
        step_seconds + carry_seconds,
        0.0 if cores is None else computing / cores,
    )


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
    sends. One rank alone sends nothing. Raises ValueError for fewer than one rank, and
    for times, bytes and speeds that cannot be.

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
    if ranks < 1:
        raise ValueError(f"predict_data_parallel(): ranks={ranks} is below 1")
    amounts = (compute_seconds, latency_seconds, gradient_bytes)
    if not all(0 <= amount < math.inf for amount in amounts):
        raise ValueError(
            "predict_data_parallel(): times and bytes are finite and not below 0"
        )
    if not bytes_per_second > 0:
        raise ValueError(
            f"predict_data_parallel(): bytes_per_second={bytes_per_second} "
            "is not above 0"
        )
    if ranks == 1:
        return compute_seconds
    sent = 2 * (ranks - 1) / ranks * gradient_bytes
    return compute_seconds / ranks + latency_seconds + sent / bytes_per_second
