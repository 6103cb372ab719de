"""Checks of chapter 15's exercises: a plan played, stages, parts of a layer, state."""

import itertools

import torch
from torch.nn import functional as F

_TURNS = {"F": 1, "B": 2}

# 1. A plan that two ranks play


def conduct(score):
    """Every action once, nobody waits for ever, little is kept, the end comes early."""
    assert isinstance(score, list | tuple) and len(score) == 2, (
        f"it is {score!r:.60}, and should be a list of two lines, one for each rank"
    )
    plan = [str(line).split() for line in score]
    wanted = {f"{kind}{i}" for kind in "FB" for i in range(4)}
    for rank, order in enumerate(plan):
        odd = [action for action in order if action not in wanted]
        assert not odd, (
            f"rank {rank}: there is no {odd[0]!r}; F0 to F3 and B0 to B3 are"
        )
        missing = sorted(wanted - {*order})
        assert not missing, f"rank {rank} never does {', '.join(missing)}"
        assert len(order) == 8, f"rank {rank} does something twice"
        for i in range(4):
            is_late = order.index(f"B{i}") < order.index(f"F{i}")
            assert not is_late, f"rank {rank} does B{i} before its F{i}"
    ends = _play(plan)
    for rank, most in enumerate((2, 1)):
        kept = _count_kept(plan[rank])
        assert kept <= most, (
            f"rank {rank} keeps {kept} micro-batches at once; {most} would do"
        )
    last = max(ends.values())
    assert last == 15, (
        f"it takes {last} turns, where F is one and B is two; it can be done in 15"
    )
    return "the smallest bubble there is, and as little kept as can be."


def _play(plan):
    """Return when each action ends; raise AssertionError where ranks wait for ever."""
    ends, places, free = {}, [0, 0], [0, 0]
    while any(place < 8 for place in places):
        moved = False
        for rank, order in enumerate(plan):
            if places[rank] == 8:
                continue
            action = order[places[rank]]
            need = _find_need(rank, action)
            if need is not None and need not in ends:
                continue
            start = max(free[rank], ends.get(need, 0))
            free[rank] = ends[rank, action] = start + _TURNS[action[0]]
            places[rank] += 1
            moved = True
        stuck = [
            f"rank {rank} waits at {plan[rank][place]}"
            for rank, place in enumerate(places)
            if place < 8
        ]
        assert moved, f"they wait for each other for ever: {', '.join(stuck)}"
    return ends


def _find_need(rank, action):
    if action[0] == "F":
        return (0, action) if rank else None
    return (1, action) if rank == 0 else (1, f"F{action[1:]}")


def _count_kept(order):
    kept = itertools.accumulate(1 if action[0] == "F" else -1 for action in order)
    return max(kept)


# 2. Stages of unequal cost


def balance(balance):
    """The most expensive of the stages is as cheap as any cut makes it."""
    cases = [([1, 1, 1, 1], 2), ([5, 1, 1, 1], 2), ([1, 1, 1, 5], 2), ([3], 1)]
    cases += [([2, 9, 2, 2, 2, 2, 9], 3), ([1, 1, 1, 1, 1, 8], 4), ([4, 4, 4], 3)]
    cases += [([7, 2, 5, 1, 8, 3, 3, 6, 2], 4), ([1, 1, 6, 2, 2, 2], 2)]
    cases += [([0.5, 0.25, 0.25, 1.5], 2), ([10, 1, 1, 1, 1, 1, 1, 10], 3)]
    for costs, p in cases:
        case, found = f"costs {costs}, {p} stages", balance([*costs], p)
        assert isinstance(found, list | tuple), f"{case}: it returns {found!r:.60}"
        stages = [[*stage] for stage in found]
        assert len(stages) == p and all(stages), (
            f"{case}: it returns {stages}, not {p} stages with something in each"
        )
        joined = [cost for stage in stages for cost in stage]
        assert joined == [*costs], f"{case}: together its stages are {joined}"
        slowest, best = max(map(sum, stages)), _find_best(costs, p)
        assert slowest <= best + 1e-9, (
            f"{case}: its slowest stage costs {slowest:g}, in {stages}; "
            f"{best:g} can be reached"
        )
    return "no other cut has a cheaper slowest stage."


def _find_best(costs, p):
    cuts = itertools.combinations(range(1, len(costs)), p - 1)
    ends = ([0, *cut, len(costs)] for cut in cuts)
    return min(max(sum(costs[a:b]) for a, b in itertools.pairwise(e)) for e in ends)


# 3. Rows or columns


