"""Draw how two runs are measured in rounds, for kit/MEASURING.md.

python tutorials/scripts/draw_rounds.py images/rounds.png
"""

from __future__ import annotations

import sys

from kit.figures import Drawing

ALT = (
    "Round 0 sets up A, then B, and times stretches in the order A B B A; round 1 sets "
    "up B, then A, and times B A A B. Two such rounds are a pair"
)


def draw_rounds() -> Drawing:
    """Draw a pair of rounds: who starts first differs."""
    title = (
        "A pair of rounds: stretches take turns, and the second round swaps the order"
    )
    drawing = Drawing(title, columns=13, rows=2.4, alt=ALT)
    roles = {"A": "baseline", "B": "measured"}
    for row, order in enumerate(("ABBA", "BAAB")):
        blocks = []
        for number, name in enumerate(order[:2]):
            start = 1.5 * number
            blocks.append((start, start + 1.4, f"set up {name}", "zone"))
        for number, name in enumerate(order):
            start = 3.2 + 2 * number
            blocks.append((start, start + 1.9, f"time {name}", roles[name]))
        blocks.append((11.3, 13, "close both", "zone"))
        drawing.lane(row, f"round {row}", blocks)
    drawing.arrow((0, 2.3), (13, 2.3), "time")
    return drawing


if __name__ == "__main__":
    draw_rounds().save(sys.argv[1])
