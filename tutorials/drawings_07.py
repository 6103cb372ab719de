"""Chapter 07's picture of a step: what fills the memory, operation by operation."""

from __future__ import annotations

from matplotlib.figure import Figure
from memory_07 import KINDS, Watcher

from kit.figures import kit_look, show


def draw_step(watcher: Watcher, predicted: float) -> Figure:
    """Draw the bytes of each kind over a step; `predicted` is in megabytes."""
    peak = watcher.peak()
    share = peak["activations"] / peak["all"]
    title = f"At the peak, {share:.0%} is activations"
    bands = []
    for kind in zip(*watcher.rows, strict=True):
        bands.append([size / 1e6 for size in kind])
    with kit_look():
        axes = Figure().subplots()
        axes.stackplot(range(len(watcher.rows)), *bands, labels=KINDS)
        axes.axhline(predicted, color="black", linestyle="--", label="predicted")
        axes.set_title(title)
        axes.set_xlabel("operations of a step: forward, backward, update")
        axes.set_ylabel("megabytes of tensors")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), reverse=True)
    parts = ", ".join(f"{kind} {peak[kind]:.1f}" for kind in KINDS)
    print(f"peak: predicted {predicted:.0f} MB, all tensors {peak['all']:.0f} MB")
    alt = f"{title}. Bands of memory over a step; megabytes at the peak: {parts}"
    return show(axes, alt)
