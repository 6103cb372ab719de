"""Checks of chapter 03's exercises: made-up traces whose answer is known."""

import itertools
import random
import runpy
from pathlib import Path
from types import SimpleNamespace

from torch.profiler import record_function

#: What chapter 02's checks profile with.
_CHECKS_02 = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("02.py"))))


def culprit(culprit):
    """The helper in which numbers are read at each step, whatever it is called."""
    loops, steps = _import_slow_loops(), 4
    names = ", ".join(f'"{name}"' for name in loops.HELPERS)
    assert isinstance(culprit, str) and culprit in loops.HELPERS, (
        f"{culprit!r:.60} is no helper's name: it is one of {names}"
    )
    helpers = {name: _label(name, loops.HELPERS[name]) for name in loops.HELPERS}
    training = loops.train_with(helpers=helpers)
    events = _CHECKS_02._profile(lambda: list(itertools.islice(training, steps)))
    calls = [event for event in events if event.name == culprit]
    reads = [event for event in events if event.name == "aten::_local_scalar_dense"]
    found = sum(_CHECKS_02._lies_within(read, *calls) for read in reads)
    assert found >= steps, (
        f"in {steps} steps {culprit!r} reads a number {found} times: call each helper "
        "inside a label of its own, and look which label holds aten::item"
    )
    return f"{culprit!r} asks for a number at each step, and never says `.item()`."


def _import_slow_loops():
    path = Path(__file__).resolve().parents[1] / "slow_loops.py"
    return SimpleNamespace(**runpy.run_path(str(path)))


def _label(name, helper):
    def labelled(*inputs):
        with record_function(name):
            return helper(*inputs)

    return labelled


def _make_events(spans, kind="kernel", name="gemm"):
    """Return trace events for (start, length) in microseconds."""
    return [
        {"ph": "X", "cat": kind, "name": name, "ts": start, "dur": length}
        for start, length in spans
    ]


def idle(idle):
    """Overlapping kernels, kernels inside others, in any order, beside other events."""
    others = _make_events([(0.0, 1000.0)], "cpu_op", "aten::mm")
    cases = {
        "two kernels of 10 µs with a pause of 20 µs": ([(0, 10), (30, 10)], 0.5),
        "two streams, 0 to 30 and 20 to 50 µs": ([(0, 30), (20, 30)], 0.0),
        "0 to 60 µs with one inside, and 80 to 100": (
            [(0, 60), (10, 20), (80, 20)],
            0.2,
        ),
        "the same in another order": ([(80, 20), (10, 20), (0, 60)], 0.2),
        "beginning at 500 µs": ([(500, 25), (575, 25)], 0.5),
    }
    for what, (spans, expected) in cases.items():
        share = idle(others + _make_events(spans))
        assert isinstance(share, (int, float)), (
            f"{what}: it returns {share!r:.60}, and not a share"
        )
        assert abs(share - expected) < 1e-9, (
            f"{what}: it returns {share:.3g}, and no kernel runs in {expected:.0%} of "
            "the time from the first kernel's beginning to the last one's end"
        )
    return "each moment counts once, on however many streams."


def late(late):
    """The rank that begins last, in each exchange, whatever the order of the events."""
    begins = [[10, 40, 70, 100], [12, 39, 90, 99], [11, 45, 60, 130]]
    expected = [1, 2, 1, 2]
    traces = []
    for rank, starts in enumerate(begins):
        ends = [max(times) + 5 for times in zip(*begins, strict=True)]
        spans = [(start, end - start) for start, end in zip(starts, ends, strict=True)]
        events = _make_events(spans, "user_annotation", "gloo:all_reduce")
        events += _make_events([(5, 90 + rank)], "cpu_op", "aten::mm")
        random.Random(rank).shuffle(events)
        traces.append(events)
    ranks = late(traces)
    assert isinstance(ranks, (list, tuple)), (
        f"it returns {ranks!r:.60}, and not a rank for each exchange"
    )
    waits_most = [min(range(3), key=lambda r: begins[r][k]) for k in range(4)]
    hint = ": these are the ranks that waited longest" if ranks == waits_most else ""
    assert list(ranks) == expected, (
        f"it returns {list(ranks)}, and the last to begin are {expected}{hint}"
    )
    return "whoever begins last lets the others wait."
