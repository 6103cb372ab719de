"""All-reduce in closed form, links fitted to measurements, and what cannot be."""

import inspect
import math
import random

import pytest

from kit.costs import (
    LINKS,
    Link,
    find_crossover,
    fit_link,
    predict_all_reduce,
    predict_data_parallel,
)

INSIDE, OUTSIDE = Link(2e-6, 450e9), Link(4e-6, 50e9)
MACHINES = {"link": INSIDE, "between": OUTSIDE, "ranks_per_machine": 8}
FLAT = ["root", "tree", "ring"]


# Links


def test_named_links_are_those_of_the_standards():
    gbit = {name: round(8e-9 * link.bytes_per_second) for name, link in LINKS.items()}
    assert gbit == {
        "Ethernet, 1 Gbit/s": 1,
        "Ethernet, 100 Gbit/s": 100,
        "PCIe 5 x16": 504,  # 32 GT/s on 16 lanes, 128 bits in 130
        "InfiniBand NDR": 400,
        "NVLink 4": 3600,
        "NVLink 5": 7200,
    }
    assert round(32 * 16 * 128 / 130) == 504
    assert all(1e-6 < link.latency_seconds < 1e-4 for link in LINKS.values())


@pytest.mark.parametrize("algorithm", FLAT)
@pytest.mark.parametrize("factor", [0.5, 1, 1000])
def test_on_a_slowed_link_everything_takes_so_many_times_as_long(algorithm, factor):
    for size in (0, 1e3, 1e9):
        time, slowed = (
            predict_all_reduce(algorithm, 5, size, link=link)
            for link in (OUTSIDE, OUTSIDE.slowed(factor))
        )
        assert slowed == pytest.approx(factor * time)


@pytest.mark.parametrize("factor", [0, -1, math.nan, math.inf])
def test_factors_that_cannot_be(factor):
    with pytest.raises(ValueError, match=f"factor={factor}"):
        OUTSIDE.slowed(factor)


# All-reduce


def test_one_rank_alone_sends_nothing():
    for algorithm in FLAT:
        assert predict_all_reduce(algorithm, 1, 1e9, link=INSIDE) == 0.0
        assert predict_all_reduce(algorithm, 1, 1e9, **MACHINES) == 0.0
    one = MACHINES | {"ranks_per_machine": 1}
    assert predict_all_reduce("hierarchical", 1, 1e9, **one) == 0.0


