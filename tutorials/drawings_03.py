"""The drawing of chapter 03: the same work by turns, and at once."""

from __future__ import annotations

from kit.figures import Drawing


def draw_overlap() -> Drawing:
    """Draw three steps that read and train by turns, and three that overlap."""
    drawing = Drawing(
        "The same work: by turns above, at once below",
        columns=15,
        rows=3.4,
        alt=(
            "Three rows over time. In the first, one process reads batch 1, trains on "
            "it, reads batch 2, trains on it, and so on: three batches take 15. In the "
            "other two rows, a worker reads one batch after the other, and the main "
            "process trains on each as soon as it is there: three batches take 11"
        ),
    )
    by_turns = []
    for batch in range(3):
        by_turns.append((5 * batch, 5 * batch + 3, f"read {batch + 1}", "zone"))
        by_turns.append(
            (5 * batch + 3, 5 * batch + 5, f"train {batch + 1}", "measured")
        )
    drawing.lane(0, "one process", by_turns)
    reads = [(3 * b, 3 * b + 3, f"read {b + 1}", "zone") for b in range(3)]
    trains = [(3 * b + 3, 3 * b + 5, f"train {b + 1}", "measured") for b in range(3)]
    drawing.lane(1.4, "a worker", reads)
    drawing.lane(2.4, "the main process", trains)
    return drawing
