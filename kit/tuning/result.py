"""`LoaderTuning`: the settings that were found, and what stands behind them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kit import figures
from kit.stats import Estimate
from kit.tuning.probes import Probes
from kit.tuning.reasons import write_finding

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, repr=False)
class LoaderTuning:
    """Settings for a DataLoader, how fast they were, and why they are these.

    `settings` is what `make_loader(**settings)` takes. `predicted` has items per second
    for each number of workers that came into question, `measured` a value with its 95 %
    interval for those that were tried. No candidate beats the chosen one by more than
    the fraction `regret`, as far as prediction and measurement can tell. `probes` are
    the times behind the prediction, `reason` is the answer in words.
    """

    settings: Mapping[str, object]
    predicted: Mapping[int, float]
    measured: Mapping[int, Estimate]
    regret: float
    probes: Probes
    reason: str
    seconds: float
    starts: int

    @property
    def num_workers(self) -> int:
        """The number of workers that was chosen."""
        return int(str(self.settings["num_workers"]))

    def rows(self) -> list[tuple[str, str, str]]:
        """Return the probes as (name, value, remark)."""
        p = self.probes
        size = figures.format_bytes(p.batch_bytes)
        busy = f"on {p.step_cores:.2g} of {p.cores} cores"
        computes = p.load_seconds - p.waiting_seconds
        rows = [
            ("a sample", p.sample_seconds, "in this process"),
            ("collating a batch", p.collate_seconds, f"{p.batch_size} samples, {size}"),
            ("a batch, no workers", p.alone_seconds, "in this process"),
            (
                "a batch, one worker",
                p.load_seconds,
                f"it computes for {figures.format_seconds(computes)} of them",
            ),
            ("taking it over", p.carry_seconds, "in this process"),
            ("a step alone", p.step_seconds, busy if p.step_seconds else "no step"),
        ]
        return [(n, figures.format_seconds(v), r) for n, v, r in rows]

    def table(self) -> list[tuple[str, str, str, str]]:
        """Return workers, predicted and measured items per second with the interval."""
        told = []
        for workers in sorted(self.predicted):
            value, low, high = self.measured.get(workers, (math.nan,) * 3)
            known = not math.isnan(low)
            told.append(
                (
                    f"{workers} ←" if workers == self.num_workers else str(workers),
                    figures.format_number(self.predicted[workers]),
                    "–" if math.isnan(value) else figures.format_number(value),
                    f"[{low:,.4g}, {high:,.4g}]" if known else "",
                )
            )
        return told

    def finding(self) -> str:
        """Return the result in one sentence."""
        return write_finding(self.settings, self.measured)

    def plot(self) -> Axes:
        """Draw items per second over workers, predicted and measured; return Axes."""
        workers = sorted(self.predicted)
        # A gap where nothing was measured: a line through it would claim too much.
        unknown = (None, None, None)
        tried = [self.measured.get(n, unknown) for n in workers]
        figure = figures.draw_lines(
            {
                "predicted": (
                    workers,
                    [self.predicted[n] for n in workers],
                    None,
                    None,
                    "predicted",
                ),
                "measured": (workers, *zip(*tried, strict=True), "measured"),
            },
            title=self.finding(),
            xlabel="num_workers",
            ylabel="items per second",
        )
        return figure.axes[0]

    def _notes(self) -> str:
        return (
            "As far as prediction and measurement tell, nothing else in question beats "
            f"it by more than {self.regret:.1%}. "
            f"{self.seconds:.0f} s, {self.starts} starts of a loader with workers."
        )

    def __repr__(self) -> str:
        said = ", ".join(f"{k}={v!r}" for k, v in self.settings.items())
        headers = ("workers", "predicted", "measured", "95 % interval")
        return "\n".join(
            [
                self.finding(),
                f"  {said}",
                *(f"  {line}" for line in _wrap(self.reason)),
                *(f"  {line}" for line in _wrap(self._notes())),
                _indent(figures.text_table(headers, self.table())),
                _indent(figures.text_table(["", "", ""], self.rows()).lstrip("\n ")),
            ]
        )

    def _repr_html_(self) -> str:
        said = ", ".join(f"{k}={v!r}" for k, v in self.settings.items())
        headers = ("workers", "predicted", "measured", "95 % interval")
        card = figures.html_card(
            self.finding(), self.rows(), note=f"{said}. {self.reason}"
        )
        return card + figures.html_table(
            headers, self.table(), title="Items per second", note=self._notes()
        )


def _wrap(text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, 84)


def _indent(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())
