"""The controls of the panel that takes a number apart, as widgets."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from kit.costs.number_formats import format_exactly
from kit.experiment import ExperimentError
from kit.figures import BIT_LOOKS
from kit.panel.controls import (
    label_control,
    make_button,
    make_column,
    make_control,
    make_grid,
    make_text,
)
from kit.panel.face import Face
from kit.panel.formats import MOST_BITS, read_number

if TYPE_CHECKING:
    from kit.panel.formats import Formats


class FormatsView(Face):
    """A number to type, a format, buttons that change it; its bits and a picture."""

    def __init__(self, panel: Formats) -> None:
        super().__init__(panel)
        self._panel = panel
        self._showing = False
        self._number = widgets.Text(
            value=format_exactly(panel.value),
            continuous_update=False,
            layout=widgets.Layout(width="100%", margin="0"),
            tooltip="a number, such as 0.1, 1/3, 2**-24, 65520, nan or inf",
        )
        self._number.add_class("kit-number")
        self._number.observe(self._on_number, "value")
        self._format = make_control("format", list(panel.formats), panel.chosen)
        self._format.observe(self._on_format, "value")
        changes = [
            ("× 2", "kit-double", lambda: panel.scale(2)),
            ("÷ 2", "kit-halve", lambda: panel.scale(0.5)),
            ("next smaller", "kit-smaller", lambda: panel.step(-1)),
            ("next larger", "kit-larger", lambda: panel.step(1)),
            ("negate", "kit-negate", lambda: panel.scale(-1)),
        ]
        buttons = [make_button(*change) for change in changes]
        self._bits = [self._make_bit(place) for place in range(MOST_BITS)]
        self._row = widgets.HBox(self._bits)
        self._row.layout = widgets.Layout(flex_flow="row wrap", grid_gap="3px")
        self._row.add_class("kit-bits")
        self._bits_label = make_text("kit-bits-label")
        self._picture, self._summary = (
            make_text("kit-picture"),
            make_text("kit-summary"),
        )
        self._starters = [self._number, self._format, *buttons, *self._bits]
        self._enclose(
            [
                label_control("number", self._number),
                label_control("format", self._format),
                make_grid(buttons),
            ],
            [make_column([self._bits_label, self._row], gap="4px"), self._summary],
            [self._picture],
        )
        self._root.add_class("kit-formats")

    def _make_bit(self, place: int) -> Any:
        bit = make_button("0", f"kit-bit-{place}", lambda: self._panel.flip(place))
        bit.add_class("kit-bit")
        return bit

    def _on_number(self, change: Any) -> None:
        if not self._showing:
            self._panel.try_to_set(change["new"])

    def _on_format(self, change: Any) -> None:
        if not self._showing:
            self._panel.choose(change["new"])

    def _show_findings(self) -> None:
        panel = self._panel
        self._showing = True
        try:
            if not panel.results.error and not _is_same(
                self._number.value, panel.value
            ):
                self._number.value = format_exactly(panel.value)
            self._format.value = panel.chosen
        finally:
            self._showing = False
        self._show_bits()
        told = html.escape(panel.results.summary())
        self._summary.value = f'<div role="status">{told}</div>'
        self._picture.value = panel.results.picture()

    def _show_bits(self) -> None:
        name, digits = self._panel.chosen, self._panel.bits
        form = self._panel.formats[name]
        fits = form.bits <= MOST_BITS
        label = (
            f"the bits of {name}: press one to flip it"
            if fits
            else f"{name} has {form.bits} bits, too many for buttons: choose a format "
            f"with at most {MOST_BITS}"
        )
        self._bits_label.value = f'<span class="kit-label">{html.escape(label)}</span>'
        sizes = (1, form.exponent_bits, form.mantissa_bits)
        parts = [p for p, n in zip(BIT_LOOKS, sizes, strict=True) for _ in range(n)]
        for place, bit in enumerate(self._bits):
            shown = fits and place < form.bits
            bit.layout.display = "" if shown else "none"
            if not shown:
                continue
            part, digit = parts[place], digits[place]
            bit.description = digit
            bit.tooltip = f"{part}, bit {place}: {digit}; press to flip"
            for other in BIT_LOOKS:
                wanted = other == part
                (bit.add_class if wanted else bit.remove_class)(f"kit-bit-{other}")

    def _say_ready(self) -> str:
        return "Type a number and press Enter, or press a button."


def _is_same(text: str, value: float) -> bool:
    """Return whether a text means this number."""
    try:
        return format_exactly(read_number(text)) == format_exactly(value)
    except ExperimentError:
        return False
