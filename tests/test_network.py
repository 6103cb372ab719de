"""The simulated network: closed forms, queues, and schedules that leave the sum."""

import itertools
import math
import random

import pytest
from schedules import ring, through_root, tree

from kit.costs import (
    LINKS,
    Link,
    Message,
    Network,
    count_messages,
    find_crossover,
    predict_all_reduce,
    simulate_crossover,
    simulate_messages,
)

LINK, OUTSIDE = Link(2e-6, 450e9), Link(4e-6, 50e9)
SECOND = Link(1.0, math.inf)  # every message takes a second
RANKS = [2, 3, 4, 7, 8, 64]
SIZES = [8, 1e5, 1e9]


def hierarchical(machines, local):
    """Around each machine, around all machines for each part, around each machine."""
    inside = list(ring(local))
    for number, step in enumerate(inside):
        if number == local - 1:
            yield from between(machines, local)
        yield [
            message._replace(
                sender=machine * local + message.sender,
                receiver=machine * local + message.receiver,
            )
            for machine in range(machines)
            for message in step
        ]
    if local == 1:
        yield from between(machines, local)


def between(machines, local):
    for step in ring(machines):
        yield [
            Message(
                message.sender * local + rank,
                message.receiver * local + rank,
                (rank + 1) % local * machines + message.part,
                local * machines,
                message.adds,
            )
            for rank in range(local)
            for message in step
        ]


SCHEDULES = {"root": through_root, "tree": tree, "ring": ring}


def run(steps, ranks):
    """Interpret a schedule: rank r begins with numbers that only it has.

    Each number is a power of `ranks + 1`, so that a sum tells how often each is in it.
    """
    steps = list(steps)
    numbers = math.lcm(*(message.parts for step in steps for message in step))
    have = [[(ranks + 1) ** rank] * numbers for rank in range(ranks)]
    for step in steps:
        before = [list(tensor) for tensor in have]
        for sender, receiver, part, parts, adds in step:
            size = numbers // parts
            for place in range(part * size, (part + 1) * size):
                if adds:
                    have[receiver][place] += before[sender][place]
                else:
                    have[receiver][place] = before[sender][place]
    return have


# Sums


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 7, 8, 16])
@pytest.mark.parametrize("algorithm", SCHEDULES)
def test_every_rank_has_the_sum_in_the_end(algorithm, ranks):
    (tensor, *others) = run(SCHEDULES[algorithm](ranks), ranks)
    assert set(tensor) == {sum((ranks + 1) ** rank for rank in range(ranks))}
    assert all(other == tensor for other in others)


@pytest.mark.parametrize(("machines", "local"), [(1, 4), (4, 1), (2, 3), (3, 4)])
def test_every_rank_of_every_machine_has_the_sum_in_the_end(machines, local):
    ranks = machines * local
    (tensor, *others) = run(hierarchical(machines, local), ranks)
    assert set(tensor) == {sum((ranks + 1) ** rank for rank in range(ranks))}
    assert all(other == tensor for other in others)


@pytest.mark.parametrize("algorithm", SCHEDULES)
def test_the_interpreter_sees_a_message_that_is_missing(algorithm):
    steps = list(SCHEDULES[algorithm](4))
    for number, step in enumerate(steps):
        for message in step:
            fewer = [[m for m in s if s is not step or m != message] for s in steps]
            expected = run(steps, 4)[0]
            assert run(fewer, 4) != [expected] * 4, (number, message)


# Closed forms


