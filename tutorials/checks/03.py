"""Checks of chapter 03's exercises: made-up traces whose answer is known."""

from kit.teaching import expect


def culprit(culprit):
    """Name the helper that reads a number at each step."""
    assert culprit == "track", (
        f"{culprit!r} reads no number: look which helper's label holds aten::item"
    )
    return f"{culprit!r} asks for a number at each step, and never says `.item()`."


def _make_events(spans, kind, name):
    """Return trace events for (start, length) in microseconds."""
    return [
        {"ph": "X", "cat": kind, "name": name, "ts": start, "dur": length}
        for start, length in spans
    ]


def idle(idle):
    """Find the share of the time in which no kernel ran, on whatever streams."""

    def find_share(spans):
        others = _make_events([(0, 1000)], "cpu_op", "aten::mm")
        return idle(others + _make_events(spans, "kernel", "gemm"))

    cases = [
        (([(0, 10), (30, 10)],), 0.5),
        (([(0, 30), (20, 30)],), 0.0),
        (([(80, 20), (10, 20), (0, 60)],), 0.2),
        (([(500, 25), (575, 25)],), 0.5),
    ]
    expect(
        find_share, cases, hint="These are beginnings and lengths of kernels, in µs."
    )
    return "each moment counts once, on however many streams."


def late(late):
    """Find the rank that begins each exchange last."""

    def find_ranks(*begins):
        ends = [max(starts) + 5 for starts in zip(*begins, strict=True)]
        traces = []
        for starts in begins:
            spans = [
                (start, end - start) for start, end in zip(starts, ends, strict=True)
            ]
            exchanges = _make_events(spans, "user_annotation", "gloo:all_reduce")
            others = _make_events([(5, 90)], "cpu_op", "aten::mm")
            traces.append(others + exchanges[::-1] if traces else exchanges + others)
        return list(late(traces))

    begins = [10, 40, 70, 100], [12, 39, 90, 99], [11, 45, 60, 130]
    hint = "These are the moments at which each rank begins its exchanges."
    expect(find_ranks, [(begins, [1, 2, 1, 2])], hint=hint)
    return "whoever begins last lets the others wait."
