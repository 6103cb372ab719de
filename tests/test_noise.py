"""How small a difference can be seen: arithmetic on a false clock, manners, state."""

import dataclasses
import inspect
import math
import random
import statistics
import sys

import pytest
import torch
from helpers import change_everything, reader_state
from test_ratio import make_machine

import kit
from kit import stats
from kit.machine import facts, noise
from kit.machine.noise import Noise, compute_smallest_difference, measure_noise

IDLE = {
    "others_cores": 0.0,
    "cores_per_thread": 1.0,
    "waiting": 0.0,
    "stolen": 0.0,
    "throttled": 0.0,
    "unsteady": 0.0,
}


def make_noise(**changes):
    fields = {
        "smallest_difference": 0.031,
        "by_work": {"python": 0.024, "matmul": 0.031},
        "conditions": IDLE,
        "seconds": 5.0,
    }
    return Noise(**fields | changes)


# ---------------------------------------------------------------- arithmetic


def put_interval(monkeypatch, low, high):
    estimate = stats.Estimate((low + high) / 2, low, high)
    monkeypatch.setattr(stats, "grouped_interval", lambda octets: estimate)


@pytest.mark.parametrize(
    ("pairs", "student"), [(8, (2.36462, 1.41492)), (5, (2.77645, 1.53321))]
)
def test_the_smallest_difference_by_hand(monkeypatch, pairs, student):
    put_interval(monkeypatch, -0.012, 0.008)
    found = compute_smallest_difference([[0.0]] * pairs)
    bound, nine_in_ten = student
    expected = math.log(1.02) + 0.01 * (1 + nine_in_ten / bound)
    assert math.log1p(found) == pytest.approx(expected, abs=1e-6)


def test_the_default_length_is_that_of_compare():
    default = inspect.signature(kit.compare).parameters["seconds"].default
    assert default == noise.COMPARISON_SECONDS


def draw_octets(rng, truth=0.0):
    """Return 8 pairs of 2 octets: set-ups differ by 0.4 %, octets by 1 %."""
    pairs = [truth + rng.gauss(0, 0.004) for _ in range(8)]
    return [[rng.gauss(middle, 0.01) for _ in range(2)] for middle in pairs]


def test_what_it_promises_is_called_about_nine_times_in_ten():
    rng = random.Random(3)
    promised = statistics.mean(
        compute_smallest_difference(draw_octets(rng)) for _ in range(40)
    )
    truth = math.log1p(promised)
    called = sum(
        stats.grouped_interval(draw_octets(rng, truth)).low > math.log(stats.SAME)
        for _ in range(200)
    )
    assert 0.84 * 200 <= called <= 0.98 * 200, called


# ---------------------------------------------------------------- the protocol


class Works:
    """Stands in for both kinds of work: a step takes what `seconds(self)` says."""

    def __init__(self, clock, monkeypatch, seconds, delay=0.0):
        self.clock, self.seconds, self.delay = clock, seconds, delay
        self.made = 0
        self.steps = []
        monkeypatch.setattr(noise, "_make_python", self.make)
        monkeypatch.setattr(noise, "_make_matmul", self.make)
        monkeypatch.setattr(noise, "time_sentinel", lambda: 0.001)

    def make(self):
        self.made += 1
        number = self.made

        def step():
            self.steps.append(number)
            self.clock.work(self.seconds(), delay=self.delay)

        return step


def test_on_a_perfect_machine_only_the_zone_of_sameness_is_left(clock, monkeypatch):
    Works(clock, monkeypatch, lambda: 0.001)
    found = measure_noise()
    assert found.smallest_difference == pytest.approx(stats.SAME - 1)
    assert found.by_work == pytest.approx({"python": 0.02, "matmul": 0.02})
    assert found.conditions["unsteady"] == 0


def test_it_takes_about_as_long_as_it_is_told(clock, monkeypatch):
    Works(clock, monkeypatch, lambda: 0.001)
    for seconds in (5.0, 12.0):
        begun = clock.now
        found = measure_noise(seconds)
        assert found.seconds == pytest.approx(clock.now - begun)
        assert 0.8 * seconds < found.seconds < 1.2 * seconds


def test_a_neighbour_does_not_make_it_much_longer(clock, monkeypatch):
    Works(clock, monkeypatch, lambda: 0.002, delay=0.001)
    assert measure_noise().seconds < 9


def test_smoke_is_short(clock, monkeypatch):
    monkeypatch.setenv("KIT_SMOKE", "1")
    Works(clock, monkeypatch, lambda: 0.0001)
    assert measure_noise().seconds < 0.4


def test_blocks_last_20_ms_and_alternate_in_rounds(clock, monkeypatch):
    works = Works(clock, monkeypatch, lambda: 1 / 1024)  # 21 steps make a block
    measure_noise()
    assert works.made == 2 * 16 * 2, "sixteen set-ups of two, for two kinds of work"
    for number in range(1, works.made, 2):
        steps = [s for s in works.steps if s in (number, number + 1)]
        # A block of warm-up each, then rounds of four blocks, a step before each.
        blocks = [steps[:21], steps[21:42]]
        blocks += [steps[i : i + 22] for i in range(42, len(steps), 22)]
        assert all(len(set(block)) == 1 for block in blocks)
        assert [len(block) for block in blocks] == [21, 21] + [22] * (len(blocks) - 2)
        order = [block[0] for block in blocks]
        assert order[0] != order[1]
        assert len(order) % 4 == 2 < len(order)
        for a, b, c, d in zip(*(order[2 + i :: 4] for i in range(4)), strict=True):
            assert a == d != b == c


