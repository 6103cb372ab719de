"""The picture of the appendix of chapter 05: rings of machines."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Wedge

from kit.figures import COLORS, kit_look
from kit.figures.style import describe, new_figure

Ring = Sequence[tuple[int, str]]
#: Hashes are from 0 to this.
AROUND = 2**128
FILLS = dict(zip("ABC", ("#6CB8E6", "#F0A830", "#3FA887"), strict=True))
NAMES = {2: "two machines", 3: "a third joins"}


@kit_look()
def draw_rings(before: Ring, after: Ring) -> Figure:
    """Draw two rings; in the second, what has another owner than before is hatched.

    A ring is the sorted places of machines, (hash, machine). What lies between two
    places belongs to the machine at the second one, clockwise.
    """
    share = measure_moved(before, after)
    title = f"A third machine takes {share:.0%} of the ring; the rest stays where it is"
    figure = new_figure(title, 3.6)
    told = []
    for axes, ring in zip(figure.subplots(1, 2), (before, after), strict=True):
        shares: dict[str, float] = {}
        starts = [ring[-1][0] - AROUND, *(place for place, _ in ring)]
        for start, (stop, machine) in zip(starts, ring, strict=False):
            middle = (start + stop) / 2 % AROUND
            has_moved = find_machine(before, middle) != machine
            shares[machine] = shares.get(machine, 0.0) + (stop - start) / AROUND
            ends = turn(stop), turn(start)
            look = {"facecolor": FILLS[machine], "edgecolor": COLORS["card"]}
            axes.add_patch(Wedge((0, 0), 1, *ends, width=0.3, **look))
            if has_moved:
                look = {"fill": False, "hatch": "////", "edgecolor": COLORS["ink"]}
                axes.add_patch(Wedge((0, 0), 1, *ends, width=0.3, lw=0, **look))
            angle = math.radians(turn(stop))
            far = 1.14 if stop - start > AROUND / 50 else 1.27  # beside another letter
            spot = far * math.cos(angle), far * math.sin(angle)
            axes.text(*spot, machine, ha="center", va="center", color=COLORS["ink"])
        name = NAMES[len(shares)]
        axes.text(0, 0, name, ha="center", va="center")
        axes.set(xlim=(-1.35, 1.35), ylim=(-1.35, 1.35), aspect="equal")
        axes.axis("off")
        parts = [f"{machine} {part:.0%}" for machine, part in sorted(shares.items())]
        told.append(f"{name}: {', '.join(parts)}")
    note = (
        "A letter is a place of a machine: what comes before it, clockwise, is its own."
    )
    figure.text(0.02, 0.01, f"{note} Hatched: moved.", color=COLORS["muted"])
    return describe(figure, "Two rings", title, *told)


def turn(place: float) -> float:
    """Return the angle of a place in degrees, clockwise from the top."""
    return 90 - 360 * place / AROUND


def find_machine(ring: Ring, place: float) -> str:
    """Return whose part of a ring a place is."""
    for stop, machine in ring:
        if place <= stop:
            return machine
    return ring[0][1]


def measure_moved(before: Ring, after: Ring) -> float:
    """Return which share of the ring has another machine than before."""
    edges = sorted({place for ring in (before, after) for place, _ in ring})
    moved = 0
    for start, stop in zip([edges[-1] - AROUND, *edges], edges, strict=False):
        middle = (start + stop) / 2 % AROUND
        if find_machine(before, middle) != find_machine(after, middle):
            moved += stop - start
    return moved / AROUND
