"""Experiments on several processes: `measure`, `compare` and `explore` with `on=`."""

import itertools
import json
import os
import threading
import time

import pytest
import torch
import torch.distributed as dist
from helpers import OLDER_CHILDREN, children
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import kit
from kit.experiment import ExperimentError, resolve
from kit.measurement import measure_watched
from kit.progress import Progress
from kit.ranks import RankError

TIMEOUT = 4


@pytest.fixture(scope="module")
def ranks():
    """Two ranks that do not wait long for each other."""
    with kit.start_ranks(2, timeout=TIMEOUT) as started:
        OLDER_CHILDREN.update(children())
        yield started


def reduce(*, size=1000):
    """Add up over all ranks."""
    numbers = torch.ones(size)
    while True:
        dist.all_reduce(numbers)
        numbers /= dist.get_world_size()
        yield 8, {"sum": numbers.sum(), "rank": dist.get_rank()}


def count(*, steps=30):
    """Count to the end."""
    yield 1
    for step in range(1, steps):
        dist.barrier()
        yield 1, {"step": step}


def usable(ranks):
    return ranks.run(dist.get_rank) == [0, 1]


# Measure


def test_items_of_all_ranks_are_summed_and_every_ranks_times_are_kept(ranks):
    trial = kit.measure(reduce, on=ranks, seconds=0.3)
    assert trial.outcome in ("complete", "not settled")
    assert trial.knobs == {"ranks": 2, "size": 1000}
    assert [n / 16 for n in trial.block_items] == [b.steps for b in trial.blocks]
    assert set(trial.metrics["sum"]) == {1000.0}
    assert set(trial.metrics["rank"]) == {0.0}
    for block in trial.blocks:
        each = block.rank_seconds
        assert len(each) == 2
        # A block may be several stretches, of which the slowest rank's counts.
        assert max(each) <= block.seconds == block.wall_seconds <= sum(each)
    assert any("On ranks 0, 1: cpu" in note for note in trial.notes)


def test_a_view_is_a_world_of_its_own(ranks):
    def train():
        while True:
            time.sleep(0.001)
            yield 1, {"size": dist.get_world_size(), "rank": dist.get_rank()}

    for view in (ranks[:1], ranks[1:]):
        trial = kit.measure(train, on=view, seconds=0.1)
        assert trial.knobs == {"ranks": 1}
        assert set(trial.metrics["size"]) == {1.0}
        assert set(trial.metrics["rank"]) == {0.0}
    assert usable(ranks)


def test_whole_runs_end_on_all_ranks(ranks):
    trial = kit.measure(count, on=ranks, seconds=None, repeats=2, steps=40)
    assert [block.steps for block in trial.blocks] == [39, 39]
    assert trial.metrics["step"] == [*range(1, 40)] * 2
    assert trial.whole_runs


def test_a_generator_that_ends_is_started_again_on_all_ranks(ranks):
    def train():
        for step in range(800):  # longer than warm-up, shorter than a life
            time.sleep(0.001)
            yield 1, {"step": step}

    steps = kit.measure(train, on=ranks, seconds=10.0).metrics["step"]
    starts = sum(after < before for before, after in itertools.pairwise(steps))
    assert starts > 5, "five lives begin anew; a generator that ends adds to them"


def test_seeds_are_alike_and_state_is_the_readers_afterwards(ranks):
    def draw():
        yield 1
        yield 1, {"number": torch.rand(())}

    before = ranks.run(torch.get_rng_state)
    first = kit.measure(draw, on=ranks, seconds=None, repeats=2)
    second = kit.measure(draw, on=ranks[1:], seconds=None, repeats=2)
    assert first.metrics["number"] == second.metrics["number"]
    assert len({*first.metrics["number"]}) == 2
    after = ranks.run(torch.get_rng_state)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_what_an_experiment_closes_over_is_put_back_at_each_start(ranks):
    model = nn.Linear(1, 1)

    def train():
        for _ in range(3):
            with torch.no_grad():
                model.weight += 1
            yield 1, {"weight": model.weight.detach()}

    trial = kit.measure(train, on=ranks, seconds=None, repeats=2)
    start = model.weight.item()
    assert trial.metrics["weight"] == pytest.approx([start + 2, start + 3] * 2)
    assert any("put back at each start: model" in note for note in trial.notes)


