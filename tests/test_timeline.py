"""The main thread's time is parted without a gap, rightly, and drawn as it was."""

import contextlib
import functools
import itertools
import json
import math
import os
import random
import tempfile
import time

import pytest
import torch
from helpers import children, refused
from torch import nn
from torch.autograd.profiler import record_function
from torch.utils.data import DataLoader, Dataset, TensorDataset

import kit
from kit.diagnosis import lines, phases, trace
from kit.diagnosis.interventions import installed
from kit.diagnosis.phases import PHASES, Segment
from kit.diagnosis.profiling import record, watched
from kit.diagnosis.timeline import describe_overlaps
from kit.diagnosis.trace import Event, Trace
from kit.experiment import ExperimentError, resolve
from kit.figures import Span
from kit.progress import Progress

pytestmark = pytest.mark.usefixtures("smoke")

STEPS = 3
PAUSE = 0.05


def profile(experiment, steps=STEPS, **knobs):
    """Return the profile of one life of an experiment."""
    resolved = resolve(experiment)
    bound = resolved.bind(knobs)
    with (
        Progress("testing") as progress,
        installed(),
        contextlib.closing(watched(None, resolved, bound)) as stage,
    ):
        (made,) = record(stage, progress, seconds=2.0, steps=steps)
        return made


# Training loops of every kind


