"""The widgets that panels are made of: buttons, choices, texts, columns."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator
from typing import Any

import ipywidgets as widgets

from kit.choices import is_same
from kit.panel.choices import write_choices

#: Choices that are so short in all stand side by side.
_LETTERS_IN_A_ROW, _MOST_BUTTONS = 22, 6


def make_button(text: str, name: str, act: Callable[[], None]) -> Any:
    """Make a button with a class of its own; pressing it calls `act`."""
    button = widgets.Button(description=text)
    button.layout = widgets.Layout(width="auto", margin="0")
    button.add_class(name)
    button.on_click(lambda _: act())
    return button


def make_control(knob: str, values: list[Any], start: Any) -> Any:
    """Make buttons for few short choices, a slider for numbers, a list for others."""
    names = write_choices(values)
    more: dict[str, Any] = {
        "options": list(zip(names, values, strict=True)),
        "index": next(i for i, value in enumerate(values) if is_same(value, start)),
        "equals": is_same,  # arrays cannot be compared as others can
        "layout": widgets.Layout(width="100%", margin="0"),
    }
    numbers = all(
        isinstance(v, (int, float)) and not isinstance(v, bool) for v in values
    )
    few = len(names) <= _MOST_BUTTONS and sum(map(len, names)) <= _LETTERS_IN_A_ROW
    control: Any
    if few:
        control = widgets.ToggleButtons(
            **more,
            style={"button_width": "auto"},
            tooltips=[f"{knob}={name}" for name in names],
        )
    elif numbers:
        control = widgets.SelectionSlider(**more, tooltip=knob, continuous_update=True)
    else:
        control = widgets.Dropdown(**more, tooltip=knob)
    control.add_class(f"kit-knob-{knob}")
    return control


def label_control(label: str, control: Any) -> Any:
    """Put a label above a control."""
    words = f'<span class="kit-label">{html.escape(label)}</span>'
    return make_column([widgets.HTML(words), control], gap="3px")


def make_text(name: str) -> Any:
    """Make an empty text with a class of its own."""
    widget = widgets.HTML(layout=widgets.Layout(margin="0", width="100%"))
    widget.add_class(name)
    return widget


def make_column(children: list[Any], *, gap: str, width: str = "100%") -> Any:
    """Put widgets below each other."""
    return widgets.VBox(children, layout=widgets.Layout(grid_gap=gap, width=width))


def make_grid(children: list[Any]) -> Any:
    """Put widgets into two columns of equal width."""
    columns = widgets.Layout(
        grid_template_columns="1fr 1fr", grid_gap="8px", width="100%"
    )
    return widgets.GridBox(children, layout=columns)


def list_all(widget: Any) -> Iterator[Any]:
    """Yield a widget and everything in it."""
    yield widget
    for child in getattr(widget, "children", ()):
        yield from list_all(child)


def route_as_asked(widget: Any) -> None:
    """Let messages of a widget go where the front end sends them.

    ipykernel 7 sends them to the shell that last spoke to the widget: a button that has
    not been pressed before would wait until the running cell has ended, and controls
    would overtake each other.
    """
    if hasattr(widget.comm, "_reply_subshell_for"):
        widget.comm._reply_subshell_for = lambda data, default: default


def write_error(error: str, traceback: str) -> str:
    """Write an error as HTML that is announced, its traceback folded away."""
    lines = html.escape(traceback)
    return (
        f'<div role="alert" class="kit-failed">{html.escape(error)}</div>'
        f"<details><summary>Traceback</summary><pre>{lines}</pre></details>"
    )