def test_a_rank_may_handle_nothing_in_a_step(ranks):
    def train():
        while True:
            time.sleep(0.001)
            yield 5 * dist.get_rank()

    trial = kit.measure(train, on=ranks, seconds=0.1)
    assert [5 * block.steps for block in trial.blocks] == trial.block_items


def test_nobody_may_handle_nothing(ranks):
    def train():
        while True:
            time.sleep(0.001)
            yield 0

    with pytest.raises(ExperimentError, match="handled no items on any rank"):
        kit.measure(train, on=ranks, seconds=0.1)
    assert usable(ranks)


def helps_without_a_yield():
    if dist.get_rank() == 0:
        return
    while True:
        time.sleep(0.001)
        yield 3


def serves_without_a_yield():
    while dist.get_rank() == 1:
        time.sleep(0.01)
    while True:
        time.sleep(0.001)
        yield 3


@pytest.mark.parametrize(
    ("experiment", "said"),
    [
        (helps_without_a_yield, "rank 0 ended before a first `yield`"),
        (serves_without_a_yield, "rank 1 came to no first `yield`, others did"),
    ],
)
def test_each_rank_comes_to_a_yield(ranks, experiment, said):
    with pytest.raises(RankError) as caught:
        kit.measure(experiment, on=ranks, seconds=0.1)
    print(caught.value)
    assert said in str(caught.value) and "let it yield 0" in str(caught.value)
    assert usable(ranks)


def test_who_starts_later_is_not_waited_for_within_a_block(ranks):
    """Two ranks whose clocks start apart are not charged for it."""

    def train():
        while True:
            dist.barrier()
            time.sleep(0.01)
            yield 1

    variant = ranks.prepare(resolve(train), {})
    with variant.lead(0, Progress("testing")) as life:
        life.open()
        life.time(1)
        ranks._engines.send(1, start_late)
        block = life.time(5)
    assert block.steps == 5 and 0.05 <= block.seconds < LATE


LATE = 0.6


def start_late(rank):
    time.sleep(LATE)


def test_a_rank_that_takes_longer_to_set_up_is_no_helper(ranks):
    def train():
        if dist.get_rank() == 1:
            time.sleep(1.6)
        while True:
            time.sleep(0.002)
            dist.barrier()
            yield 3

    trial = kit.measure(train, on=ranks, seconds=0.2)
    assert [6 * block.steps for block in trial.blocks] == trial.block_items


def test_printed_lines_come_with_their_rank(ranks, capsys):
    def train():
        for step in range(3):
            print("step", step)
            yield 1

    kit.measure(train, on=ranks, seconds=None)
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == [f"[{r}] step {s}" for r in range(2) for s in range(3)]


def test_a_set_up_on_ranks_prints_at_the_first_start_alone(ranks, capsys):
    def train():
        print("set-up")
        for step in range(2):
            print("step", step)
            yield 1

    kit.measure(train, on=ranks, seconds=None, repeats=3)
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line for line in lines if "set" in line) == [
        "[0] set-up",
        "[1] set-up",
    ]
    assert lines.count("[0] step 1") == 3


# Compare and explore


def test_places_are_a_choice(ranks):
    made = kit.compare(reduce, on=[ranks[:1], ranks], seconds=1.0, repeats=2)
    assert made.labels == ["ranks=1", "ranks=2"]
    assert [trial.knobs["ranks"] for trial in made.trials] == [1, 2]
    assert {len(block.rank_seconds) for block in made.trials[1].blocks} == {2}


