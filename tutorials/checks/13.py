"""Checks of chapter 13's exercises: sums, bytes, and a crossing."""

import math
from collections import namedtuple

import torch

# The chapter's: what is looked at is what a message has, not who made its class.
Message = namedtuple(
    "Message", "sender receiver part parts adds", defaults=(0, 1, True)
)

# 1. Two halves


def halves(halves):
    """Part r's sum on rank r, then all sums everywhere, and no message too many."""
    for n in (1, 2, 3, 4, 7):
        both = halves(n)
        assert isinstance(both, tuple | list) and len(both) == 2, (
            f"n={n}: it returns {both!r:.60}, not two plans"
        )
        has = torch.eye(n, dtype=torch.int64)[:, None].repeat(1, n, 1)
        for half, plan in zip(("first", "second"), both, strict=True):
            _carry_out(plan, has, n, f"n={n}, in the {half} half")
            if half == "first" and n > 1:
                _check_scattered(has, n)
        for rank, part in _pairs(n):
            assert has[rank, part].eq(1).all(), (
                f"n={n}: after both halves rank {rank} has in part {part} "
                f"{_tell(has[rank, part])}; the sum has every rank once"
            )
    return "each half sends what it must, and the sums are where they belong."


def _carry_out(plan, has, n, when):
    """Change what the ranks have; look at each message, and count them.

    `has[rank, part, other]` says how often it holds what that other rank began with.
    What a step sends is what was there when the step began.
    """
    sent = [0] * n
    for step in plan:
        before, adds_at = has.clone(), {}
        for message in step:
            assert getattr(message, "_fields", ()) == Message._fields, (
                f"{when}: a step holds {message!r:.60}, which is no Message"
            )
            sender, receiver, part, parts, adds = message
            assert {sender, receiver} <= {*range(n)} and sender != receiver, (
                f"{when}: {message} is not from one of {n} ranks to another"
            )
            assert parts == n and part in range(n), (
                f"{when}: {message} is not one of {n} parts of the tensor"
            )
            place = receiver, part
            assert place not in adds_at or (adds and adds_at[place]), (
                f"{when}: two messages of one step reach part {part} of rank "
                f"{receiver}, and not both are added"
            )
            sent[sender] += 1
            adds_at[place] = adds
            has[place] = before[sender, part] + (has[place] if adds else 0)
    for rank, count in enumerate(sent):
        assert count < n, (
            f"{when}: rank {rank} sends {count} parts, and with {n} ranks none needs "
            f"to send more than {n - 1}"
        )


def _check_scattered(has, n):
    """Each rank has the sum of its own part, and no other sum."""
    for rank in range(n):
        finished = has[rank].eq(1).all(dim=1).nonzero().flatten().tolist()
        where = f"n={n}: after the first half rank {rank}"
        assert rank in finished, (
            f"{where} has in part {rank} {_tell(has[rank, rank])}, and the sum of all "
            f"in {_name(finished)}; it should have the sum of part {rank}"
        )
        assert finished == [rank], (
            f"{where} has the sum of all in {_name(finished)}; it should have that of "
            f"part {rank} and of nothing else"
        )


def _pairs(n):
    return [(rank, part) for rank in range(n) for part in range(n)]


def _tell(counts):
    """Say which ranks' values are in a sum, and how often."""
    told = [f"rank {r} × {c}" for r, c in enumerate(counts.tolist()) if c]
    return " + ".join(told) or "nothing"


def _name(parts):
    return f"part {' and '.join(map(str, parts))}" if parts else "no part"


# 2. Count the bytes


def bytes_sent(bytes_sent):
    """What each rank sends, for plans that no chapter shows."""
    plans = {
        "every rank sends everything to all others": _to_all,
        "along a line, then from its end to all": _along_a_line,
        "each part at its owner, in two steps": _through_owners,
        "through one root, which gives it back in parts": _in_parts_from_root,
    }
    for told, plan in plans.items():
        for n, size in ((1, 1000), (2, 1_000_000), (3, 1000), (6, 48_000_000)):
            found, wanted = bytes_sent(plan, n, size), [0.0] * n
            for message in (message for step in plan(n) for message in step):
                wanted[message.sender] += size / message.parts
            assert isinstance(found, list | tuple) and len(found) == n, (
                f"{told}, n={n}: it returns {found!r:.60}, not a list of {n} numbers"
            )
            for rank in range(n):
                assert math.isclose(found[rank], wanted[rank], rel_tol=0.01), (
                    f"{told}, n={n}, size={size:,}: rank {rank} sends "
                    f"{wanted[rank]:,.0f} bytes, and it says {found[rank]:,.0f}"
                )
    return "it counts for each rank what it sends, whatever the plan."


def _to_all(n):
    yield [Message(a, b) for a, b in _pairs(n) if a != b]


def _along_a_line(n):
    for rank in range(n - 1):
        yield [Message(rank, rank + 1)]
    yield [Message(n - 1, rank, adds=False) for rank in range(n - 1)]


def _through_owners(n):
    others = [(rank, owner) for rank, owner in _pairs(n) if rank != owner]
    return [
        [Message(rank, owner, owner, n) for rank, owner in others],
        [Message(owner, rank, owner, n, adds=False) for rank, owner in others],
    ]


def _in_parts_from_root(n):
    yield [Message(rank, 0) for rank in range(1, n)]
    yield [Message(0, rank, rank, n, adds=False) for rank in range(1, n)]
    for step in range(n - 1):
        yield [
            Message(rank, (rank + 1) % n, (rank - step) % n, n, adds=False)
            for rank in range(n)
        ]


# 3. Your own crossover


def crossover(crossover):
    """The last crossing of two broken lines, between the sizes."""
    sizes = [1000, 2000, 10_000, 100_000, 1_000_000]
    slow, fast = [2, 3, 4, 10, 50], [1, 2, 3, 9, 40]
    late = [3, 4, 5, 9, 40]  # crosses slow once, at an even distance
    cases = {
        "the second one is quicker everywhere": (slow, fast, 1000),
        "the second one is slower everywhere": (fast, slow, None),
        "they cross once": (slow, late, 55_000),
        "they cross once, near a size": ([4, 5, 6, 7, 8], [5, 6, 6.1, 6.1, 3], 19_000),
        "they cross three times": ([4, 5, 6, 7, 8], [5, 4, 9, 6, 7], 77_500),
        "the second one is slower at the largest size": (late, slow, None),
        "it is slower at the largest size only": (
            [2, 3, 4, 5, 6],
            [1, 2, 3, 4, 7],
            None,
        ),
        "they cross before the second size": (slow, [5, 2, 3, 9, 40], 1750),
    }
    for told, (first, second, wanted) in cases.items():
        found = crossover(sizes, first, second)
        given = f"{told}: sizes={sizes}, first={first}, second={second}"
        if wanted is None:
            assert found is None, f"{given}: it returns {found!r:.60}, not None"
            continue
        assert isinstance(found, int | float), (
            f"{given}: it returns {found!r:.60}, and should return {wanted:,}"
        )
        assert math.isclose(found, wanted, rel_tol=0.01), (
            f"{given}: it returns {found:,.0f}, and from {wanted:,} on the second one "
            "is quicker"
        )
    return "it finds the last crossing, and says where there is none."
