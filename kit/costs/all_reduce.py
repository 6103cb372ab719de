"""All-reduce in closed form: how long it takes, which way is best, from which size on.

Every formula here is messages in a row × latency + bytes in a row / bandwidth, the
model of Hockney 1994 (see `Link`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kit.costs.links import Link, check_bytes, check_link, check_machines
from kit.costs.links import predict_message as predict

#: The ways on one kind of link: through rank 0, up and down a tree, around a ring.
_FLAT = ("root", "tree", "ring")


def predict_all_reduce(
    algorithm: str,
    ranks: int,
    message_bytes: float,
    *,
    link: Link,
    between: Link | None = None,
    ranks_per_machine: int | None = None,
    cards_per_machine: int | None = None,
) -> float:
    """Predict the seconds until all ranks have the sum of `message_bytes` from each.

    `algorithm` is "root", "tree", "ring" or "hierarchical". `link` is the link between
    ranks of a machine, and the only one where `between`, the link between machines, is
    not given. Rank i lives on machine i // `ranks_per_machine`, which has
    `cards_per_machine` network cards; its ranks use them in turn, and messages of those
    that share a card queue. By default each rank has its own. Adding takes no time.
    Raises ValueError for an unknown algorithm, amounts that cannot be, machines that
    are half described, and machines that are not full where it is hierarchical.

    With n ranks, α and β the latency and the bandwidth, m the bytes:

    - "root": everyone to rank 0, one by one, and back: 2 (n - 1) (α + m / β).
    - "tree": 2 ⌈log₂ n⌉ (α + m / β). Thakur, Rabenseifner and Gropp 2005,
      "Optimization of collective communication operations in MPICH",
      https://doi.org/10.1177/1094342005051521.
    - "ring": 2 (n - 1) (α + m / (n β)). Patarasuk and Yuan 2009, "Bandwidth optimal
      all-reduce algorithms for clusters of workstations",
      https://doi.org/10.1016/j.jpdc.2008.09.002.
    - "hierarchical": a ring inside each machine until every rank has the sum of its
      part, a ring between machines for all these parts at once, a ring inside to tell
      the parts to all: "Hierarchical Communication Principles" in Huawei's HCCL guide,
      https://www.hiascend.com/document/detail/en/canncommercial/850/commlib/hcclug/hcclug_000125.html.

    Over several machines the slowest message of a step sets its time. For "tree" that
    is an upper bound where the ranks of a machine are no power of two, else exact.

    >>> inside, outside = Link(2e-6, 450e9), Link(4e-6, 50e9)
    >>> machines = {"between": outside, "ranks_per_machine": 8}
    >>> for algorithm in ("root", "tree", "ring", "hierarchical"):
    ...     time = predict_all_reduce(algorithm, 64, 1e8, link=inside, **machines)
    ...     print(f"{algorithm}: {1000 * time:.1f} ms")
    root: 227.6 ms
    tree: 13.4 ms
    ring: 4.4 ms
    hierarchical: 0.9 ms
    """
    function = "predict_all_reduce"
    if algorithm not in (*_FLAT, "hierarchical"):
        raise ValueError(_refuse(function, "algorithm", algorithm, "hierarchical"))
    if ranks < 1:
        raise ValueError(f"{function}(): ranks={ranks} is below 1")
    check_bytes(function, message_bytes)
    check_machines(function, link, between, ranks_per_machine, cards_per_machine)
    local = ranks if ranks_per_machine is None else ranks_per_machine
    if algorithm == "hierarchical":
        if between is None:
            raise ValueError(
                f'{function}(): algorithm="hierarchical" is for several machines; '
                "say with between= which link is between them"
            )
        if ranks % local:
            raise ValueError(
                f"{function}(): ranks={ranks} do not fill machines of "
                f"ranks_per_machine={local}, which hierarchical needs"
            )
        cards = local if cards_per_machine is None else min(cards_per_machine, local)
        return _predict_hierarchical(
            local,
            ranks // local,
            math.ceil(local / cards),
            message_bytes,
            link,
            between,
        )
    if ranks == 1:
        return 0.0
    inside = predict(message_bytes, link=link)
    outside = inside if between is None else predict(message_bytes, link=between)
    if algorithm == "root":
        neighbours = min(ranks, local) - 1
        return 2 * (neighbours * inside + (ranks - 1 - neighbours) * outside)
    if algorithm == "tree":
        far = sum(_leaves(hop, ranks, local) for hop in _list_hops(ranks))
        near = len(_list_hops(ranks)) - far
        return 2 * (near * inside + far * outside)
    steps, part = 2 * (ranks - 1), message_bytes / ranks
    hops = [predict(part, link=link)] if local > 1 else []
    if between is not None and ranks > local:
        hops.append(predict(part, link=between))
    return steps * max(hops)


def find_crossover(
    ranks: int, *, link: Link, smaller: str = "tree", larger: str = "ring"
) -> float:
    """Find the bytes from which on one all-reduce is faster than another.

    `smaller` is the algorithm for smaller messages, `larger` that for larger ones, both
    of "root", "tree" and "ring". Returns 0.0 where `larger` is faster at every size and
    infinity where it is not for good at any. From the formulas of `predict_all_reduce`:
    the ring sends more messages in a row than the tree, and fewer bytes. Raises
    ValueError for other algorithms, fewer than two ranks and links that cannot be.

    >>> round(find_crossover(8, link=Link(4e-6, 50e9)))
    376471
    >>> find_crossover(8, link=Link(4e-6, 50e9), smaller="root")
    0.0
    """
    function = "find_crossover"
    check_link(function, "link", link)
    _check_ranks(function, ranks)
    for name, algorithm in {"smaller": smaller, "larger": larger}.items():
        if algorithm not in _FLAT:
            raise ValueError(_refuse(function, name, algorithm))
    few_messages, more_bytes = _count_in_a_row(smaller, ranks)
    more_messages, few_bytes = _count_in_a_row(larger, ranks)
    lost = (more_messages - few_messages) * link.latency_seconds
    won = (more_bytes - few_bytes) / link.bytes_per_second  # per byte
    if lost > 0:
        return lost / won if won > 0 else math.inf
    return 0.0 if won > 0 or (lost < 0 and won == 0) else math.inf


def fit_link(
    sizes: Sequence[float], seconds: Sequence[float], *, algorithm: str, ranks: int
) -> Link:
    """Fit a link's latency and bandwidth to measured times of one all-reduce.

    `sizes` are bytes, `seconds` how long each took with this `algorithm` ("root",
    "tree" or "ring") on so many `ranks`. The squares of the relative errors are least,
    so that a short time counts as much as a long one. Neither number is below 0: where
    times grow with size too steeply to allow a latency, it is 0.0; where they do not
    grow, the bandwidth is infinite. Raises ValueError for fewer than two
    different sizes, for times that are not above 0 and for other algorithms.

    >>> sizes = [1e3, 1e6]
    >>> link = Link(4e-6, 50e9)
    >>> times = [predict_all_reduce("ring", 8, size, link=link) for size in sizes]
    >>> fitted = fit_link(sizes, times, algorithm="ring", ranks=8)
    >>> f"{fitted.latency_seconds:.3g}, {fitted.bytes_per_second:.3g}"
    '4e-06, 5e+10'
    """
    function = "fit_link"
    if algorithm not in _FLAT:
        raise ValueError(_refuse(function, "algorithm", algorithm))
    _check_ranks(function, ranks)
    if len(sizes) != len(seconds):
        raise ValueError(
            f"{function}(): {len(sizes)} sizes and {len(seconds)} seconds are no pairs"
        )
    for size, time in zip(sizes, seconds, strict=True):
        if not 0 <= size < math.inf:
            raise ValueError(f"{function}(): size {size} is not finite or below 0")
        if not 0 < time < math.inf:
            raise ValueError(
                f"{function}(): {size} bytes in {time} s cannot be; "
                "a time is finite and above 0"
            )
    if len(set(sizes)) < 2:
        raise ValueError(
            f"{function}(): sizes={list(sizes)} are fewer than two different ones; "
            "latency and bandwidth cannot be told apart"
        )
    from scipy.optimize import nnls  # here, because importing it takes a while

    messages, times_sent = _count_in_a_row(algorithm, ranks)
    largest = max(sizes)  # the unit of bytes, so that both columns are alike in scale
    rows = [
        (messages / time, times_sent * size / largest / time)
        for size, time in zip(sizes, seconds, strict=True)
    ]
    (latency, slowness), _ = nnls(rows, [1.0] * len(rows))
    bandwidth = largest / slowness if slowness > 0 else math.inf
    return Link(float(latency), float(bandwidth))


def _predict_hierarchical(
    local: int, machines: int, queue: int, message_bytes: float, link: Link, out: Link
) -> float:
    """Predict three rings; `queue` ranks share the busiest card."""
    part = message_bytes / local
    inside = 2 * (local - 1) * predict(part, link=link)
    return inside + 2 * (machines - 1) * queue * predict(part / machines, link=out)


def _list_hops(ranks: int) -> list[int]:
    """Return how far a tree's messages go, level by level."""
    return [2**level for level in range((ranks - 1).bit_length())]


def _leaves(hop: int, ranks: int, local: int) -> bool:
    """Return whether a message of this level of the tree leaves its machine."""
    senders = range(hop, ranks, 2 * hop)
    return any(rank // local != (rank - hop) // local for rank in senders)


def _count_in_a_row(algorithm: str, ranks: int) -> tuple[int, float]:
    """Return how many messages, and how often the bytes, follow one another."""
    if algorithm == "tree":
        levels = len(_list_hops(ranks))
        return 2 * levels, 2 * levels
    steps = 2 * (ranks - 1)
    return steps, steps / ranks if algorithm == "ring" else steps


def _check_ranks(function: str, ranks: int) -> None:
    if ranks < 2:
        raise ValueError(f"{function}(): ranks={ranks}: fewer than two send nothing")


def _refuse(function: str, name: str, algorithm: str, *more: str) -> str:
    known = ", ".join(map(repr, (*_FLAT, *more)))
    return f"{function}(): no {name}={algorithm!r}; there are {known}"
