"""A simulated network: the messages of a schedule, one by one, as links let them."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kit.costs.links import Link, check_bytes, check_machines, predict_message

#: Simulated time is counted in whole attoseconds, so that moments which are the same
#: are equal, in whatever order their parts were added up.
_PER_SECOND = 10**18
#: Two schedules are as fast as each other within this part of what they differ by.
_CLOSE = 1e-3


class Message(NamedTuple):
    """Part `part` of a tensor that is cut into `parts` equal parts, on its way.

    The receiver adds it to its own part or, if not `adds`, puts it in its place.
    """

    sender: int
    receiver: int
    part: int = 0
    parts: int = 1
    adds: bool = True


@dataclass(frozen=True)
class Network:
    """What connects the ranks: one kind of link, or machines with links between them.

    `link` is the link between ranks of a machine, `between` that between machines. Rank
    i lives on machine i // `ranks_per_machine`. Of the machine's `cards_per_machine`
    network cards it uses the one with the number (i % `ranks_per_machine`) %
    `cards_per_machine`. By default there is one machine, and in each of several every
    rank has a card of its own. Raises ValueError for machines that are half described.

    >>> Network(Link(2e-6, 450e9), between=Link(4e-6, 50e9), ranks_per_machine=8).link
    Link(latency_seconds=2e-06, bytes_per_second=450000000000.0)
    """

    link: Link
    between: Link | None = None
    ranks_per_machine: int | None = None
    cards_per_machine: int | None = None

    def __post_init__(self) -> None:
        check_machines(
            "Network",
            self.link,
            self.between,
            self.ranks_per_machine,
            self.cards_per_machine,
        )


class _Route(NamedTuple):
    """What a message needs while it is under way, and how long: in this order sorted.

    `ways` are the numbers of what only one message at a time can use.
    """

    sender: int
    receiver: int
    duration: int
    ways: tuple[int, ...]


_Groups = dict[int, list[_Route]]  # of one step: what each of its ranks takes part in


def simulate_messages(
    steps: Iterable[Sequence[Message]], message_bytes: float, *, network: Network
) -> float:
    """Simulate a schedule on a network; return the seconds until its last rank is done.

    A schedule yields steps, and a step is a list of messages; all of it is read before
    the first message leaves. A tensor has `message_bytes`. A rank does the messages of
    a step all at once and the steps in their order; it does not wait for others' steps.
    A message begins when both its ranks have reached its step and what it needs is
    free: its sender's way out and its receiver's way in, between machines also the
    sender's card out and the receiver's card in. It holds them for the latency and the
    bytes over the bandwidth of its link. Who came first is served first, of those that
    came together the lower sender, then the lower receiver. Adding takes no time.
    Nobody can wait for ever: a message of the earliest unfinished step can always go.
    Raises ValueError for a rank that sends to itself, for negative ranks and for parts
    that the tensor does not have.

    >>> one_by_one = [[Message(1, 0)], [Message(2, 0)]]
    >>> at_once = [[Message(1, 0), Message(2, 0)]]  # but rank 0 has one way in
    >>> pairs = [[Message(1, 0)], [Message(3, 2)]]  # rank 2 does not wait for rank 0
    >>> network = Network(Link(0.001, 1e9))
    >>> for steps in (one_by_one, at_once, pairs):
    ...     print(simulate_messages(steps, 1e6, network=network))
    0.004
    0.004
    0.002
    """
    check_bytes("simulate_messages", message_bytes)
    groups, itinerary = _read(steps, message_bytes, network)
    step_of = dict.fromkeys(itinerary, -1)  # where each rank is
    to_do = dict.fromkeys(itinerary, 0)  # of its step: messages that have not arrived
    arrivals: dict[int, list[_Route]] = {}  # by the moment
    moments: list[int] = []  # a heap
    in_use: set[int] = set()  # ways
    waiting: list[_Route] = []  # first come, first served
    now, at_next_step = 0, list(itinerary)
    while True:
        came: list[_Route] = []
        for rank in at_next_step:
            step = step_of[rank] = next(itinerary[rank], -1)
            if step < 0:
                continue  # it is done
            group = groups[step][rank]
            to_do[rank] = len(group)
            for route in group:
                if step_of[route[0]] == step_of[route[1]]:
                    came.append(route)
        came.sort()
        waiting += came
        blocked: list[_Route] = []
        for route in waiting:
            _, _, duration, ways = route
            if in_use.isdisjoint(ways):
                in_use.update(ways)
                arrival = now + duration
                if arrival not in arrivals:
                    arrivals[arrival] = []
                    heapq.heappush(moments, arrival)
                arrivals[arrival].append(route)
            else:
                blocked.append(route)
        waiting = blocked
        if not moments:
            return now / _PER_SECOND
        now, at_next_step = heapq.heappop(moments), []
        for sender, receiver, _, ways in arrivals.pop(now):
            in_use.difference_update(ways)
            for rank in (sender, receiver):
                to_do[rank] -= 1
                if not to_do[rank]:
                    at_next_step.append(rank)


def simulate_crossover(
    smaller: Callable[[int], Iterable[Sequence[Message]]],
    larger: Callable[[int], Iterable[Sequence[Message]]],
    ranks: int,
    *,
    link: Link,
) -> float:
    """Simulate the bytes from which on one schedule is faster than another.

    `smaller` and `larger` make the schedules for so many ranks, as the names say for
    smaller and for larger messages. Returns 0.0 where `larger` is not slower even for
    an empty message, and infinity where it is still slower for one that takes a
    thousand times as long to send as to begin. What `find_crossover` says in closed
    form.

    >>> def one_by_one(ranks):
    ...     return [[Message(rank, 0)] for rank in range(1, ranks)]
    >>> def in_parts(ranks):
    ...     for _ in range(2 * ranks):
    ...         yield [Message(rank, 0, 0, 4 * ranks) for rank in range(1, ranks)]
    >>> round(simulate_crossover(one_by_one, in_parts, 2, link=Link(0.001, 1e9)))
    6000000
    """
    network = Network(link)

    def gap(message_bytes: float) -> float:
        slow, fast = larger(ranks), smaller(ranks)
        late = simulate_messages(slow, message_bytes, network=network)
        return late - simulate_messages(fast, message_bytes, network=network)

    low, high = 0.0, 1000 * ranks * max(link.latency_seconds * link.bytes_per_second, 1)
    low_gap, high_gap = gap(low), gap(high)
    if low_gap <= 0 or high_gap >= 0:
        return 0.0 if low_gap <= 0 else math.inf
    while True:  # the time grows along pieces of straight lines: few rounds are enough
        guess = low + (high - low) * low_gap / (low_gap - high_gap)
        found = gap(guess)
        if abs(found) <= _CLOSE * min(low_gap, -high_gap) or not low < guess < high:
            return guess
        if found > 0:
            low, low_gap = guess, found
        else:
            high, high_gap = guess, found


def count_messages(
    steps: Iterable[Sequence[Message]], message_bytes: float
) -> dict[str, float]:
    """Count a schedule's steps and messages, and the bytes of its busiest ranks.

    "most_bytes_sent" and "most_bytes_received" are the most that one rank sends and
    that one rank, perhaps another, receives of a tensor of `message_bytes`. Raises
    ValueError for the messages that `simulate_messages` refuses.

    >>> gather = [[Message(1, 0)], [Message(2, 0)]]
    >>> for name, number in count_messages(gather, 8e6).items():
    ...     print(f"{name}: {number:,}")
    steps: 2
    messages: 2
    most_bytes_sent: 8,000,000.0
    most_bytes_received: 16,000,000.0
    """
    check_bytes("count_messages", message_bytes)
    taken = messages = 0
    sent: Counter[tuple[int, int]] = Counter()  # of each rank, by parts of a tensor
    received: Counter[tuple[int, int]] = Counter()
    for step in steps:
        taken += 1
        messages += len(step)
        for message in step:
            check_message("count_messages", message)
            sent[message.sender, message.parts] += 1
            received[message.receiver, message.parts] += 1
    return {
        "steps": taken,
        "messages": messages,
        "most_bytes_sent": _find_most(sent, message_bytes),
        "most_bytes_received": _find_most(received, message_bytes),
    }


def check_message(function: str, message: Message) -> None:
    """Raise ValueError in the name of a function where a message cannot be."""
    sender, receiver, part, parts, _ = message
    if sender < 0 or receiver < 0:
        raise ValueError(f"{function}(): {message}: ranks are counted from 0")
    if sender == receiver:
        raise ValueError(
            f"{function}(): {message}: a rank sends nothing to itself; leave it out"
        )
    if not 0 <= part < parts:
        raise ValueError(
            f"{function}(): {message}: a tensor in {parts} parts has no part {part}; "
            "they are counted from 0"
        )


def _find_most(counts: Counter[tuple[int, int]], message_bytes: float) -> float:
    """Return the bytes of the rank that has most; counts are by rank and parts."""
    of_rank: dict[int, float] = {}
    for (rank, parts), count in counts.items():
        of_rank[rank] = of_rank.get(rank, 0.0) + message_bytes * count / parts
    return max(of_rank.values(), default=0.0)


def _read(
    steps: Iterable[Sequence[Message]], message_bytes: float, network: Network
) -> tuple[list[_Groups], dict[int, Iterator[int]]]:
    """Return each step's groups, and for each rank the steps that it takes part in.

    A message is much like many others: of equal routes and equal steps, one is kept.
    """
    routes: dict[tuple[int, int, int], _Route] = {}
    ways: dict[tuple[str, int, int], int] = {}
    groups: list[_Groups] = []
    itinerary: dict[int, list[int]] = {}
    before: list[_Route] = []
    for number, step in enumerate(steps):
        taken = []
        for message in step:
            sender, receiver, part, parts, _ = message
            route = routes.get((sender, receiver, parts))
            if route is None or not 0 <= part < parts:
                check_message("simulate_messages", message)
                route = _plan_route(message, message_bytes, network, ways)
                routes[sender, receiver, parts] = route
            taken.append(route)
        if number and taken == before:
            groups.append(groups[-1])
        else:
            group: _Groups = {}
            for route in taken:
                group.setdefault(route.sender, []).append(route)
                group.setdefault(route.receiver, []).append(route)
            groups.append(group)
        for rank in groups[-1]:
            itinerary.setdefault(rank, []).append(number)
        before = taken
    return groups, {rank: iter(numbers) for rank, numbers in itinerary.items()}


def _plan_route(
    message: Message,
    message_bytes: float,
    network: Network,
    known: dict[tuple[str, int, int], int],
) -> _Route:
    """Plan the way of a message; what it uses gets a number where it has none yet."""
    sender, receiver, _, parts, _ = message
    ways = [("rank out", sender, 0), ("rank in", receiver, 0)]
    link, local = network.link, network.ranks_per_machine
    if network.between is not None and local is not None:
        home, goal = sender // local, receiver // local
        if home != goal:
            cards = network.cards_per_machine or local
            ways.append(("card out", home, sender % local % cards))
            ways.append(("card in", goal, receiver % local % cards))
            link = network.between
    seconds = predict_message(message_bytes / parts, link=link)
    numbers = tuple(known.setdefault(way, len(known)) for way in ways)
    return _Route(sender, receiver, round(seconds * _PER_SECOND), numbers)
