"""What the views of all panels share: title, status line, table, what is kept."""

from __future__ import annotations

import abc
import contextlib
import html
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from kit.figures import PANEL_STYLE
from kit.panel.controls import (
    list_all,
    make_column,
    make_text,
    route_as_asked,
    write_error,
)

if TYPE_CHECKING:
    from kit.panel.panel import Panel

_CONTROLS_WIDTH = "236px"


class Face(abc.ABC):
    """Controls on the left, a result beside or below them, a status line, a table.

    A view makes its controls, names in `_starters` those that go out of service with
    it, and encloses all of them. Threads only set the widgets' values; nothing here
    prints.
    """

    def __init__(self, panel: Panel) -> None:
        self._framed: Any = panel
        self._starters: list[Any] = []
        self._status, self._history = make_text("kit-status"), make_text("kit-history")
        self._stored: list[Any] = []
        self._closed = False

    @abc.abstractmethod
    def _show_findings(self) -> None:
        """Show what was found, as pictures and words."""

    @abc.abstractmethod
    def _say_ready(self) -> str:
        """Return what can be done next."""

    def _enclose(
        self, controls: list[Any], beside: list[Any], below: list[Any]
    ) -> None:
        """Lay out what a view has made, and begin to show it."""
        title = widgets.HTML(
            f"<style>{PANEL_STYLE}.{self._stored_class} {{display: none}}</style>"
            f'<div class="kit-title">{html.escape(self._framed.title)}</div>'
        )
        left = make_column(controls, gap="14px", width=_CONTROLS_WIDTH)
        left.layout.flex = f"0 0 {_CONTROLS_WIDTH}"
        right = make_column(beside, gap="4px", width="auto")
        right.layout.flex, right.layout.min_width = "1 1 300px", "0"
        upper = widgets.HBox([left, right])
        upper.layout = widgets.Layout(flex_flow="row wrap", grid_gap="8px 20px")
        rows = [title, upper, *self._list_rows(), *below, self._history]
        self._root = make_column(rows, gap="10px")
        self._root.add_class("kit-panel")
        for widget in list_all(self._root):
            route_as_asked(widget)
        self._root._view_count = 0  # from now on the front end counts
        self.refresh()

    def _list_rows(self) -> list[Any]:
        """Return what stands below the controls and the result."""
        return [self._status]

    @property
    def _stored_class(self) -> str:
        return f"kit-stored-{id(self._framed)}"

    def display(self) -> None:
        """Show the controls, and what is kept where these cannot be shown again.

        While the controls are alive, their style hides the latter.
        """
        from IPython.display import display

        bundle = self._root._repr_mimebundle_()
        data = dict(bundle[0] if isinstance(bundle, tuple) else bundle)
        display({**data, "text/plain": repr(self._framed)}, raw=True)
        kept = display(self._static(), raw=True, display_id=True)
        self._stored += [kept] if kept is not None else []

    def _static(self) -> dict[str, str]:
        kept = self._stored_class
        # Opened again without a kernel, the controls above are an error message.
        dead = f".jp-OutputArea-child:not(:has(.kit-panel)):has(+ * .{kept})"
        style = f"<style>{dead} {{display: none}}</style>"
        static = self._framed.results.static()
        body = f'{style}<div class="{kept}">{static}</div>' if static else ""
        return {"text/plain": self._framed.results.summary(), "text/html": body}

    def refresh(self) -> None:
        """Show the panel's present state."""
        if not self._closed:
            self._show_result()

    def _show_result(self) -> None:
        results = self._framed.results
        self._show_findings()
        self._history.value = results.history()
        self._status.value = (
            write_error(results.error, results.traceback)
            if results.error
            else f'<div role="status">{html.escape(self._say_ready())}</div>'
        )
        static = self._static() if self._stored else {}
        for kept in self._stored:
            with contextlib.suppress(Exception):  # a front end that is gone
                kept.update(static, raw=True)

    def close(self) -> None:
        """Take the controls out of service; the picture and the table stay."""
        self._closed = True
        with contextlib.suppress(Exception):  # a front end that is gone
            for control in self._starters:
                control.disabled = True
            self._status.value = (
                '<div role="status">This panel has ended; run its cell again.</div>'
            )
