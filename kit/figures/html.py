"""Pictures as static images with alt text, and tables: HTML with its look inline."""

from __future__ import annotations

import base64
import html
import io
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kit.figures.style import COLOURS, one_at_a_time, settle

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MUTED = f"color:{COLOURS['muted']};"
_CARD = f"background:{COLOURS['card']};color:{COLOURS['ink']};"
_FRAME = f"border:1px solid {COLOURS['border']};border-radius:8px;box-sizing:border-box"
_BOX = (
    f"{_CARD}{_FRAME};padding:12px 10px;margin:4px 0;max-width:760px;overflow-x:auto;"
    "font-size:14px;line-height:1.45;font-variant-numeric:tabular-nums"
)
# A notebook's theme colours the rows of tables: each cell has a background of its own.
_CELL = f"{_CARD}border:none;padding:4px 24px 4px 8px;vertical-align:top;"
_HEAD = f"{_CELL}{_MUTED}border-bottom:1px solid {COLOURS['border']};"
_TITLE = "padding-left:8px;font-weight:600;font-size:15px"
_SMALL = f"{_MUTED}margin-top:6px;font-size:13px;padding-left:8px"
#: A name of more characters than these may be broken, so that no column is cut.
_LONG = 24
_NUMBER = re.compile(r"[–−\-\[0-9]|unknown$|$")  # begins so