def cut(cut):
    """What the ranks have adds up to the whole, each with its part of all weights."""
    torch.manual_seed(0)
    for n in (2, 3):
        weights = torch.randn(12, 6), torch.randn(12, 6), torch.randn(6, 12)
        x, total = torch.randn(5, 6), torch.zeros(5, 6)
        for rank in range(n):
            parts = cut(*(weight.clone() for weight in weights), rank, n)
            total += _feed(x, parts, weights, f"n={n}, rank {rank}", n)
        whole = F.linear(
            F.silu(F.linear(x, weights[0])) * F.linear(x, weights[1]), weights[2]
        )
        off = (total - whole).abs().max().item()
        assert off < 1e-3, (
            f"n={n}: the sum of what the ranks have is off by {off:.2f}; do the parts "
            "of `up` and `down` belong to the same hidden numbers as that of `gate`?"
        )
    return "each rank has its part of every weight, and one sum gives the whole."


def _feed(x, parts, weights, case, n):
    names = "gate", "up", "down"
    assert isinstance(parts, list | tuple) and len(parts) == 3, (
        f"{case}: it returns {parts!r:.60}, not three parts"
    )
    for name, part, weight in zip(names, parts, weights, strict=True):
        assert part.numel() * n == weight.numel(), (
            f"{case}: of `{name}`, {tuple(weight.shape)}, it keeps "
            f"{tuple(part.shape)}; that is not one of {n} equal parts"
        )
    gate, up, down = parts
    for name, part in (("gate", gate), ("up", up)):
        assert part.shape[1] == 6, (
            f"{case}: its part of `{name}`, {tuple(part.shape)}, does not take the six "
            "inputs that every rank has"
        )
    assert gate.shape == up.shape and down.shape == (6, gate.shape[0]), (
        f"{case}: `down` is {tuple(down.shape)}, and this rank has {gate.shape[0]} "
        "hidden numbers to give it: the others are elsewhere"
    )
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


# 4. An optimizer that shards its state


def sharded(make):
    """AdamW's weights on every rank, and on none more state than its share."""
    sizes = [(40, 10), (10,), (10, 40), (40,), (20, 20), (5,), (30, 10), (3,)]
    for n in (2, 3):
        torch.manual_seed(0)
        first = [torch.randn(size) for size in sizes]
        copies = [[p.clone().requires_grad_() for p in first] for _ in range(n + 1)]
        *ranks, whole = copies
        reference = torch.optim.AdamW(whole, lr=0.1)
        made = [make(ranks[rank], rank, n) for rank in range(n)]
        owners = [[*each.owners] for each in made]
        _check_owners(owners, sizes, n)
        for _ in range(3):
            gradients = [torch.randn(size) for size in sizes]
            for parameters in copies:
                for p, gradient in zip(parameters, gradients, strict=True):
                    p.grad = gradient.clone()
            reference.step()
            for each in made:
                each.step()
            _hand_round(ranks, owners[0])
        for rank, parameters in enumerate(ranks):
            for number, (p, wanted) in enumerate(zip(parameters, whole, strict=True)):
                assert torch.allclose(p, wanted, atol=1e-5), (
                    f"n={n}: after three steps parameter {number} on rank {rank} is "
                    "not what AdamW makes of it"
                )
        _check_state(made, sizes, n)
    return "AdamW's weights, and each rank keeps its own part of the state."


def _check_owners(owners, sizes, n):
    assert len(owners[0]) == len(sizes), (
        f"n={n}: `owners` has {len(owners[0])} numbers for {len(sizes)} parameters"
    )
    assert all(each == owners[0] for each in owners), (
        f"n={n}: the ranks do not agree on `owners`: {owners}"
    )
    odd = [owner for owner in owners[0] if owner not in range(n)]
    assert not odd, f"n={n}: {odd[0]!r} owns a parameter, and is none of {n} ranks"


def _hand_round(ranks, owners):
    with torch.no_grad():
        for number, owner in enumerate(owners):
            for parameters in ranks:
                parameters[number].copy_(ranks[owner][number])


def _check_state(made, sizes, n):
    counts = [torch.Size(size).numel() for size in sizes]
    fair = 2 * (sum(counts) / n + max(counts))
    for rank, each in enumerate(made):
        kept = _count_numbers(each)
        assert kept <= fair, (
            f"n={n}: rank {rank} keeps {kept} numbers of state; its share and that of "
            f"the largest parameter are {fair:.0f}"
        )


def _count_numbers(made):
    """Count the numbers in all optimizers that an object holds."""
    optimizers, seen = [], [*vars(made).values()]
    for value in seen:
        if isinstance(value, torch.optim.Optimizer):
            optimizers.append(value)
        elif isinstance(value, dict):
            seen += value.values()
        elif isinstance(value, list | tuple):
            seen += value
    if isinstance(made, torch.optim.Optimizer):
        optimizers.append(made)
    assert optimizers, "it holds no optimizer of torch.optim, so its state is not seen"
    states = [state for each in optimizers for state in each.state.values()]
    tensors = [t for state in states for t in state.values() if torch.is_tensor(t)]
    return sum(t.numel() for t in tensors if t.dim())
