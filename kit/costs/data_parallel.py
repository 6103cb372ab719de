"""How long a step takes whose batch is divided among ranks."""

from __future__ import annotations

import math


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