def test_a_block_is_20_ms_without_the_waiting_for_others(clock, monkeypatch):
    works = Works(clock, monkeypatch, lambda: 3 / 1024, delay=2 / 1024)
    assert measure_noise().smallest_difference == pytest.approx(0.02)
    assert works.steps[:42] == [1] * 21 + [2] * 21, "21 ms of its own, 63 ms of wall"


def test_either_is_warmed_up_first_in_one_set_up_of_a_pair(clock, monkeypatch):
    works = Works(clock, monkeypatch, lambda: 0.001)
    measure_noise()
    order = list(dict.fromkeys(works.steps))
    assert order[:9] == [1, 2, 4, 3, 5, 6, 8, 7, 9]


@pytest.mark.parametrize("position", [0, 1])
def test_what_is_created_first_may_be_slower_without_harm(clock, monkeypatch, position):
    works = Works(clock, monkeypatch, lambda: 0.001)
    works.seconds = lambda: 0.0011 if works.steps[-1] % 2 == position else 0.001
    assert measure_noise().smallest_difference == pytest.approx(0.02, abs=1e-6)


def jittery(spread):
    rng = random.Random(7)
    return lambda: 0.012 * math.exp(rng.gauss(0, spread))


def test_the_more_it_jitters_the_less_can_be_seen(clock, monkeypatch):
    seen = []
    for spread in (0.001, 0.02, 0.2):
        Works(clock, monkeypatch, jittery(spread))
        seen.append(measure_noise().smallest_difference)
    assert 0.02 < seen[0] < 0.03 < seen[1] < 0.1 < seen[2], seen


def test_the_worst_kind_counts(clock, monkeypatch):
    works = Works(clock, monkeypatch, lambda: 0.012)
    jitter = jittery(0.1)
    works.seconds = lambda: 0.012 if works.made <= 32 else jitter()
    found = measure_noise()
    assert found.by_work["python"] == pytest.approx(0.02)
    assert found.smallest_difference == found.by_work["matmul"] > 0.05


def test_it_is_the_same_twice(clock, monkeypatch):
    def once():
        clock.now = 100.0
        Works(clock, monkeypatch, jittery(0.02))
        return measure_noise().by_work

    assert once() == once()


# ---------------------------------------------------------------- manners


def test_the_real_work_is_measured(smoke):
    found = kit.this_machine().noise()
    assert list(found.by_work) == ["python", "matmul"]
    assert 0.02 <= found.smallest_difference < math.inf
    assert found.smallest_difference == max(found.by_work.values())
    assert found.skipped == {}
    assert set(found.conditions) == set(IDLE)


def test_the_readers_state_stays_as_it_is(smoke):
    change_everything()
    before = reader_state()
    kit.this_machine().noise()
    assert reader_state() == before


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_it_works_in_any_mode(smoke, mode):
    with mode(), torch.device("meta"):
        assert kit.this_machine().noise().smallest_difference >= 0.02


def test_it_can_be_interrupted(clock, monkeypatch):
    def interrupt():
        if len(works.steps) == 500:
            raise KeyboardInterrupt
        return 0.001

    works = Works(clock, monkeypatch, interrupt)
    before = reader_state()
    with pytest.raises(KeyboardInterrupt):
        measure_noise()
    assert len(works.steps) == 500
    assert reader_state() == before


def test_without_pytorch_python_is_left_and_the_reason_told(smoke, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        found = measure_noise()
    assert list(found.by_work) == ["python"]
    assert "PyTorch cannot be imported" in found.skipped["matmul"]
    assert "PyTorch cannot be imported" in repr(found)
    assert found.smallest_difference == found.by_work["python"]


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf, True, "5", None])
def test_what_is_no_time_is_refused(bad):
    with pytest.raises(ValueError, match="seconds"):
        kit.this_machine().noise(seconds=bad)


def test_a_recorded_machine_cannot_be_measured_here():
    with pytest.raises(ValueError, match="imaginary-2-cores") as caught:
        make_machine().noise()
    assert "kit.this_machine().noise()" in str(caught.value)


def test_other_threads_are_the_same_machine(smoke, monkeypatch):
    asked = []
    monkeypatch.setattr(facts, "measure_noise", asked.append)
    here = kit.this_machine()
    dataclasses.replace(here, threads=(here.threads or 1) + 1).noise(3.0)
    assert asked == [3.0]


# ---------------------------------------------------------------- reports


def test_the_report_is_a_sentence_and_a_table():
    first, *table = repr(make_noise()).splitlines()
    assert first == (
        "Here and now a comparison of 4 s sees a difference of 3.1 % nine times in ten."
    )
    assert [line.split("  ")[0] for line in table] == [
        *("plain Python", "torch matmul", "other programs"),
        *("stolen", "throttled", "speed changes"),
    ]
    assert "2.4 %" in table[0]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("others_cores", 0.4, "other programs used 0.4 cores: close them to see"),
        ("stolen", 0.1, "the host gave 0.10 cores"),
        ("throttled", 0.3, "a quota stopped us 30% of the time"),
        ("unsteady", 0.2, "speed changed by ±20%"),
    ],
)
def test_the_sentence_names_what_stands_in_the_way(name, value, words):
    assert words in make_noise(conditions=IDLE | {name: value}).sentence()


def test_a_large_difference_is_written_without_a_false_digit():
    assert (
        "a difference of 23 % nine" in make_noise(smallest_difference=0.234).sentence()
    )


def test_html_says_the_same_and_is_escaped():
    html = make_noise(skipped={"matmul": "<no> torch"})._repr_html_()
    assert "sees a difference of 3.1 %" in html
    assert "&lt;no&gt;" in html
    assert "<no>" not in html


def test_conditions_without_a_sentinel_can_be_shown():
    calm = {name: value for name, value in IDLE.items() if name != "unsteady"}
    assert "speed changes" not in repr(make_noise(conditions=calm))
