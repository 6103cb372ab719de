"""How long a batch takes where a DataLoader feeds the training."""

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
