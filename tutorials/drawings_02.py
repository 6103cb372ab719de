"""The drawing of chapter 02: whose time is whose in a step."""

from __future__ import annotations

from kit.figures import Drawing


def draw_self_and_total() -> Drawing:
    """Draw one line of Python, what it calls, and the self time of each."""
    drawing = Drawing(
        "Total time counts a moment for everyone around it, self time once",
        columns=12,
        rows=3,
        alt=(
            "Three rows of boxes over time. The label score lasts from 0 to 12. Inside "
            "it, the operation index lasts from 1 to 8 and the operation add from 9 to "
            "11. Inside index, the operation select lasts from 2 to 4 and once more "
            "from 5 to 7. Self times: score 3, index 3, select 4, add 2"
        ),
    )
    drawing.lane(0, "label", [(0, 12, "score: total 12, self 12 − 7 − 2 = 3", "zone")])
    operations = [
        (1, 8, "index: total 7, self 7 − 2 − 2 = 3", "measured"),
        (9, 11, "add: 2", "measured"),
    ]
    drawing.lane(1, "operations", operations)
    selections = [(2, 4, "select: 2", "baseline"), (5, 7, "select: 2", "baseline")]
    drawing.lane(2, "inside index", selections)
    return drawing