def test_places_come_before_other_choices(ranks):
    made = kit.compare(
        reduce,
        on=[ranks[:1], ranks],
        size=[1000, 10],
        of="setup_seconds",
        repeats=2,
        seconds=0.2,
    )
    assert made.labels == [
        "ranks=1, size=1000",
        "ranks=1, size=10",
        "ranks=2, size=1000",
        "ranks=2, size=10",
    ]


def test_two_experiments_are_compared_on_the_same_ranks(ranks):
    made = kit.compare(
        {"one": count, "other": count}, on=ranks, seconds=None, repeats=2
    )
    assert made.labels == ["one", "other"]
    assert {trial.knobs["ranks"] for trial in made.trials} == {2}


def test_a_panel_runs_on_ranks(ranks):
    panel = kit.explore(reduce, on=[ranks[:1], ranks], size=[1000, 10], seconds=0.2)
    assert panel.run(ranks=2, size=10).knobs == {"ranks": 2, "size": 10}
    assert panel.run(ranks=1).knobs == {"ranks": 1, "size": 1000}
    with pytest.raises(ExperimentError, match="ranks=3 cannot be chosen here"):
        panel.run(ranks=3)


def test_a_trial_on_ranks_is_saved_and_loaded(ranks, tmp_path):
    trial = kit.measure(count, on=ranks, seconds=None)
    kit.save([trial], tmp_path / "trial.json")
    (loaded,) = kit.load(tmp_path / "trial.json")
    for block, measured in zip(loaded.blocks, trial.blocks, strict=True):
        assert block.rank_seconds == measured.rank_seconds
    assert loaded.knobs == trial.knobs


# Timeline and diagnosis


def train_in_parallel(*, width=512, batch_size=8):
    """Train with DDP, where gradients are much and computing is little."""
    layers = [nn.Linear(width, width) for _ in range(6)]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        inputs = torch.randn(batch_size, width)
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield batch_size


def test_a_timeline_shows_every_rank_and_what_they_exchange(ranks, smoke, tmp_path):
    figure = kit.timeline(train_in_parallel, on=ranks, steps=2)
    for rank in range(2):
        assert f"rank {rank}: main thread" in figure.alt
        assert f"rank {rank}: exchange" in figure.alt
        both = f"rank {rank}: main thread and rank {rank}: exchange are busy at once"
        assert both in figure.alt
    events = json.loads(figure.save_trace(tmp_path / "trace.json").read_bytes())
    exchanged = [e for e in events["traceEvents"] if e.get("name") == "gloo:all_reduce"]
    assert {event["pid"] for event in exchanged} == {*ranks.run(os.getpid)}
    assert usable(ranks)


@pytest.mark.nightly
def test_a_diagnosis_leaves_out_the_exchange(ranks, smoke):
    found = kit.diagnose(train_in_parallel, on=ranks, seconds=2.0)
    assert "communication" in found.savings
    assert found.knobs == {"width": 512, "batch_size": 8}
    assert "cannot be left out" not in found.savings["communication"].reason
    verified = found.verify(train_in_parallel, seconds=0.5)
    assert verified.trials[0].knobs["ranks"] == found.profile.processes == 2
    assert usable(ranks)


# Stop and failures


def test_stop_acts_between_steps_and_leaves_the_ranks_alone(ranks):
    def train():
        while True:
            time.sleep(0.01)
            dist.barrier()
            yield 1

    for seconds in (60.0, None):
        pids = ranks.run(os.getpid)
        experiment = resolve(train)
        variant = ranks.prepare(experiment, {})
        with Progress("testing") as progress:
            threading.Timer(1.0, progress.stop).start()
            trial = measure_watched(variant, progress, seconds, 1)
        assert trial.outcome == "stopped"
        assert ranks.run(os.getpid) == pids


