"""What a panel looks like: controls on the left, a picture beside them, words below.

The one module that imports ipywidgets; a panel imports it when it is shown.
"""

from __future__ import annotations

import contextlib
import html
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets as widgets
from IPython import display

from kit.figures import COLOURS

#: So many names, so short in all, are buttons side by side.
_MOST_BUTTONS, _MOST_LETTERS = 6, 22
_LINE, _CARD = COLOURS["border"], COLOURS["card"]
_STYLE = f"""
.kit-panel {{ border: 1px solid var(--jp-border-color2, {_LINE}); border-radius: 10px;
  background: var(--jp-layout-color1, {_CARD}); padding: 14px 16px; max-width: 868px; }}
.kit-panel .widget-html-content {{ line-height: 1.45; font-size: 14px; }}
.kit-panel .widget-toggle-buttons > div {{ display: flex; gap: 6px; flex-wrap: wrap; }}
.kit-panel :is(.mod-active, .kit-run, .noUi-handle, .progress-bar) {{ color: {_CARD};
  background: {COLOURS["measured"]} !important; }}
.kit-panel :is(button, select, .noUi-handle):focus-visible {{ outline-offset: 2px;
  outline: 2px solid {COLOURS["predicted"]} !important; }}
.kit-panel [role=alert], .kit-panel pre {{ white-space: pre-wrap; }}
"""


class View:
    """A panel's widgets. Threads only set their values; nothing here prints.

    They are made of the panel's `title` and `lists`, the `names` of the choices and the
    numbers `start` of those chosen first; they press its `begin`, `stop` and `clear`.
    The last view that goes presses Stop, too.
    """

    def __init__(self, panel: Any) -> None:
        self._panel, lists, at = panel, panel.lists, panel.start
        knobs = {k: _make_control(lists[k], panel.names[k], at[k]) for k in lists}
        acts: dict[str, Callable[[], None]] = {
            "run": lambda: panel.begin({knob: knobs[knob].value for knob in knobs}),
            "run-all": lambda: panel.begin(None),
            "stop": panel.stop,
            "clear": panel.clear,
        }
        self._buttons = {name: _make_button(name, act) for name, act in acts.items()}
        thin = {"width": "99%", "height": "6px"}
        self._bar = widgets.FloatProgress(max=1, layout=thin)
        self._picture, self._words, self._status = (widgets.HTML() for _ in range(3))
        parts = {"picture": self._picture, "words": self._words, "progress": self._bar}
        parts |= {"status": self._status, **self._buttons}
        parts |= {f"knob-{knob}": control for knob, control in knobs.items()}
        for name, widget in parts.items():
            widget.add_class(f"kit-{name}")
        left: list[Any] = []
        for knob, control in knobs.items():
            left += [widgets.HTML(f"<b>{knob}</b>"), control]
        grid = {"grid_template_columns": "1fr 1fr", "grid_gap": "8px"}
        left.append(widgets.GridBox([*self._buttons.values()], layout=grid))
        aside = {"flex": "0 0 236px", "width": "236px", "grid_gap": "6px"}
        beside = {"flex": "1 1 300px", "min_width": "0", "min_height": "300px"}
        wrap = {"flex_flow": "row wrap", "grid_gap": "8px 20px"}
        columns = [widgets.VBox(left, layout=aside)]
        columns.append(widgets.VBox([self._picture], layout=beside))
        self._kept = f"kit-kept-{id(self)}"
        style = f"<style>{_STYLE}.{self._kept} {{display: none}}</style>"
        rows = [widgets.HTML(f"{style}<b>{html.escape(panel.title)}</b>")]
        rows += [widgets.HBox(columns, layout=wrap), self._bar, self._status]
        self._root = widgets.VBox([*rows, self._words], layout={"grid_gap": "10px"})
        self._root.add_class("kit-panel")
        self._root._view_count = 0  # from now on the front end counts
        self._root.observe(lambda c: c["new"] or panel.stop(), "_view_count")
        self._copies = list[Any]()

    def display(self, text: str) -> None:
        """Show the widgets, and below them what is kept where there are none.

        While the widgets are alive, their style hides the latter; opened again without
        a kernel, they are an error message, and the style of the latter hides that.
        """
        bundle, nothing = self._root._repr_mimebundle_(), {"text/plain": ""}
        display.display({**bundle, "text/plain": text}, raw=True)
        self._copies.append(display.display(nothing, raw=True, display_id=True))

    def refresh(self) -> None:
        """Let those buttons be pressed that can do something; show what came of it.

        It is kept, too, for who has the notebook and no kernel.
        """
        panel, several = self._panel, len(self._panel.variants) > 1
        for name, button in self._buttons.items():
            button.disabled = (panel.progress is None) == (name == "stop")
        self._buttons["run-all"].disabled |= not several
        if panel.progress is not None:
            return
        picture, words, error = panel.report()
        self.show_picture(picture)
        self._words.value, self._bar.value = words, 0
        seconds = panel.seconds_for_all
        about = f", about {seconds:.0f} s" if seconds else ""
        ready = f" Run all compares {len(panel.variants)} choices{about}." * several
        self._status.value = error or f'<div role="status">Ready.{ready}</div>'
        hide = f".jp-OutputArea-child:not(:has(.kit-panel)):has(+ * .{self._kept})"
        page = (
            f"<style>{hide} {{display: none}}</style>"
            f'<div class="{self._kept}">{picture}{words}{error}</div>'
        )
        for copy in filter(None, self._copies):
            with contextlib.suppress(Exception):  # a front end that is gone
                copy.update({"text/plain": "", "text/html": page}, raw=True)

    def show_picture(self, picture: str) -> None:
        """Show a picture, or what to do where there is none."""
        self._picture.value = picture or "Choose on the left, then press Run."

    def show_progress(self, text: str, fraction: float) -> None:
        """Show how far a run is; not announced, for it changes five times a second."""
        self._status.value = f"<div>{html.escape(text)}</div>"
        self._bar.value = fraction


def _make_button(name: str, act: Callable[[], None]) -> Any:
    words = name.replace("-", " ").capitalize()
    button = widgets.Button(description=words, layout={"width": "auto", "margin": "0"})
    button.on_click(lambda _: act())
    return button


def _make_control(values: Sequence[Any], names: Sequence[str], start: int) -> Any:
    """Make buttons for few short choices, a slider for numbers, a list for others."""
    numbers = all(isinstance(value, (int, float)) for value in values)
    kind = widgets.SelectionSlider if numbers else widgets.Dropdown
    if len(names) <= _MOST_BUTTONS and sum(map(len, names)) <= _MOST_LETTERS:
        kind = widgets.ToggleButtons
    options = [(name, number) for number, name in enumerate(names)]
    control = kind(options=options, index=start, layout={"width": "99%", "margin": "0"})
    if kind is widgets.ToggleButtons:
        control.style.button_width = "auto"
    return control
