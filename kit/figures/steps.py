"""Where the time of a step goes, and what removing a cause would save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kit.figures import charts, style
from kit.figures.html import describe
from kit.figures.style import PHASES, format_saving, format_seconds, format_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAR = 0.8  # inches, the height of the bar of a step
_KEY = {"loc": "lower left", "bbox_to_anchor": (0, 0), "borderaxespad": 0, "ncols": 2}


@style.alone()
def draw_step(
    shares: Mapping[str, float],
    savings: Sequence[charts.Row] = (),
    *,
    title: str,
    step_seconds: float,
    overhead: float | None = None,
) -> Figure:
    """Draw a step as a bar of its phases, above what removing a cause would save.

    `shares` are fractions of the step by phase (keys of `PHASES`) that add up to 1. A
    phase has its name on it, or below where it has no room. `overhead`, a fraction that
    cuts across the phases, is written below, too. `savings` are (label, value, low,
    high), fractions of the step's time with their 95 % intervals; one that does not lie
    wholly above 0 is grey.

    >>> shares = {"input": 0.61, "forward": 0.39}
    >>> figure = draw_step(shares, title="It waits for data", step_seconds=0.1)
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['waiting for data\\n61 % · 61.0 ms', 'forward\\n39 % · 39.0 ms']
    """
    there = {phase: shares[phase] for phase in PHASES if shares.get(phase)}
    across = (style.WIDTH - 2 * style.EDGE) / sum(there.values())
    said, inside, beside = [], {}, {}
    for phase, share in there.items():
        time, words = format_seconds(share * step_seconds), format_share(share)
        said.append(f"{PHASES[phase]}: {words}, {time}")
        inside[phase] = _fit(PHASES[phase], words, time, share * across)
        if not inside[phase]:
            beside[phase] = f"{PHASES[phase]}  {words} · {time}"
    said = ["; ".join(said)]
    heights = [_BAR + 0.25 * -(-len(beside) // 2) + 0.3 * (overhead is not None)]
    heights += [0.46 * len(savings) + 0.8] * bool(savings)
    figure = style.make_card(title, sum(heights) + 0.25 * len(heights))
    parts = figure.subfigures(len(heights), height_ratios=heights, squeeze=False)[:, 0]
    axes = parts[0].add_subplot(ylim=(heights[0], 0), xlim=(0, sum(there.values())))
    axes.axis("off")
    start = 0.0
    for phase, share in there.items():
        style.paint(*axes.barh(0, share, _BAR, start, align="edge"), phase)
        style.write_on(axes, phase, inside[phase], (start + share / 2, _BAR / 2))
        start += share
    key = axes.legend(handles=style.list_keys(beside), alignment="left", **_KEY)
    if overhead is not None:
        said.append(f"Eager overhead, across the phases: {format_share(overhead)}")
        key.set_title(said[-1])
    if savings:
        _draw_savings(parts[1].add_subplot(), savings)
        told = charts.tell_rows(savings, format_share)
        said.append(f"What removing a cause would save of the step: {told}")
    first = f"Where the {format_seconds(step_seconds)} of a step go"
    return describe(figure, first, title, *said)


def _fit(name: str, share: str, time: str, inches: float) -> str:
    """Return a phase's label in as few lines as fit into its block, or nothing."""
    for text in (f"{name}\n{share} · {time}", f"{name}\n{share}\n{time}"):
        if style.measure(text) + 0.1 < inches:
            return text
    return ""


def _draw_savings(axes: Axes, savings: Sequence[charts.Row]) -> None:
    roles = ["measured" if (low or 0) > 0 else "baseline" for *_, low, _ in savings]
    texts = [format_saving(*ends) for _, *ends in savings]
    reach = charts.find_reach(savings)
    charts.draw_rows(axes, savings, texts, roles, reach, style.WIDTH / 3)
    axes.xaxis.set_major_formatter(lambda x, _: format_share(x, like=1))
    axes.set_xlabel("of the step's time that removing the cause would save")
