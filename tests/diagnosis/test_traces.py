"""A trace is parted so that no time is lost, and each operation counts in its phase."""

import itertools
import json
import operator
import sys

import pytest
from experiments import BUSY, train
from hypothesis import given, strategies as st

import kit
from kit.diagnosis import wrapping
from kit.diagnosis.profiling import part, weigh
from kit.diagnosis.tracing import Event, Trace, look_at
from kit.diagnosis.wrapping import BACKWARD, LOADER, WAIT
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
        ("mine/mm back step", "forward backward optimizer"),
        ("mm back mul_ step argmax", "forward backward optimizer optimizer python"),
        ("mm back step mm", "forward backward optimizer python"),
        ("mm step/back", "forward backward"),
        ("to/copy mm back step", "copies forward backward optimizer"),
        ("mm back step item/wait", "forward backward optimizer sync"),
    ],
)
def test_an_operation_counts_where_a_reader_would_put_it(step, phases):
    events = [
        make_event(10 * number + depth, 10 * number + 10 - depth, name)
        for number, nested in enumerate(step.split())
        for depth, name in enumerate(nested.split("/"))  # what follows a / is inside
    ]
    devices = [BUSY] if "wait" in step or "copy" in step else []
    segments = part(Trace([0, 10 * len(step.split())], events, [], devices), 1e9)
    assert [s.phase for s in segments if s.name] == phases.split()


ANY_NAME = st.sampled_from([*NAMES, "mm", "mul_"])
EVENTS = st.lists(st.tuples(st.integers(0, 999), st.integers(0, 600), ANY_NAME))
ENDS_OF_STEPS = st.sets(st.integers(1, 1500), min_size=1, max_size=4)


@given(drawn=EVENTS, ends=ENDS_OF_STEPS, has_device=st.booleans())
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


def test_the_cost_of_profiling_and_overlapping_kernels_count_once():
    trace = Trace([0, 2000], [make_event(0, 1000, "mm")], [], [])
    step = weigh(trace, part(trace, 1e9), 100.0, 50.0).phases
    assert (step["compute"], step["overhead"]) == (850, 1050)
    busy = [BUSY._replace(start=a, stop=b) for a, b in ((0, 10), (2, 3), (5, 15))]
    step = weigh(trace._replace(devices=busy), part(trace, 1e9), 0.0, 0.0).phases
    assert (step["compute"], step["overhead"]) == (15, 1985), "it waits for the host"


def test_names_that_pytorch_gives_are_known():
    seen = {}
    for segment in kit.diagnose(train).profile.segments:
        name = segment.name.removeprefix("aten::").partition("#")[0]
        seen.setdefault(name, set()).add(segment.phase)
    assert seen[LOADER] == {"input"}
    assert seen["linear"] == seen["cross_entropy_loss"] == {"forward"}
    assert seen[BACKWARD] == {"backward"}
    assert seen["_foreach_norm"] == seen["Optimizer.step"] == {"optimizer"}
    assert seen["argmax"] == seen["item"] == {"python"}


def test_a_timeline_is_saved_as_what_perfetto_reads(tmp_path):
    path = kit.timeline(train, steps=2).save(tmp_path / "trace.json")
    events = json.loads(path.read_text())["traceEvents"]
    assert {"aten::linear", BACKWARD} <= {event.get("name") for event in events}


def test_what_the_kit_calls_in_place_of_a_line_counts_for_that_line():
    seen = []

    def look(text):
        seen.append(look_at(sys._getframe(1)))
        return int(text)

    wrapped = wrapping._call_instead(json.loads, operator.call)
    assert wrapped("1", parse_int=look) == 1
    assert 'wrapped("1"' in seen[0].line