def test_a_step_that_does_not_end_can_be_abandoned(ranks):
    def train():
        yield 1
        yield 1
        time.sleep(3600)
        yield 1

    variant = ranks.prepare(resolve(train), {})

    def abandon():
        progress.stop()
        progress.abandoned = True

    with Progress("testing") as progress:
        threading.Timer(1.0, abandon).start()
        trial = measure_watched(variant, progress, 5.0, 1)
    assert trial.outcome == "stopped"
    assert usable(ranks)


def test_the_culprit_is_named_and_not_the_victim(ranks):
    def train():
        yield 1
        for step in range(10**9):
            if step == 3 and dist.get_rank() == 1:
                raise ValueError("no such file")
            dist.barrier()
            yield 1

    with pytest.raises(RankError) as caught:
        kit.measure(train, on=ranks, seconds=1.0)
    first, second, third, last = str(caught.value).splitlines()
    assert first == "train() failed on rank 1: ValueError: no such file"
    assert "in train: raise ValueError" in second
    assert third.startswith("  rank 0: ") and "dist.barrier()" in third
    assert last == "The ranks can be used again."
    assert caught.value.ranks == (1,)
    assert usable(ranks)


def test_what_the_kit_refuses_is_told_as_it_is(ranks):
    def train():
        yield 1
        yield -1

    with pytest.raises(RankError, match=r"train\(\) yielded -1"):
        kit.measure(train, on=ranks, seconds=0.1)
    assert usable(ranks)


@pytest.mark.parametrize("together", [True, False], ids=["together", "apart"])
def test_ends_that_are_not_equal_are_an_error_with_ranks_and_steps(ranks, together):
    def train():
        for _ in range(9 - 4 * dist.get_rank()):
            if together:
                dist.barrier()
            yield 1

    with pytest.raises(RankError) as caught:
        kit.measure(train, on=ranks, seconds=None)
    said = str(caught.value)
    print(said)
    assert "rank 1 ended after 4 steps" in said
    assert ("rank 0 did not" if together else "rank 0 ended after 8 steps") in said
    assert "equal steps" in said
    assert ("dist.barrier()" in said) == together
    assert usable(ranks)


def test_ranks_that_do_not_agree_are_told_where_each_waits(ranks):
    def train():
        yield 1
        while True:
            if dist.get_rank() == 0:
                dist.barrier()
            else:
                time.sleep(3600)
            yield 1

    with pytest.raises(RankError, match="do not agree") as caught:
        kit.measure(train, on=ranks, seconds=1.0)
    assert "rank 0: " in str(caught.value) and "dist.barrier()" in str(caught.value)
    assert "rank 1: " in str(caught.value) and "time.sleep" in str(caught.value)
    assert usable(ranks)


def test_no_yield_on_any_rank_is_an_error(ranks):
    def train():
        for _ in []:
            yield 1

    with pytest.raises(ExperimentError, match="without a single `yield n`"):
        kit.measure(train, on=ranks, seconds=0.1)
    assert usable(ranks)


@pytest.mark.parametrize("on", [2, "ranks", (1, 2), [], [3]])
@pytest.mark.parametrize("call", [kit.measure, kit.compare, kit.explore])
def test_what_is_no_place_is_refused(call, on):
    with pytest.raises(ExperimentError, match="on="):
        call(reduce, on=on)


def test_a_list_of_places_is_a_choice_and_not_for_measure(ranks):
    with pytest.raises(ExperimentError, match="a choice for compare"):
        kit.measure(reduce, on=[ranks[:1], ranks])


def test_a_knob_called_ranks_is_refused(ranks):
    def train(*, ranks=2):
        yield ranks

    with pytest.raises(ExperimentError, match=r"ranks=2\) has a knob"):
        kit.measure(train, on=ranks)


def test_what_cannot_be_sent_is_refused(ranks):
    lock = threading.Lock()

    def train():
        with lock:
            yield 1

    with pytest.raises(ExperimentError, match="cannot be sent to the ranks"):
        kit.measure(train, on=ranks)