@one_at_a_time
def to_png(figure: Figure) -> bytes:
    """Render a figure as PNG bytes.

    Not by `savefig`, whose resolution, color and edges are the reader's settings.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    before, file = figure.canvas, io.BytesIO()
    try:
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        size = canvas.get_width_height(physical=True)
        pixels = canvas.buffer_rgba()
        picture = Image.frombuffer("RGBA", size, pixels, "raw", "RGBA", 0, 1)
        picture = picture.convert("RGB")
    finally:
        figure.set_canvas(before)
    # 128 colours show a chart as well as 16 million, in a third of the bytes. Chosen
    # so, they are found in half the time that others take, and none is far off.
    chosen = {"method": Image.Quantize.MAXCOVERAGE, "dither": Image.Dither.NONE}
    picture.quantize(128, **chosen).save(file, "PNG", optimize=True)
    return file.getvalue()


def to_html(figure: Figure, alt: str) -> str:
    """Render a figure as an HTML image that holds its bytes and its alt text."""
    source = base64.b64encode(to_png(figure)).decode()
    return (
        f'<img alt="{html.escape(alt)}" width="{round(figure.get_figwidth() * 100)}" '
        f'style="max-width:100%;height:auto;{_FRAME}" '
        f'src="data:image/png;base64,{source}">'
    )


def show(drawn: Axes | Figure, alt: str | None = None) -> Figure:
    """Let a figure, or the figure of these axes, show itself in a notebook cell.

    It is shown as a static image with alt text, and so are its axes. What the kit draws
    has such a text; any other figure needs this and an `alt`. Raises ValueError where
    there is none.
    """
    figure: Any = drawn.get_figure(root=True)
    figure.alt = alt or getattr(figure, "alt", "")
    if not figure.alt:
        raise ValueError("a picture needs alt text: show(figure, 'what it shows')")

    def as_image(**_: Any) -> dict[str, str]:
        return {"text/html": to_html(figure, figure.alt), "text/plain": figure.alt}

    # IPython shows a bare Figure or Axes as text, unless pyplot has been set up.
    for shown in (figure, *figure.axes):
        shown._repr_mimebundle_ = as_image
    return figure


def describe(figure: Figure, *sentences: str) -> Figure:
    """Give a figure these sentences as its alt text, and let it show itself."""
    settle(figure)
    return show(figure, " ".join(f"{s.rstrip('.')}." for s in sentences if s))


def html_card(
    title: str, rows: Sequence[Sequence[object]], *, note: str = "", footer: str = ""
) -> str:
    """Write (name, value, remark) rows as a light HTML card; every text is escaped.

    >>> "&lt;b&gt;" in html_card("A trial", [("knob", "<b>", "as given")])
    True
    """
    return html_table(("", "", ""), rows, title=title, lead=note, note=footer)


def html_sentence(text: str, details: str = "") -> str:
    """Write a finding as a light HTML card, and what stands behind it in small."""
    return html_table((), (), title=text, note=details)


def html_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    title: str = "",
    lead: str = "",
    note: str = "",
    details: Sequence[str] = (),
) -> str:
    """Write a table as a light HTML card; every text is escaped.

    Columns of numbers are aligned to the right, except the first. `title` and `lead`
    stand above it, `note` below, in small, and `details` folded away below that, a
    sentence each. Raises ValueError for a row that is not as long as `headers`.

    >>> html_table(["knob", "rate"], [["<2>", 770]]).count("&lt;2&gt;")
    1
    """
    columns = _columns(headers, rows)
    cells = list(zip(*(texts for texts, _ in columns), strict=True))
    # A number and an interval are read at a glance only on one line.
    sides = ["right;white-space:nowrap" if number else "left" for _, number in columns]
    head = _row(headers, sides, _HEAD, 'th scope="col"') if any(headers) else ""
    body = "".join(_row(line, sides, _CELL, "td") for line in cells[1:])
    table = f"<thead>{head}</thead><tbody>{body}</tbody></table>"
    summary = "<summary style='cursor:pointer'>How sure, and why</summary>"
    folded = "".join(_line(sentence, "") for sentence in details)
    parts = (
        _line(title, _TITLE),
        _line(lead, "padding-left:8px"),
        f"<table style='border-collapse:collapse'>{table}" if head or body else "",
        _line(note, _SMALL),
        f"<details style='{_SMALL}'>{summary}{folded}</details>" if details else "",
    )
    return f'<div style="{_BOX}">{"".join(parts)}</div>'


def html_pictures(pictures: Sequence[tuple[str, bytes]], *, caption: str) -> str:
    """Write (name, JPEG bytes) as a row of small pictures in a light HTML card.

    >>> 'alt="image: ring"' in html_pictures([("ring", b"")], caption="One photo")
    True
    """
    shown = [_line(caption, _TITLE)]
    for name, jpeg in pictures:
        source, name = base64.b64encode(jpeg).decode(), html.escape(name)
        shown.append(
            f'<span style="display:inline-block;margin:6px 0 0 8px;{_MUTED}">'
            f'<img alt="image: {name}" width="64" height="64" '
            f'src="data:image/jpeg;base64,{source}"><br>{name}</span>'
        )
    return f'<div style="{_BOX}">{"".join(shown)}</div>'


def html_page(title: str, *parts: str, text: str = "") -> str:
    """Write parts of HTML as a page of its own, `text` below them for a copy.

    >>> html_page("A < B", "<p>it is</p>").count("A &lt; B")
    1
    """
    return (
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>"
        f"<meta name='color-scheme' content='light dark'><title>{html.escape(title)}"
        "</title></head><body style='max-width:780px;margin:24px auto;"
        f"font-family:system-ui,sans-serif'>{''.join(parts)}"
        f"<pre style='{_BOX}'>{html.escape(text)}</pre></body></html>\n"
    )


def html_progress(text: str, fraction: float) -> str:
    """Write how far something is, over a bar that is full at 1.

    >>> "value='0.25'" in html_progress("a quarter done", 0.25)
    True
    """
    return (
        f"<div role='status'>{html.escape(text)}<br>"
        f"<progress value='{fraction:.2f}' max='1' style='width:24em'></progress></div>"
    )


def text_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Write a table in plain text; columns of numbers are aligned to the right.

    Raises ValueError for a row that is not as long as `headers`.

    >>> print(text_table(["workers", "rate"], [["0", 770], ["auto", None]]))
    workers  rate
    0         770
    auto        –
    """
    shown = []
    for texts, is_number in _columns(headers, rows):
        pad, width = str.rjust if is_number else str.ljust, max(map(len, texts))
        shown.append([pad(text, width) for text in texts])
    return "\n".join("  ".join(line).rstrip() for line in zip(*shown, strict=True))


def _columns(
    headers: Sequence[str], rows: Sequence[Sequence[object]]
) -> list[tuple[list[str], bool]]:
    """Return each column's texts below its header, and whether they are numbers.

    The first column has names.
    """
    columns = []
    for column in zip(headers, *rows, strict=True):
        texts = [_plain(value) for value in column]
        is_number = bool(columns) and all(map(_NUMBER.match, texts[1:]))
        columns.append((texts, is_number))
    return columns


def _plain(value: object) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    return str(value) if not isinstance(value, bool) else "yes" if value else "no"


def _row(texts: Sequence[str], sides: Sequence[str], look: str, tag: str) -> str:
    cells = [
        f'<{tag} style="{look}text-align:{side}">{_may_break(text)}</{tag[:2]}>'
        for text, side in zip(texts, sides, strict=True)
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _may_break(text: str) -> str:
    """Escape a text; a long name may go on in the next line after = and _.

    Not by a style: of an untrusted notebook Jupyter keeps some styles only.
    """
    written = html.escape(text)
    if len(text) <= _LONG:
        return written
    return re.sub("([=_])", r"\1<wbr>", written)


def _line(text: str, style: str) -> str:
    return f'<div style="{style}">{html.escape(text)}</div>' if text else ""
