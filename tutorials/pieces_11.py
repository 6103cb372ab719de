"""Chapter 11's clock: how long a step computes, exchanges, and waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch


def timed(exchange: Callable[[Any], None], times: list[list[float]]) -> Callable:
    """Return the same exchange; it notes when it begins and ends, in ms, in `times`."""

    def exchange_timed(net: Any) -> None:
        begin = _read_clock()
        exchange(net)
        times.append([begin, _read_clock()])

    return exchange_timed


def _read_clock() -> float:
    """Return milliseconds, once the device is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return 1000 * perf_counter()


def split_step(times: Sequence[Sequence[Sequence[float]]]) -> tuple[float, ...]:
    """Return a step's computing, exchange and waiting: means over ranks and steps.

    `times` has each rank's list of exchanges, as `timed` notes them. The rank that
    comes last waits for nobody, so the shortest time of all ranks is the exchange.

    >>> rank_0 = [[8.0, 11.0], [18.0, 21.0]]  # comes 2 ms before the other
    >>> rank_1 = [[10.0, 11.0], [20.0, 21.0]]
    >>> split_step([rank_0, rank_1])
    (8.0, 1.0, 1.0)
    """
    begin, end = torch.tensor(times, dtype=torch.float64).unbind(2)
    computing = begin[:, 1:] - end[:, :-1]
    exchanging = (end - begin)[:, 1:]
    shortest = exchanging.amin(0)
    waiting = exchanging - shortest
    return tuple(part.mean().item() for part in (computing, shortest, waiting))
