"""A trace is parted so that no time is lost, and a timeline says who was busy when."""

import itertools
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from experiments import BUSY, diagnosed, train
from hypothesis import given, strategies as st

import kit
import kit.clock
from kit.diagnosis.profiling import part, weigh
from kit.diagnosis.tracing import Event, Trace, read_trace
from kit.diagnosis.wrapping import BACKWARD, LOADER, STEP, WAIT
from kit.figures import PHASES

pytestmark = pytest.mark.usefixtures("quick")

#: As PyTorch and the kit write them into a trace; others are operations.
NAMES = {
    "data": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    "zero": "Optimizer.zero_grad#SGD.zero_grad",
    "step": "Optimizer.step#SGD.step",
    "back": BACKWARD,
    "loader": LOADER,
    "reduce": "gloo:all_reduce",
    "await": WAIT,
    "wait": "cudaStreamSynchronize",
    "copy": "cudaMemcpyAsync",
    "mine": "my label",
}


def make_event(start, stop, name):
    own = NAMES.get(name, f"aten::{name}")
    return Event(start, stop, own, "1", not own.startswith(("aten", "cuda")))


@pytest.mark.parametrize(
    ("step", "phases"),
    [
        ("data zero mm back step", "input optimizer forward backward optimizer"),
        ("loader mm relu", "input forward forward"),
        ("mine/mm back step", "forward backward optimizer"),
        ("mm back _foreach_norm mul_ step", "forward backward" + 3 * " optimizer"),
        ("mm back step argmax item", "forward backward optimizer python python"),
        ("mm back sub_ sub_", "forward backward python python"),
        ("mm back mm back step", "forward backward forward backward optimizer"),
        ("back step mm back step", "backward optimizer forward backward optimizer"),
        ("mm step/back", "forward backward"),
        ("mm reduce back step", "forward communication backward optimizer"),
        ("mm back await step", "forward backward communication optimizer"),
        ("to/copy mm back step", "copies forward backward optimizer"),
        ("mm back step item/wait", "forward backward optimizer sync"),
        ("mm item/copy back", "forward sync backward"),
    ],
)
def test_an_operation_counts_where_a_reader_would_put_it(step, phases):
    events = [
        make_event(10 * number + depth, 10 * number + 10 - depth, name)
        for number, nested in enumerate(step.split())
        for depth, name in enumerate(nested.split("/"))  # what follows a / is inside
    ]
    devices = [BUSY] * bool(re.search("wait|copy", step))
    segments = part(Trace([0, 10 * len(step.split())], events, [], devices), 1e9)
    assert [s.phase for s in segments if s.name] == phases.split()


ANY_NAME, ENDS = st.sampled_from([*NAMES, "mm", "mul_"]), st.integers(1, 1500)
EVENTS = st.lists(st.tuples(st.integers(0, 999), st.integers(0, 600), ANY_NAME))


@given(EVENTS, st.sets(ENDS, min_size=1, max_size=4), st.booleans())
def test_no_time_is_lost_or_counted_twice_in_any_trace(drawn, ends, has_device):
    marks, events, open_until = [0, *sorted(ends)], [], []
    for start, length, name in sorted(drawn, key=lambda event: (event[0], -event[1])):
        open_until = [stop for stop in open_until if stop > start]
        open_until.append(min([start + length, *open_until]))  # it ends in its holder
        if start < marks[-1]:
            events.append(make_event(start, open_until[-1], name))
    trace = Trace(marks, events, [], [BUSY] * has_device)
    segments = part(trace, 25)
    assert (segments[0].start, segments[-1].stop) == (0, marks[-1])
    for one, following in itertools.pairwise(segments):
        assert one.start < one.stop == following.start
    found = weigh(trace, segments, 0.0, 10.0).phases
    assert sum(found[phase] for phase in PHASES) == pytest.approx(marks[-1])
    for cost in (3.0, 1e9):
        found = weigh(trace, segments, cost, 10.0).phases
        assert min(found.values(), default=0) >= 0


def test_ranks_that_begin_apart_are_not_charged_for_it():
    """Whoever began early waits in its first step, which is left out."""
    events, now = [], 0
    for wait in (90_000, 0, 0):
        row = {"ph": "X", "tid": 1, "args": {}, "ts": now, "cat": "user_annotation"}
        events.append({**row, "name": STEP, "dur": 1000 + wait})
        events.append({**row, "cat": "cpu_op", "name": "aten::mm", "dur": 900})
        exchange = {"name": "gloo:all_reduce", "ts": now + 900, "dur": 9 + wait}
        events.append(row | exchange)
        now += 1000 + wait
    told = {"baseTimeNanoseconds": 10**18, "traceEvents": events}
    trace = read_trace([json.dumps(told)])
    assert trace.marks[-1] - trace.marks[0] == 2_000_000
    assert [s.phase for s in part(trace, 1e9)].count("communication") == 2


def test_profiling_and_overlapping_kernels_are_not_counted_as_compute():
    trace = Trace([0, 2000], [make_event(0, 1000, "mm")], [], [])
    step = weigh(trace, part(trace, 1e9), 100.0, 50.0).phases
    assert (step["compute"], step["overhead"]) == (850, 1050)
    busy = [BUSY._replace(start=a, stop=b) for a, b in ((0, 10), (2, 3), (5, 15))]
    step = weigh(trace._replace(devices=busy), part(trace, 1e9), 0.0, 0.0).phases
    assert (step["compute"], step["overhead"]) == (15, 1985), "it waits for the host"


def test_names_that_pytorch_gives_are_known():
    seen = {}
    for segment in diagnosed().profile.segments:
        name = segment.name.removeprefix("aten::").partition("#")[0]
        seen.setdefault(name, set()).add(segment.phase)
    places = {
        "input": [LOADER],
        "forward": ["linear", "relu", "cross_entropy_loss"],
        "backward": [BACKWARD],
        "optimizer": ["_foreach_norm", "Optimizer.step", "Optimizer.zero_grad"],
        "python": ["argmax", "eq", "item"],
    }
    for phase, names in places.items():
        assert diagnosed().shares[phase] > 0
        assert all(seen.get(name) == {phase} for name in names), seen


def test_waiting_for_threads_of_its_own_is_not_the_readers_code():
    def train():
        with ThreadPoolExecutor(1) as pool:
            while True:
                pool.submit(time.sleep, 0.02).result()
                yield 1

    found = kit.diagnose(train)
    assert 0.8 < found.profile.across["waiting"] <= 1
    assert found.shares.get("python", 0) < 0.2


def test_a_timeline_says_who_was_busy_when_and_perfetto_reads_it(tmp_path):
    recorded = kit.timeline(train, steps=2)
    words = "train: , main thread, backward, longest: next batch, idle"
    assert not [word for word in words.split(", ") if word not in repr(recorded)]
    assert "It computes" in recorded.plot(title="It computes").figure.alt
    path = recorded.save(tmp_path / "trace.json")
    events = json.loads(path.read_text())["traceEvents"]
    assert {"aten::linear", BACKWARD} <= {event.get("name") for event in events}