class Slow(Dataset):
    """Two samples a batch take PAUSE together."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(PAUSE / 2)
        return torch.ones(4)


def mlp(outputs=3):
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, outputs))


def batch(size=8):
    return torch.randn(size, 16), torch.randint(3, (size,))


def plain(model, optimizer):
    """Do one plain step; return what the model said and what was right."""
    images, labels = batch()
    optimizer.zero_grad()
    outputs = model(images)
    loss = nn.functional.cross_entropy(outputs, labels)
    loss.backward()
    return outputs, labels, loss


def make(kind=torch.optim.SGD, **options):
    model = mlp()
    return model, kind(model.parameters(), lr=0.1, **options)


def ordinary():
    model, optimizer = make()
    while True:
        plain(model, optimizer)
        optimizer.step()
        yield 8


def slow_loader():
    model = nn.Linear(4, 1)
    while True:
        for data in DataLoader(Slow(), batch_size=2):
            model(data).sum().backward()
            yield 2


def slow_workers():
    loader = DataLoader(Slow(), batch_size=8, num_workers=1, persistent_workers=True)
    model = nn.Linear(4, 1)
    while True:
        for data in loader:
            model(data).sum().backward()
            yield 8


def slow_python():
    model, optimizer = make()
    while True:
        plain(model, optimizer)
        optimizer.step()
        time.sleep(PAUSE)
        yield 8


def slow_python_between_loss_and_backward():
    model = mlp(1)
    while True:
        loss = model(batch()[0]).sum()
        time.sleep(PAUSE)
        loss.backward()
        yield 8


def busy_python():
    model, optimizer = make()
    while True:
        plain(model, optimizer)
        optimizer.step()
        end = time.perf_counter() + PAUSE
        while time.perf_counter() < end:
            pass
        yield 8


def many_tensors():
    many = [nn.Parameter(torch.ones(4)) for _ in range(2000)]
    for parameter in many:
        parameter.grad = torch.ones(4)
    optimizer = torch.optim.SGD(many, lr=0.1, momentum=0.9, foreach=False)
    model = nn.Linear(4, 1)
    while True:
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        yield 1


def clipping():
    model, optimizer = make()
    while True:
        plain(model, optimizer)
        for parameter in model.parameters():
            norm = torch.linalg.vector_norm(parameter.grad)
            parameter.grad.mul_((1.0 / (norm + 1e-6)).clamp(max=1.0))
        optimizer.step()
        yield 8


def averaging():
    model, optimizer = make()
    average = [p.detach().clone() for p in model.parameters()]
    while True:
        plain(model, optimizer)
        optimizer.step()
        with torch.no_grad():
            for mean, parameter in zip(average, model.parameters(), strict=True):
                mean.lerp_(parameter, 0.01)
        yield 8


def clipping_by_pytorch():
    model, optimizer = make()
    while True:
        plain(model, optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        yield 8


def averaging_by_pytorch():
    model, optimizer = make()
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)
    )
    while True:
        plain(model, optimizer)
        optimizer.step()
        average.update_parameters(model)
        yield 8


def validating():
    model, optimizer = make()
    while True:
        plain(model, optimizer)
        optimizer.step()
        with torch.no_grad():
            model(batch()[0]).argmax(1)
        yield 8


def by_hand():
    model = mlp()
    while True:
        images, labels = batch()
        nn.functional.cross_entropy(model(images), labels).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.1)
                parameter.grad = None
        yield 8


def metrics():
    model, optimizer = make()
    while True:
        outputs, labels, _ = plain(model, optimizer)
        optimizer.step()
        right = 0
        for output, label in zip(outputs, labels, strict=True):
            right += (output.argmax() == label).item()
        yield 8, {"accuracy": right / 8}


def accumulation():
    model, optimizer = make()
    while True:
        optimizer.zero_grad()
        for _ in range(4):
            images, labels = batch()
            loss = nn.functional.cross_entropy(model(images), labels) / 4
            loss.backward()
        optimizer.step()
        yield 32


def gan():
    generator, critic = nn.Linear(4, 16), mlp(1)
    ours = torch.optim.Adam(generator.parameters())
    theirs = torch.optim.Adam(critic.parameters())
    score = nn.BCEWithLogitsLoss()
    real, fake = torch.ones(8, 1), torch.zeros(8, 1)
    while True:
        made = generator(torch.randn(8, 4))
        theirs.zero_grad()
        loss = score(critic(batch()[0]), real) + score(critic(made.detach()), fake)
        loss.backward()
        theirs.step()
        ours.zero_grad()
        score(critic(made), real).backward()
        ours.step()
        yield 8


def no_backward():
    model = mlp().eval()
    with torch.no_grad():
        while True:
            model(batch()[0])
            yield 8


def words():
    embed, cell, decode = nn.Embedding(20, 16), nn.LSTM(16, 16), nn.Linear(16, 20)
    parameters = [*embed.parameters(), *cell.parameters(), *decode.parameters()]
    hidden = torch.zeros(1, 4, 16), torch.zeros(1, 4, 16)
    while True:
        hidden = tuple(h.detach() for h in hidden)
        for parameter in parameters:
            parameter.grad = None
        outputs, hidden = cell(embed(torch.randint(20, (5, 4))), hidden)
        targets = torch.randint(20, (20,))
        nn.functional.cross_entropy(decode(outputs).view(20, 20), targets).backward()
        nn.utils.clip_grad_norm_(parameters, 0.25)
        for parameter in parameters:
            parameter.data.add_(parameter.grad, alpha=-0.1)
        yield 20


def closure():
    model = mlp(1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    while True:
        images, _ = batch()

        def loss(images=images):
            optimizer.zero_grad()
            value = model(images).square().mean()
            value.backward()
            return value

        optimizer.step(loss)
        yield 8


def labelled():
    model, optimizer = make()
    while True:
        with record_function("my step"):
            with record_function("my data"):
                images, labels = batch()
            with record_function("my forward and backward"):
                optimizer.zero_grad()
                outputs = model(images)
                loss = nn.functional.cross_entropy(outputs, labels)
                loss.backward()
            with record_function("Optimizer, mine"):
                optimizer.step()
        yield 8


def gradient_by_function():
    model = mlp(1)
    while True:
        loss = model(batch()[0]).sum()
        torch.autograd.grad(loss, list(model.parameters()))
        yield 8


def nothing():
    while True:
        time.sleep(0.002)
        yield 1


ALL = [
    *(ordinary, slow_loader, slow_workers, slow_python, busy_python, many_tensors),
    *(clipping, averaging, by_hand, metrics, accumulation, gan, no_backward, words),
    *(clipping_by_pytorch, averaging_by_pytorch, validating, closure),
    *(labelled, gradient_by_function, nothing),
]


@functools.cache
def profiled(experiment):
    return profile(experiment)


def recorded(experiment):
    """Return shares as they were recorded: one plain step corrects them badly."""
    return phases.shares(profiled(experiment).segments, {})


def phases_of(found, *names):
    """Return the phases in which operations of these names lie."""
    seen = {s.phase for s in found.segments if s.name.removeprefix("aten::") in names}
    assert seen, f"no {names} in {sorted({s.name for s in found.segments})}"
    return seen


# They part the time


def check_parts(segments, marks):
    assert segments[0].start == marks[0]
    assert segments[-1].stop == marks[-1]
    for one, next_one in itertools.pairwise(segments):
        assert one.stop == next_one.start
    assert all(segment.start <= segment.stop for segment in segments)
    assert {segment.phase for segment in segments} <= set(PHASES)


@pytest.mark.parametrize("experiment", ALL, ids=lambda e: e.__name__)
def test_phases_part_the_wall_time_of_the_main_thread(experiment):
    found = profiled(experiment)
    check_parts(found.segments, found.trace.marks)
    assert found.trace.steps == len(found.trace.marks) - 1 == STEPS
    assert math.fsum(found.shares.values()) == pytest.approx(1, abs=1e-9)
    assert set(found.shares) <= set(PHASES)
    assert all(0 <= share <= 1 for share in found.shares.values())


def made_up(seed):
    """Return a trace of random events, properly nested, that no one would expect."""
    dice = random.Random(seed)
    names = [
        *("aten::linear", "aten::mul_", "aten::item", "my label", "aten::norm"),
        "Optimizer.step#SGD.step",
        "Optimizer.zero_grad#SGD.zero_grad",
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        *(trace.BACKWARD, trace.LOADER, "autograd::engine::evaluate_function: X"),
    ]
    marks = [0, *sorted(dice.sample(range(1, 10_000), dice.randint(1, 4)))]
    events = []

    def fill(start, stop, depth):
        cuts = sorted(dice.choices(range(start, stop + 1), k=2 * dice.randint(0, 4)))
        for begin, end in zip(cuts[::2], cuts[1::2], strict=True):
            name = dice.choice(names)
            sequence = dice.choice([-1, 1, 2, 3])
            backward = "engine" in name
            shape = ([4, 4],) if dice.random() < 0.5 else ()
            label = name[0] not in "aOe"
            rest = (1, sequence, label, backward, shape, ("float",) * len(shape), ())
            events.append(Event(name, begin, end, *rest))
            if depth < 3 and end - begin > 10:
                fill(begin, end, depth + 1)

    fill(marks[0], marks[-1], 0)
    events.sort(key=lambda e: (e.start, -e.stop))
    return Trace(marks, {1: events}, 1)


@pytest.mark.parametrize("seed", range(60))
def test_any_trace_is_parted_without_gap_or_overlap(seed):
    one = made_up(seed)
    for learned in (None, phases.learn(made_up(seed + 1000))):
        segments = phases.part(one, 1e-8, learned)
        check_parts(segments, one.marks)
        for cost in ({}, dict.fromkeys(PHASES, 3.0), {"forward": 1e9}):
            found = phases.shares(segments, cost)
            assert math.fsum(found.values()) == pytest.approx(1)
            assert min(found.values()) >= 0


def test_last_event_may_end_after_the_last_mark():
    late = Event("aten::linear", 5, 99, 1, 1, False, False, (), (), ())
    one = Trace([0, 10], {1: [late]}, 1)
    check_parts(phases.part(one, 1e-6), one.marks)


def test_steps_without_any_event_are_code_outside_pytorch():
    one = Trace([0, 10_000_000, 20_000_000], {1: []}, 1)
    segments = phases.part(one, 1e-6)
    check_parts(segments, one.marks)
    assert phases.shares(segments, {}) == {"python": 1.0}


def test_recording_costs_what_it_made_the_step_longer():
    one = Trace([0, 1_000_000, 2_000_000], {1: []}, 1, step_seconds=0.0008)
    assert one.inflation == pytest.approx(0.25)
    events = [Event("aten::add", t, t, 1, -1, False, False, (), (), ()) for t in (1, 2)]
    one.threads[1] = events
    assert one.event_cost == pytest.approx(200_000)
    one.step_seconds = 0.0012
    assert one.inflation == one.event_cost == 0


def test_a_trace_without_two_marks_is_refused():
    with pytest.raises(ExperimentError):
        trace.read([])


# They say who took it


@pytest.mark.parametrize(
    ("experiment", "phase"),
    [
        (slow_loader, "input"),
        (slow_workers, "input"),
        (slow_python, "python"),
        (slow_python_between_loss_and_backward, "python"),
        (busy_python, "python"),
        (nothing, "python"),
        (many_tensors, "optimizer"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_what_takes_nearly_all_time_by_construction(experiment, phase):
    shares = recorded(experiment)
    assert shares[phase] > 0.8, shares


@pytest.mark.parametrize(
    ("experiment", "names", "phase"),
    [
        (ordinary, ("linear", "relu", "cross_entropy_loss"), "forward"),
        (clipping, ("linalg_vector_norm", "clamp"), "optimizer"),
        (averaging, ("lerp_",), "optimizer"),
        (by_hand, ("sub_",), "optimizer"),
        (metrics, ("argmax", "eq", "item"), "python"),
        (accumulation, ("linear", "div"), "forward"),
        (gan, ("linear", "binary_cross_entropy_with_logits"), "forward"),
        (no_backward, ("linear", "relu"), "forward"),
        (words, ("embedding", "lstm", "linear"), "forward"),
        (words, ("_foreach_norm", "_foreach_mul_", "add_"), "optimizer"),
        (clipping_by_pytorch, ("_foreach_norm", "_foreach_mul_"), "optimizer"),
        (averaging_by_pytorch, ("_foreach_lerp_",), "optimizer"),
        (gradient_by_function, ("linear", "relu"), "forward"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_operations_belong_to_their_phase(experiment, names, phase):
    assert phases_of(profiled(experiment), *names) == {phase}


@pytest.mark.parametrize(
    "experiment",
    [ordinary, accumulation, gan, words, by_hand, closure, gradient_by_function],
    ids=lambda e: e.__name__,
)
def test_each_pass_has_its_share(experiment):
    shares = recorded(experiment)
    assert shares["forward"] > 0
    assert shares["backward"] > 0, shares


@pytest.mark.parametrize("experiment", [no_backward, nothing], ids=lambda e: e.__name__)
def test_without_a_backward_pass_none_is_told(experiment):
    shares = profiled(experiment).shares
    assert not shares.get("backward") and not shares.get("optimizer")


def test_two_optimizers_are_both_seen():
    found = profiled(gan)
    steps = [s for s in found.segments if s.name.startswith("Optimizer.step#Adam")]
    assert len(steps) == 2 * STEPS
    assert {segment.phase for segment in steps} == {"optimizer"}
    assert found.optimizers == ["Adam"]


def test_the_readers_own_labels_change_nothing():
    kinds = []
    for experiment in (ordinary, labelled):
        named = [s for s in profiled(experiment).segments if s.name]
        kinds.append([(s.phase, s.name) for s in named])
    assert kinds[0] == kinds[1]


# Lines


def test_lines_of_python_are_named():
    found = profiled(slow_python)
    place, share = found.lines[0]
    assert place.startswith("test_timeline.py:")
    assert place.endswith("time.sleep(PAUSE)")
    assert 0.5 < share <= 1
    assert math.fsum(line.share for line in found.lines) <= 1 + 1e-9


def test_no_line_of_the_kit_or_of_a_library_is_named():
    for experiment in (slow_python, metrics, busy_python):
        for line in profiled(experiment).lines:
            assert line.place.startswith("test_timeline.py:")


def reads():
    numbers = torch.ones(3)
    one = torch.ones(1)
    while True:
        one.item()
        float(one)
        int(one)
        if one:
            pass
        numbers.tolist()
        numbers.numpy()
        for _ in range(3):
            one.cpu()
        yield 1


@pytest.mark.parametrize(
    ("name", "line", "times"),
    [
        ("item", "one.item()", 1),
        ("float", "float(one)", 1),
        ("int", "int(one)", 1),
        ("bool", "if one:", 1),
        ("tolist", "numbers.tolist()", 1),
        ("numpy", "numbers.numpy()", 1),
        ("cpu", "one.cpu()", 3),
    ],
)
def test_calls_that_read_tensors_are_found(name, line, times):
    found = [c for c in profiled(reads).reads if c.place.endswith(f": {line}")]
    assert len(found) == 1, profiled(reads).reads
    (call,) = found
    assert name in call.name
    assert call.place.startswith("test_timeline.py:")
    assert call.times == times
    assert call.seconds >= 0


def test_calls_are_summed_by_name_and_place_the_longest_first():
    here, there = (__file__, 1), (__file__, 2)
    calls = [(".item", here, 1.0), (".item", there, 8.0), (".item", here, 2.0)]
    found = lines.sum_reads(calls, 2)
    assert [(c.times, c.seconds) for c in found] == [(0.5, 4.0), (1.0, 1.5)]


def test_lines_of_other_phases_do_not_count():
    segments = [Segment(0, 10, "forward"), Segment(10, 20, "python")]
    here, there = (__file__, 1), (__file__, 2)
    samples = [(5, here), (11, there), (12, there), (15, here), (19, there)]
    found = lines.find_lines(samples, segments, "python")
    assert [line.share for line in found] == [0.75, 0.25]
    assert lines.find_lines(samples, segments, "optimizer") == []


def test_places_of_a_notebook_and_of_unknown_files():
    cell = os.path.join(tempfile.gettempdir(), "ipykernel_12", "345.py")
    assert lines.write_place((cell, 3)).startswith("cell:3")
    assert lines.write_place(("/nowhere/train.py", 41)) == "train.py:41"


# The picture


def test_timeline_says_who_was_busy_when():
    figure = kit.timeline(slow_loader, steps=2)
    assert "slow_loader()" in figure.alt
    for words in ("main thread", "waiting for data", "idle", "%"):
        assert words in figure.alt
    texts = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert "step 1" in texts and "step 2" in texts and "step 3" not in texts


def test_timeline_shows_the_backward_pass():
    figure = kit.timeline(ordinary)
    assert "backward" in figure.alt


def test_trace_file_is_what_perfetto_reads(tmp_path):
    figure = kit.timeline(ordinary, steps=2)
    path = tmp_path / "trace.json"
    figure.save_trace(path)
    events = json.loads(path.read_text())["traceEvents"]
    names = {event.get("name") for event in events}
    assert "aten::linear" in names
    figure.save_trace(str(tmp_path / "again.json"))
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_timeline_of_a_loader_with_workers_leaves_none():
    figure = kit.timeline(slow_workers, steps=2)
    assert "waiting for data" in figure.alt
    assert not children()


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, "3", None])
def test_steps_that_are_no_number(steps):
    refused(lambda: kit.timeline(ordinary, steps=steps), "timeline()", "steps=")


def test_other_bad_input_of_timeline():
    refused(lambda: kit.timeline(ordinary, on=3), "timeline()", "on=3")
    refused(lambda: kit.timeline(ordinary, speed=3), "timeline()", "speed")
    with torch.profiler.profile():
        refused(lambda: kit.timeline(ordinary), "timeline()", "profiler")
        assert torch.autograd._profiler_enabled()


def test_timeline_of_a_loop_with_another_thread_of_its_own():
    from concurrent.futures import ThreadPoolExecutor

    def train():
        with ThreadPoolExecutor(1) as pool:
            while True:
                pool.submit(torch.mm, torch.ones(64, 64), torch.ones(64, 64)).result()
                yield 1

    assert "main thread" in kit.timeline(train).alt


def test_overlaps_in_words():
    lanes = {
        "a": [Span(0, 2, "", ""), Span(4, 6, "", "")],
        "b": [Span(1, 5, "", "")],
        "c": [Span(8, 9, "", "")],
    }
    said = describe_overlaps(lanes)
    assert "a and b are busy at once for 2.00 s." in said
    assert said.count("for ") == 1
    assert "a and c" in said and "b and c" in said
    assert describe_overlaps({"a": []}) == ""


def test_batches_of_any_kind_pass():
    def train():
        data = TensorDataset(torch.ones(8, 16), torch.zeros(8, dtype=torch.long))
        model = mlp()
        while True:
            for images, labels in DataLoader(data, batch_size=4):
                nn.functional.cross_entropy(model(images), labels).backward()
                yield len(images)

    assert profile(train).shares["input"] > 0


def test_waiting_for_threads_that_compute_is_not_python():
    ms = 1_000_000
    pool = [Event("aten::mm", 1 * ms, 9 * ms, 2, -1, False, False, (), (), ())]
    one = Trace([0, 10 * ms], {1: [], 2: pool}, 1)
    assert [s.phase for s in phases.part(one, 1e-6)] == ["forward"]
    one.threads[2] = [pool[0]._replace(stop=4 * ms)]
    assert [s.phase for s in phases.part(one, 1e-6)] == ["python"]


def test_recording_an_event_costs_no_more_than_can_be():
    one = Trace([0, 10_000_000], {1: []}, 1, step_seconds=0.004)
    assert one.event_cost == pytest.approx(6e6)
    one.most_event_cost = 1500.0
    assert one.event_cost == 1500.0