def test_the_latency_counts_messages_in_a_row_and_the_bytes_what_one_rank_sends():
    late, slow = Link(1.0, math.inf), Link(0.0, 1.0)
    for ranks, levels in ((2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (1024, 10)):
        others = ranks - 1
        row = [predict_all_reduce(a, ranks, 1.0, link=late) for a in FLAT]
        assert row == [2 * others, 2 * levels, 2 * others]
        sent = [predict_all_reduce(a, ranks, 1.0, link=slow) for a in FLAT]
        assert sent == pytest.approx([2 * others, 2 * levels, 2 * others / ranks])


def test_the_ring_is_that_of_training_on_several_ranks():
    for ranks in (2, 3, 64):
        found = predict_all_reduce("ring", ranks, 1e8, link=Link(0.0, 1e9))
        expected = predict_data_parallel(
            ranks, compute_seconds=0.0, gradient_bytes=1e8, bytes_per_second=1e9
        )
        assert found == pytest.approx(expected)


def test_over_machines_the_slowest_hop_sets_the_step():
    slow = predict_all_reduce("ring", 16, 1e8, link=OUTSIDE)
    assert predict_all_reduce("ring", 16, 1e8, **MACHINES) == slow
    assert predict_all_reduce("ring", 16, 1e8, **MACHINES | {"link": OUTSIDE}) == slow
    upside_down = {"link": OUTSIDE, "between": INSIDE}
    assert predict_all_reduce("ring", 16, 1e8, **MACHINES | upside_down) == slow


@pytest.mark.parametrize("algorithm", FLAT)
def test_ranks_of_one_machine_never_use_the_network(algorithm):
    alone = predict_all_reduce(algorithm, 7, 1e6, link=INSIDE)
    assert predict_all_reduce(algorithm, 7, 1e6, **MACHINES) == alone


def test_a_hierarchy_of_one_machine_and_one_of_single_ranks_are_rings():
    for machines, link in ((8, INSIDE), (1, OUTSIDE)):
        known = MACHINES | {"ranks_per_machine": machines}
        flat = predict_all_reduce("ring", 8, 1e6, link=link)
        found = predict_all_reduce("hierarchical", 8, 1e6, **known)
        assert found == pytest.approx(flat)


def test_a_hierarchy_sends_an_eighth_over_each_card_where_each_rank_has_one():
    known = MACHINES | {"link": Link(0.0, math.inf), "between": Link(0.0, 1.0)}
    own, two, one = (
        predict_all_reduce("hierarchical", 64, 64.0, **known, cards_per_machine=cards)
        for cards in (None, 2, 1)
    )
    assert own == 2 * 7 * 1.0  # 7 neighbours there and back, 64 / (8 × 8) bytes each
    assert (two, one) == (4 * own, 8 * own)
    flat = predict_all_reduce("ring", 64, 64.0, **known)
    assert flat == 2 * 63 * 1.0
    three = predict_all_reduce("hierarchical", 64, 64.0, **known, cards_per_machine=3)
    assert three == 3 * own  # 8 ranks on 3 cards: 3, 3 and 2
    many = predict_all_reduce("hierarchical", 64, 64.0, **known, cards_per_machine=99)
    assert many == own


@pytest.mark.parametrize(
    ("algorithm", "ranks", "size", "known", "words"),
    [
        ("Ring", 2, 1, {}, "algorithm='Ring'; there are 'root', 'tree', 'ring', 'hier"),
        ("ring", 0, 1, {}, "ranks=0"),
        ("ring", 2, -1, {}, "message_bytes=-1"),
        ("ring", 2, math.nan, {}, "message_bytes=nan"),
        ("ring", 2, 1, {"link": Link(-1, 1)}, "latency_seconds=-1"),
        ("ring", 2, 1, {"link": Link(1, 0)}, "bytes_per_second=0"),
        ("ring", 2, 1, {"ranks_per_machine": 2}, "ranks_per_machine=2.*between="),
        ("ring", 2, 1, {"between": OUTSIDE}, "ranks_per_machine="),
        ("hierarchical", 2, 1, {}, "between="),
        ("hierarchical", 12, 1, MACHINES, "ranks=12.*ranks_per_machine=8"),
        ("hierarchical", 8, 1, MACHINES | {"cards_per_machine": 0}, "cards.*=0"),
    ],
)
def test_all_reduces_that_cannot_be(algorithm, ranks, size, known, words):
    with pytest.raises(ValueError, match=rf"predict_all_reduce\(\): .*{words}"):
        predict_all_reduce(algorithm, ranks, size, **{"link": INSIDE} | known)


# The crossover


@pytest.mark.parametrize("ranks", [5, 6, 8, 17, 1000])
@pytest.mark.parametrize("name", LINKS)
def test_at_the_crossover_both_take_as_long(name, ranks):
    link = LINKS[name]
    size = find_crossover(ranks, link=link)
    tree, ring = (predict_all_reduce(a, ranks, size, link=link) for a in FLAT[1:])
    assert tree == pytest.approx(ring)
    tree, ring = (predict_all_reduce(a, ranks, 2 * size, link=link) for a in FLAT[1:])
    assert ring < tree
    tree, ring = (predict_all_reduce(a, ranks, size / 2, link=link) for a in FLAT[1:])
    assert tree < ring


def test_where_one_is_always_faster():
    for ranks in (2, 3):  # as many messages in a row as in the tree, and fewer bytes
        assert find_crossover(ranks, link=OUTSIDE) == 0.0
    assert find_crossover(8, link=OUTSIDE, smaller="root") == 0.0
    assert find_crossover(8, link=OUTSIDE, smaller="root", larger="tree") == 0.0
    assert find_crossover(8, link=OUTSIDE, smaller="tree", larger="root") == math.inf
    assert find_crossover(8, link=OUTSIDE, smaller="ring", larger="tree") == math.inf
    assert find_crossover(8, link=OUTSIDE, smaller="ring", larger="ring") == math.inf
    assert find_crossover(8, link=Link(0.0, 1e9)) == 0.0
    assert find_crossover(8, link=Link(1e-6, math.inf)) == math.inf
    assert find_crossover(8, link=Link(0.0, math.inf)) == math.inf
    upside_down = {"smaller": "ring", "larger": "tree"}
    assert find_crossover(8, link=Link(1e-6, math.inf), **upside_down) == 0.0


@pytest.mark.parametrize(
    ("ranks", "known", "words"),
    [
        (1, {}, "ranks=1"),
        (4, {"smaller": "hierarchical"}, "smaller='hierarchical'; there are"),
        (4, {"larger": "star"}, "larger='star'"),
        (4, {"link": Link(math.inf, 1.0)}, "latency_seconds=inf"),
    ],
)
def test_crossovers_that_cannot_be(ranks, known, words):
    with pytest.raises(ValueError, match=rf"find_crossover\(\): .*{words}"):
        find_crossover(ranks, **{"link": OUTSIDE} | known)


# Fits


@pytest.mark.parametrize("algorithm", FLAT)
@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize("ranks", [2, 3, 64])
def test_a_link_is_found_again(algorithm, name, ranks):
    sizes = [8, 1e4, 1e6, 1e9]
    link = LINKS[name]
    times = [predict_all_reduce(algorithm, ranks, size, link=link) for size in sizes]
    found = fit_link(sizes, times, algorithm=algorithm, ranks=ranks)
    assert found == pytest.approx(link, rel=1e-6)
    two = fit_link(sizes[::3], times[::3], algorithm=algorithm, ranks=ranks)
    assert two == pytest.approx(link, rel=1e-6)


def test_relative_errors_are_least():
    """No link nearby is better, and short times count as much as long ones."""
    chance = random.Random(5)
    sizes = [10**power for power in range(2, 10)]
    times = [
        predict_all_reduce("ring", 4, size, link=OUTSIDE) * chance.uniform(0.8, 1.2)
        for size in sizes
    ]

    def miss(link):
        predicted = (predict_all_reduce("ring", 4, size, link=link) for size in sizes)
        return sum((p / t - 1) ** 2 for p, t in zip(predicted, times, strict=True))

    found = fit_link(sizes, times, algorithm="ring", ranks=4)
    for late in (0.99, 1, 1.01):
        for fast in (0.99, 1, 1.01):
            near = Link(found.latency_seconds * late, found.bytes_per_second * fast)
            assert miss(found) <= miss(near)
    assert found == pytest.approx(OUTSIDE, rel=0.2)


def test_times_that_do_not_grow_have_no_bandwidth_and_steep_ones_no_latency():
    flat = fit_link([1e3, 1e6], [3e-3, 2e-3], algorithm="tree", ranks=4)
    assert flat.bytes_per_second == math.inf
    assert 2e-3 / 4 < flat.latency_seconds < 3e-3 / 4
    steep = fit_link([1e3, 1e6], [1e-6, 1.0], algorithm="root", ranks=2)
    assert steep.latency_seconds == 0.0
    assert 2e6 < steep.bytes_per_second < 2e9
    assert fit_link([0, 1e6], [1e-3, 2e-3], algorithm="root", ranks=2) == (
        pytest.approx((5e-4, 2e9))
    )


@pytest.mark.parametrize(
    ("sizes", "seconds", "known", "words"),
    [
        ([], [], {}, "fewer than two"),
        ([1e3], [1.0], {}, "fewer than two"),
        ([1e3, 1e3], [1.0, 2.0], {}, "fewer than two"),
        ([1e3, 1e6], [1.0], {}, "2 sizes and 1 seconds"),
        ([1e3, 1e6], [1.0, 0.0], {}, r"1000000\.0 bytes in 0\.0 s"),
        ([1e3, 1e6], [1.0, math.nan], {}, "in nan s"),
        ([-1, 1e6], [1.0, 1.0], {}, "size -1"),
        ([1e3, 1e6], [1.0, 2.0], {"algorithm": "hierarchical"}, "algorithm='hier"),
        ([1e3, 1e6], [1.0, 2.0], {"ranks": 1}, "ranks=1"),
    ],
)
def test_fits_that_cannot_be(sizes, seconds, known, words):
    with pytest.raises(ValueError, match=rf"fit_link\(\): .*{words}"):
        fit_link(sizes, seconds, **{"algorithm": "ring", "ranks": 2} | known)


def test_signatures_are_the_agreed_ones():
    parameters = inspect.signature(predict_all_reduce).parameters
    assert list(parameters)[:3] == ["algorithm", "ranks", "message_bytes"]
    defaults = {name: p.default for name, p in list(parameters.items())[3:]}
    assert defaults.pop("link") is inspect.Parameter.empty
    assert set(defaults.values()) == {None}
    parameters = inspect.signature(find_crossover).parameters
    assert parameters["smaller"].default == "tree"
    assert parameters["larger"].default == "ring"