def is_same(seconds):
    return pytest.approx(seconds, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("algorithm", SCHEDULES)
def test_a_simulation_takes_what_the_formula_says(algorithm, ranks, size):
    for link in (LINK, Link(1e-3, math.inf), Link(0.0, 1e9)):
        found = simulate_messages(
            SCHEDULES[algorithm](ranks), size, network=Network(link)
        )
        assert found == is_same(predict_all_reduce(algorithm, ranks, size, link=link))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("cards", [None, 1, 2, 3, 4, 9])
@pytest.mark.parametrize(
    ("machines", "local"), [(1, 4), (4, 1), (2, 3), (3, 4), (8, 8)]
)
def test_machines_take_what_the_formula_says(machines, local, cards, size):
    ranks = machines * local
    known = {"ranks_per_machine": local, "cards_per_machine": cards}
    known |= {"link": LINK, "between": OUTSIDE}
    schedules = {
        "hierarchical": hierarchical(machines, local),
        "ring": ring(ranks),
        "root": through_root(ranks),
    }
    for algorithm, steps in schedules.items():
        found = simulate_messages(steps, size, network=Network(**known))
        predicted = predict_all_reduce(algorithm, ranks, size, **known)
        assert found == is_same(predicted), algorithm


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("local", range(1, 10))
@pytest.mark.parametrize("ranks", [3, 8, 13, 24])
def test_a_tree_over_machines_takes_no_longer_than_the_formula_says(ranks, local, size):
    known = {"link": LINK, "between": OUTSIDE, "ranks_per_machine": local}
    found = simulate_messages(tree(ranks), size, network=Network(**known))
    predicted = predict_all_reduce("tree", ranks, size, **known)
    if local in (1, 2, 4, 8):
        assert found == is_same(predicted)
    else:
        assert predicted / 2 < found <= predicted * (1 + 1e-9)


@pytest.mark.parametrize("ranks", [5, 6, 8, 16, 33, 64, 128])
@pytest.mark.parametrize("name", LINKS)
def test_the_ring_of_a_simulation_wins_from_the_predicted_size_on(name, ranks):
    """Halved until it is found, from simulations alone."""
    network = Network(LINKS[name])

    def wins(size):
        times = (
            simulate_messages(s(ranks), size, network=network) for s in (ring, tree)
        )
        return next(times) < next(times)

    low, high = 1.0, 1e12
    assert wins(high) and not wins(low)
    while high / low > 1.05:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if wins(middle) else (middle, high)
    assert 1 / 1.06 < high / find_crossover(ranks, link=LINKS[name]) < 1.06


# Queues: every message takes a second


def seconds(*steps, **machines):
    if machines:
        machines = {"between": SECOND} | machines
    return simulate_messages(steps, 1.0, network=Network(SECOND, **machines))


def test_what_shares_nothing_goes_at_once():
    assert seconds([Message(0, 1), Message(2, 3)]) == 1
    assert seconds([Message(0, 1), Message(1, 0)]) == 1  # a way out and a way in
    assert seconds([Message(0, 1), Message(1, 2), Message(2, 0)]) == 1


def test_messages_of_a_rank_queue_on_its_way_out_and_on_its_way_in():
    assert seconds([Message(0, rank) for rank in range(1, 6)]) == 5
    assert seconds([Message(rank, 0) for rank in range(1, 6)]) == 5
    assert seconds([Message(0, 1, part, 2) for part in range(2)]) == 2


def test_a_rank_does_its_steps_in_their_order_and_does_not_wait_for_others():
    assert seconds([Message(0, 1)], [Message(2, 3)]) == 1
    assert seconds([Message(0, 1)], [Message(1, 2)], [Message(2, 3)]) == 3
    # Rank 2 has nothing to do before the second step, and rank 3 nothing at all.
    assert seconds([Message(0, 1)], [Message(2, 0)], [Message(2, 4)]) == 3


def test_a_rank_waits_until_all_of_its_step_is_done():
    """Rank 0's last message comes two seconds late; only then it sends on."""
    step = [Message(1, 0), Message(2, 0), Message(3, 0)]
    assert seconds(step, [Message(0, 1)]) == 4


def test_who_came_first_is_served_first():
    """Rank 9 can send its last message only when rank 0 has taken the one before."""
    queue, last = [Message(7, 0), Message(9, 0), Message(1, 0)], [Message(9, 8)]
    assert seconds(queue, last) == 4  # together they come: 1, 7, 9
    assert seconds([Message(1, 5)], queue, last) == 3  # 1 comes later: 7, 9, 1


def test_ranks_queue_for_the_cards_of_their_machine():
    step = [Message(rank, rank + 4) for rank in range(4)]
    assert seconds(step, ranks_per_machine=4) == 1
    for cards, time in {1: 4, 2: 2, 3: 2, 4: 1, 5: 1}.items():
        assert seconds(step, ranks_per_machine=4, cards_per_machine=cards) == time


def test_a_card_sends_and_receives_at_once_and_stays_out_of_the_machine():
    machines = {"ranks_per_machine": 2, "cards_per_machine": 1}
    assert seconds([Message(0, 2), Message(3, 1)], **machines) == 1
    assert seconds([Message(0, 2), Message(2, 3), Message(1, 0)], **machines) == 1
    assert seconds([Message(0, 2), Message(1, 4)], **machines) == 2  # one card out
    assert seconds([Message(0, 2), Message(4, 3)], **machines) == 2  # one card in
    machines["cards_per_machine"] = 2
    assert seconds([Message(0, 2), Message(1, 4)], **machines) == 1


def test_a_message_takes_the_link_on_its_way():
    network = Network(Link(1.0, 4.0), between=Link(10.0, 2.0), ranks_per_machine=2)
    for message, time in {
        Message(0, 1): 3.0,
        Message(1, 2): 14.0,
        Message(0, 1, part=3, parts=4): 1.5,
        Message(3, 0, part=0, parts=8): 10.5,
    }.items():
        assert simulate_messages([[message]], 8.0, network=network) == time


def simulate_second_by_second(steps):
    """Do the same slowly: each second, whoever came first takes what is free."""
    steps = [list(step) for step in steps]
    left = [(number, message) for number, step in enumerate(steps) for message in step]
    ready, now = {}, 0

    def is_ready(number, message):
        ends = message[:2]
        return not any(other < number and {*ends} & {*m[:2]} for other, m in left)

    while left:
        for item in left:
            if is_ready(*item):
                ready.setdefault(item, now)
        taken, gone = set(), []
        waiting = [item for item in left if item in ready]
        for item in sorted(waiting, key=lambda item: (ready[item], item[1][:2])):
            needs = {("out", item[1].sender), ("in", item[1].receiver)}
            if not needs & taken:
                taken |= needs
                gone.append(item)
        left = [item for item in left if item not in gone]
        now += 1
    return now


@pytest.mark.parametrize("seed", range(60))
def test_any_schedule_takes_as_long_as_second_by_second(seed):
    chance = random.Random(seed)
    ranks = chance.randint(2, 7)
    pairs = list(itertools.permutations(range(ranks), 2))
    steps = [
        [Message(*pair) for pair in chance.sample(pairs, chance.randint(0, len(pairs)))]
        for _ in range(chance.randint(1, 6))
    ]
    assert seconds(*steps) == simulate_second_by_second(steps)


def test_moments_that_are_the_same_are_equal_in_whatever_order_they_were_summed():
    """In floats rank 1 would come an instant after rank 9, and be served after it."""
    assert 0.1 + 0.2 + 0.3 > 0.3 + 0.2 + 0.1
    tenths = {1: 6, 2: 3, 3: 2}  # of a second: so many parts of 6 bytes
    steps = [
        [Message(1, 6, parts=tenths[a]), Message(9, 7, parts=tenths[4 - a])]
        for a in tenths
    ]
    steps += [[Message(1, 0), Message(9, 0)], [Message(9, 2)]]
    network = Network(Link(0.0, 10.0))
    found = simulate_messages(steps, 6.0, network=network)
    assert found == pytest.approx(0.6 + 2 * 0.6 + 0.6)


def test_nothing_to_do_takes_no_time():
    assert seconds() == seconds([]) == seconds([], []) == 0
    assert list(ring(1)) == list(tree(1)) == list(through_root(1)) == []


def test_a_schedule_may_be_a_list_or_a_generator():
    network = Network(LINK)
    once, again = (
        simulate_messages(make(ring(5)), 1e6, network=network) for make in (list, iter)
    )
    assert once == again


# Counts


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_counts_are_those_of_the_literature(ranks):
    counts = {name: count_messages(s(ranks), 1.0) for name, s in SCHEDULES.items()}
    levels = math.ceil(math.log2(ranks))
    assert [counts[name]["steps"] for name in SCHEDULES] == [
        2 * (ranks - 1),
        2 * levels,
        2 * (ranks - 1),
    ]
    assert [counts[name]["messages"] for name in SCHEDULES] == [
        2 * (ranks - 1),
        2 * (ranks - 1),
        2 * (ranks - 1) * ranks,
    ]
    for side in ("most_bytes_sent", "most_bytes_received"):
        assert counts["root"][side] == ranks - 1
        assert counts["tree"][side] == levels
        assert counts["ring"][side] == pytest.approx(2 * (ranks - 1) / ranks)


def test_the_busiest_sender_and_the_busiest_receiver_may_be_two_ranks():
    steps = [[Message(0, 2), Message(1, 2), Message(0, 3, 0, 4)], []]
    assert count_messages(steps, 8.0) == {
        "steps": 2,
        "messages": 3,
        "most_bytes_sent": 10.0,
        "most_bytes_received": 16.0,
    }
    nothing = dict.fromkeys(count_messages(steps, 8.0), 0)
    assert count_messages([], 8.0) == nothing


# What cannot be


BAD = {
    "sends nothing to itself": Message(3, 3),
    "no part 2": Message(0, 1, part=2, parts=2),
    "no part -1": Message(0, 1, part=-1, parts=2),
    "in 0 parts": Message(0, 1, part=0, parts=0),
    "counted from 0": Message(0, -1),
}


@pytest.mark.parametrize("words", BAD)
def test_messages_that_cannot_be(words):
    good = Message(0, 1, part=1, parts=2)
    for steps in ([[BAD[words]]], [[good], [good, BAD[words]]]):
        with pytest.raises(ValueError, match=f"simulate_messages.*{words}"):
            simulate_messages(steps, 1.0, network=Network(LINK))
        with pytest.raises(ValueError, match=f"count_messages.*{words}"):
            count_messages(steps, 1.0)


@pytest.mark.parametrize("size", [-1.0, math.inf, math.nan])
def test_bytes_that_cannot_be(size):
    with pytest.raises(ValueError, match=f"message_bytes={size}"):
        simulate_messages([], size, network=Network(LINK))
    with pytest.raises(ValueError, match=f"message_bytes={size}"):
        count_messages([], size)


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({"link": Link(-1.0, 1.0)}, r"link\.latency_seconds=-1\.0"),
        ({"link": Link(math.nan, 1.0)}, r"link\.latency_seconds=nan"),
        ({"link": Link(1.0, 0.0)}, r"link\.bytes_per_second=0\.0"),
        ({"ranks_per_machine": 4}, "ranks_per_machine=4.*between="),
        ({"cards_per_machine": 4}, "cards_per_machine=4.*between="),
        ({"between": OUTSIDE}, "ranks_per_machine="),
        ({"between": OUTSIDE, "ranks_per_machine": 0}, "ranks_per_machine=0"),
        (
            {"between": OUTSIDE, "ranks_per_machine": 4, "cards_per_machine": 0},
            "cards_per_machine=0",
        ),
        (
            {"between": Link(1.0, -2.0), "ranks_per_machine": 4},
            r"between\.bytes_per_second=-2\.0",
        ),
    ],
)
def test_networks_that_cannot_be(known, words):
    with pytest.raises(ValueError, match=rf"Network\(\): .*{words}"):
        Network(**{"link": LINK} | known)


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
@pytest.mark.parametrize("n", [4, 7, 32])
def test_a_simulated_crossover_is_that_of_the_formulas(n, link):
    wanted = find_crossover(n, link=link)
    assert simulate_crossover(tree, ring, n, link=link) == pytest.approx(wanted, 0.01)


def test_a_crossover_at_nothing_and_one_that_never_comes():
    assert simulate_crossover(through_root, ring, 8, link=LINK) == 0
    assert simulate_crossover(tree, through_root, 8, link=LINK) == math.inf
