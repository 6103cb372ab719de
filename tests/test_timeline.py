"""The main thread's time is parted without a gap, rightly, and drawn as it was."""

import functools
import itertools
import json
import math
import random
import time

import pytest
import torch
from helpers import children, refused
from torch import nn
from torch.autograd.profiler import record_function
from torch.utils.data import DataLoader, Dataset, TensorDataset

import kit
from kit.diagnosis.counterfactuals import BACKWARD, LOADER, STEP
from kit.diagnosis.profiling import find_lines, part, record, weigh
from kit.diagnosis.timeline import describe_overlaps
from kit.diagnosis.tracing import Event, Trace, read_trace
from kit.experiment import resolve
from kit.figures import PHASES, Span
from kit.progress import Progress

pytestmark = pytest.mark.usefixtures("smoke")

STEPS = 3
PAUSE = 0.05


def profile(experiment, steps=STEPS):
    """Return the profile of one life of an experiment."""
    resolved = resolve(experiment)
    progress = Progress("testing")
    (made,) = record(resolved, resolved.bind({}), progress, seconds=2.0, steps=steps)
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
    assert len(found.trace.marks) == STEPS + 1
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
        *(BACKWARD, LOADER, "autograd::engine::evaluate_function: X"),
    ]
    marks = [0, *sorted(dice.sample(range(1, 10_000), dice.randint(1, 4)))]
    events = []

    def fill(start, stop, depth):
        cuts = sorted(dice.choices(range(start, stop + 1), k=2 * dice.randint(0, 4)))
        for begin, end in zip(cuts[::2], cuts[1::2], strict=True):
            name = dice.choice(names)
            events.append(Event(begin, end, name, "1", name[0] not in "aOe"))
            if depth < 3 and end - begin > 10:
                fill(begin, end, depth + 1)

    fill(marks[0], marks[-1], 0)
    events.sort(key=lambda e: (e.start, -e.stop))
    return Trace(marks, events, [], [])


@pytest.mark.parametrize("seed", range(60))
def test_any_trace_is_parted_without_gap_or_overlap(seed):
    one = made_up(seed)
    segments = part(one, 200)
    check_parts(segments, one.marks)
    steps = weigh(one, segments, 0.0, 10.0)
    parted = sum(now[phase] for now in steps for phase in PHASES)
    assert parted == pytest.approx(one.marks[-1] - one.marks[0])
    for cost in (3.0, 1e9):
        for now in weigh(one, segments, cost, 10.0):
            assert min(now.values(), default=0) >= 0


def test_last_event_may_end_after_the_last_mark():
    one = Trace([0, 10], [Event(5, 99, "aten::linear", "1")], [], [])
    check_parts(part(one, 1e3), one.marks)


def test_steps_without_any_event_are_code_outside_pytorch():
    one = Trace([0, 10_000_000, 20_000_000], [], [], [])
    segments = part(one, 1e3)
    check_parts(segments, one.marks)
    assert {segment.phase for segment in segments} == {"python"}


def take_time(events):
    """Return the processor time of reading a trace of so many labelled events."""
    one = [Event(9 * n, 9 * n + 3, "aten::add", "1") for n in range(events)]
    labels = [
        Event(900 * n, 900 * n + 890, "mine", "1", True) for n in range(events // 100)
    ]
    both = sorted(one + labels, key=lambda e: (e.start, -e.stop))
    trace = Trace([0, 9 * events], both, one, [])
    begun = time.process_time()
    weigh(trace, part(trace, 2.0), 0.0, 1.0)
    return time.process_time() - begun


def test_reading_a_long_trace_is_linear():
    short, long = (min(take_time(n) for _ in range(3)) for n in (2_000, 16_000))
    assert long < 20 * short  # eight times as many; squared, it were 64


def step_events(*waits):
    """Return a trace file of steps of 1 ms, each with a wait in microseconds."""
    events, now = [], 0.0
    for wait in waits:
        row = {"ph": "X", "pid": 1, "tid": 1, "args": {}}
        took = 1000 + wait
        events += [
            {**row, "cat": "user_annotation", "name": STEP, "ts": now, "dur": took},
            {**row, "cat": "cpu_op", "name": "aten::mm", "ts": now, "dur": 900},
            {**row, "cat": "user_annotation", "name": "gloo:all_reduce"}
            | {"ts": now + 900, "dur": 1 + wait},
        ]
        now += took + 1
    return json.dumps({"baseTimeNanoseconds": 10**18, "traceEvents": events})


def test_ranks_that_begin_apart_are_not_charged_for_it():
    """Whoever began early waits in its first step, which is left out."""
    segments = part(read_trace([step_events(90_000, 0, 0)]), 1e9)
    waits = sum(s.stop - s.start for s in segments if s.phase == "communication")
    assert waits < 0.01 * (segments[-1].stop - segments[0].start)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((f"aten::{name}", "compute") for name in ("addmm", "bmm", "mv", "dot")),
        ("aten::mkldnn_convolution", "compute"),
        ("aten::convolution_backward", "compute"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "compute"),
        ("aten::mkldnn_rnn_layer_backward", "compute"),
        ("aten::upsample_bilinear2d", "memory"),
        ("aten::add", "memory"),
        ("aten::addcmul_", "memory"),
        ("aten::_thnn_fused_lstm_cell", "memory"),
        ("aten::reshape_from_conv", "memory"),
    ],
)
def test_arithmetic_is_known_by_its_exact_name(name, kind):
    one = Trace([0, 1000], [Event(0, 900, name, "1")], [], [])
    (step,) = weigh(one, part(one, 1e3), 0.0, 10.0)
    assert step[kind] == 890
    assert not step["memory" if kind == "compute" else "compute"]


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
    shares = profiled(experiment).shares
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
    shares = profiled(experiment).shares
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


def test_the_readers_own_labels_change_nothing():
    kinds = []
    for experiment in (ordinary, labelled):
        named = [s for s in profiled(experiment).segments if s.name]
        kinds.append([(s.phase, s.name) for s in named])
    assert kinds[0] == kinds[1]


# Lines


def test_lines_of_python_are_named():
    first, *_ = profiled(slow_python).lines["python"]
    assert first.startswith("test_timeline.py:")
    assert "time.sleep(PAUSE) (" in first and first.endswith("%)")


def test_no_line_of_the_kit_or_of_a_library_is_named():
    for experiment in (slow_python, metrics, busy_python, slow_loader):
        for lines in profiled(experiment).lines.values():
            assert all(line.startswith("test_timeline.py:") for line in lines)


def test_lines_are_counted_in_their_phases():
    segments = part(Trace([0, 20], [Event(0, 10, "aten::mm", "1")], [], []), 5)
    samples = [(5, "a"), (11, "b"), (15, "a"), (17, ""), (19, "b"), (99, "b")]
    lines, waiting = find_lines(samples, segments)
    assert lines == {"forward": ["a (100%)"], "python": ["b (50%)", "a (25%)"]}
    assert waiting == 0.25


def test_waiting_for_threads_of_its_own_is_not_python():
    from concurrent.futures import ThreadPoolExecutor

    def train():
        with ThreadPoolExecutor(1) as pool:
            while True:
                pool.submit(time.sleep, PAUSE).result()
                yield 1

    found = profile(train)
    assert found.mean("waiting") > 0.8
    assert found.shares.get("python", 0) < 0.2


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
        assert torch.autograd._profiler_enabled(), "theirs goes on"


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
