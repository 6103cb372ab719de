"""What a panel looks like: controls on the left, a picture beside them, words below.

The one module that imports ipywidgets; a panel imports it when it is shown.
"""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ipywidgets as widgets

from kit.figures import COLOURS

#: So many names, so short in all, are buttons side by side.
_MOST_BUTTONS, _MOST_LETTERS = 6, 22
_LINE, _CARD = COLOURS["border"], COLOURS["card"]
_STYLE = f"""
.kit-panel {{ border: 1px solid var(--jp-border-color2, {_LINE}); border-radius: 10px;
  background: var(--jp-layout-color1, {_CARD}); padding: 14px 16px; max-width: 868px; }}
.kit-panel .widget-html-content {{ line-height: 1.45; font-size: 14px;
  min-width: 0; white-space: normal; }}
.kit-panel .widget-toggle-buttons > div {{ display: flex; gap: 6px; flex-wrap: wrap; }}
.kit-panel :is(.mod-active, .kit-run, .noUi-handle, .progress-bar) {{ color: {_CARD};
  background: {COLOURS["measured"]} !important; }}
.kit-panel :is(button, select, .noUi-handle):focus-visible {{ outline-offset: 2px;
  outline: 2px solid {COLOURS["predicted"]} !important; }}
.kit-panel [role=alert], .kit-panel pre {{ white-space: pre-wrap; }}
"""


@dataclass(frozen=True)
class Knob:
    """What a control is made for: its values, their names, which is chosen first."""

    values: Sequence[Any]
    names: Sequence[str]
    start: int


@dataclass(frozen=True)
class Widgets:
    """The widgets of a panel. Threads only set their values; nothing here prints.

    `copy_class` is the class of what a notebook keeps below them. While the widgets are
    alive their style hides it.
    """

    root: Any
    knobs: Mapping[str, Any]
    buttons: Mapping[str, Any]
    picture: Any
    words: Any
    status: Any
    bar: Any
    copy_class: str

    def chosen(self) -> dict[str, int]:
        """Return which value stands on each control."""
        return {name: control.value for name, control in self.knobs.items()}

    def bundle(self, text: str) -> dict[str, Any]:
        """Return what a notebook shows of them, `text` where there are no widgets."""
        return {**self.root._repr_mimebundle_(), "text/plain": text}

    def wrap_copy(self, page: str) -> str:
        """Return HTML for who has the notebook and no kernel.

        There the widgets are an error message, which the style of this hides.
        """
        kept = self.copy_class
        hide = f".jp-OutputArea-child:not(:has(.kit-panel)):has(+ * .{kept})"
        style = f"<style>{hide} {{display: none}}</style>"
        return f'{style}<div class="{kept}">{page}</div>'


def build(
    title: str, knobs: Mapping[str, Knob], acts: Mapping[str, Callable[[], None]]
) -> Widgets:
    """Make the widgets of a panel; `acts` has what each button does, by its name.

    Where the last view of them goes, Stop is pressed, too.
    """
    controls = {name: _make_control(knob) for name, knob in knobs.items()}
    buttons = {name: _make_button(name, act) for name, act in acts.items()}
    bar = widgets.FloatProgress(max=1, layout={"width": "99%", "height": "6px"})
    picture, words, status = widgets.HTML(), widgets.HTML(), widgets.HTML()
    named = {"picture": picture, "words": words, "progress": bar, "status": status}
    named |= buttons
    named |= {f"knob-{name}": control for name, control in controls.items()}
    for name, widget in named.items():
        widget.add_class(f"kit-{name}")
    left: list[Any] = []
    for name, control in controls.items():
        left += [widgets.HTML(f"<b>{html.escape(name)}</b>"), control]
    grid = {"grid_template_columns": "1fr 1fr", "grid_gap": "8px"}
    left.append(widgets.GridBox([*buttons.values()], layout=grid))
    aside = {"flex": "0 0 236px", "width": "236px", "grid_gap": "6px"}
    beside = {"flex": "1 1 300px", "min_width": "0", "min_height": "300px"}
    columns = [
        widgets.VBox(left, layout=aside),
        widgets.VBox([picture], layout=beside),
    ]
    copy_class = f"kit-kept-{os.urandom(8).hex()}"
    style = f"<style>{_STYLE}.{copy_class} {{display: none}}</style>"
    wrap = {"flex_flow": "row wrap", "grid_gap": "8px 20px"}
    rows = [
        widgets.HTML(f"{style}<b>{html.escape(title)}</b>"),
        widgets.HBox(columns, layout=wrap),
        bar,
        status,
        words,
    ]
    root = widgets.VBox(rows, layout={"grid_gap": "10px"})
    root.add_class("kit-panel")
    root._view_count = 0  # from now on the front end counts
    root.observe(lambda change: change["new"] or acts["stop"](), "_view_count")
    return Widgets(root, controls, buttons, picture, words, status, bar, copy_class)


def _make_button(name: str, act: Callable[[], None]) -> Any:
    words = name.replace("-", " ").capitalize()
    button = widgets.Button(description=words, layout={"width": "auto", "margin": "0"})
    button.on_click(lambda _: act())
    return button


def _make_control(knob: Knob) -> Any:
    """Make buttons for few short choices, a slider for numbers, a list for others."""
    numbers = all(isinstance(value, (int, float)) for value in knob.values)
    kind = widgets.SelectionSlider if numbers else widgets.Dropdown
    letters = sum(map(len, knob.names))
    if len(knob.names) <= _MOST_BUTTONS and letters <= _MOST_LETTERS:
        kind = widgets.ToggleButtons
    options = [(name, number) for number, name in enumerate(knob.names)]
    layout = {"width": "99%", "margin": "0"}
    control = kind(options=options, index=knob.start, layout=layout)
    if kind is widgets.ToggleButtons:
        control.style.button_width = "auto"
    return control
