"""Findings and tables as light HTML cards, and tables in plain text."""

import base64
import html
import math
from collections.abc import Mapping, Sequence

from kit.figures.theme import COLOURS

_MUTED = f"color:{COLOURS['muted']};"
_BOX = (
    f"background:{COLOURS['card']};color:{COLOURS['ink']};line-height:1.45;"
    f"border:1px solid {COLOURS['border']};border-radius:8px;padding:12px 10px;"
    "margin:4px 0;max-width:760px;box-sizing:border-box;overflow-x:auto;"
    "font-size:14px;font-variant-numeric:tabular-nums"
)
_TABLE = "border-collapse:collapse;border:none;margin:6px 0 0 0;font-size:14px"
_TITLE = "font-weight:600;font-size:15px"
_NOTE = f"{_MUTED}margin-top:6px;font-size:13px"
_HEAD, _ROW_HEAD = 'th scope="col"', 'th scope="row"'
# A notebook's theme colours the rows of tables: each cell has a background of its own.
_CELL = (
    f"text-align:left;vertical-align:top;padding:4px 24px 4px 8px;border:none;"
    f"white-space:normal;max-width:none;background:{COLOURS['card']};"
    f"color:{COLOURS['ink']};"
)
#: Of a table that has much to show.
_COMPACT = "padding:4px 8px;font-size:12px;white-space:nowrap;"


def html_card(
    title: str,
    rows: Sequence[tuple[str, object, str]],
    *,
    note: str = "",
    footer: str = "",
) -> str:
    """Write (name, value, remark) rows as a light HTML card; every text is escaped.

    >>> "&lt;b&gt;" in html_card("A trial", [("knob", "<b>", "as given")])
    True
    """
    body = ""
    for name, value, remark in rows:
        whole = "white-space:nowrap;" if len(_plain(value)) < 30 else ""
        label = _cell(name, f"{_MUTED}white-space:nowrap;font-weight:400", _ROW_HEAD)
        shown = _cell(value, f"{whole}font-weight:600")
        body += f"<tr>{label}{shown}{_cell(remark, _MUTED)}</tr>"
    return _box(
        _line(title, _TITLE),
        _line(note, "margin-top:4px"),
        f'<table style="{_TABLE}"><tbody>{body}</tbody></table>' * bool(rows),
        _line(footer, _NOTE),
    )


def html_sentence(text: str, details: str = "") -> str:
    """Write a finding as a light HTML card, and what stands behind it in small."""
    return html_card(text, [], footer=details)


def html_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    title: str = "",
    lead: str = "",
    note: str = "",
    details: Sequence[str] = (),
    looks: Mapping[str, tuple[str, str]] | None = None,
) -> str:
    """Write a table as a light HTML card; every text is escaped.

    Columns of numbers are aligned to the right, except the first. `title` and `lead`
    stand above it, `note` below, in small, and `details` folded away below that, a
    sentence each. `looks` maps headers to the fill and the text's colour
    of their columns, in which digits are as wide as each other; such a table is set in
    small, for it has much to show.

    >>> html_table(["knob", "rate"], [["<2>", 770]]).count("&lt;2&gt;")
    1
    """
    # A number and an interval are read at a glance only on one line.
    styles = {
        "left": "text-align:left;",
        "right": "text-align:right;white-space:nowrap;",
    }
    sides = [styles[side] for side in _sides(headers, rows)]
    line = f"border-bottom:1px solid {COLOURS['border']};{_MUTED}"
    if looks:
        sides = [
            _COMPACT + styles["left"] if h in looks else _COMPACT + side
            for h, side in zip(headers, sides, strict=True)
        ]
    lines = [[_cell(h, s + line, _HEAD) for h, s in zip(headers, sides, strict=True)]]
    body = [side + _fill(looks, h) for h, side in zip(headers, sides, strict=True)]
    for row in rows:
        lines.append([_cell(v, look) for v, look in zip(row, body, strict=True)])
    head, *others = (f"<tr>{''.join(cells)}</tr>" for cells in lines)
    return _box(
        _line(title, _TITLE),
        _line(lead, ""),
        f'<table style="{_TABLE}"><thead>{head}</thead>'
        f"<tbody>{''.join(others)}</tbody></table>",
        _line(note, _NOTE),
        _fold("How sure, and why", details),
    )


def html_pictures(pictures: Sequence[tuple[str, bytes]], *, caption: str) -> str:
    """Write (name, JPEG bytes) as a row of small pictures in a light HTML card.

    >>> 'alt="image: ring"' in html_pictures([("ring", b"")], caption="One photo")
    True
    """
    shown = ""
    for name, jpeg in pictures:
        source, name = base64.b64encode(jpeg).decode(), html.escape(name)
        shown += (
            f'<span style="display:inline-block;margin:6px 0 0 8px;{_MUTED}">'
            f'<img alt="image: {name}" width="64" height="64" '
            f'style="border-radius:4px" src="data:image/jpeg;base64,{source}">'
            f'<div style="font-size:12px">{name}</div></span>'
        )
    return _box(_line(caption, "font-weight:600"), shown)


def html_page(title: str, *parts: str, text: str = "") -> str:
    """Write parts of HTML as a page of its own, `text` below them for a copy.

    >>> html_page("A < B", "<p>it is</p>").count("A &lt; B")
    1
    """
    style = (
        "body{max-width:780px;margin:24px auto;padding:0 12px;"
        "font-family:system-ui,sans-serif}"
    )
    block = f"<pre style='{_BOX}'>{html.escape(text)}</pre>" if text else ""
    return (
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width'>"
        "<meta name='color-scheme' content='light dark'>"
        f"<title>{html.escape(title)}</title><style>{style}</style></head>"
        f"<body>{''.join(parts)}{block}</body></html>\n"
    )


def html_progress(text: str, fraction: float) -> str:
    """Write how far something is, over a thin bar that is full at 1.

    >>> "width:25%" in html_progress("a quarter done", 0.25)
    True
    """
    bar = "height:4px;border-radius:2px;"
    return (
        f"<div style='font-size:90%;opacity:.85' role='status'>{html.escape(text)}"
        f"<div style='{bar}background:{COLOURS['border']};max-width:40em'>"
        f"<div style='{bar}background:{COLOURS['measured']};"
        f"width:{100 * fraction:.0f}%'></div></div></div>"
    )


def text_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Write a table in plain text; columns of numbers are aligned to the right.

    >>> print(text_table(["workers", "rate"], [["0", 770], ["auto", None]]))
    workers  rate
    0         770
    auto        –
    """
    texts = [list(headers), *([_plain(value) for value in row] for row in rows)]
    columns = []
    for i, side in enumerate(_sides(headers, rows)):
        width = max(len(line[i]) for line in texts)
        pad = str.rjust if side == "right" else str.ljust
        columns.append([pad(line[i], width) for line in texts])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def _box(*parts: str) -> str:
    return f'<div style="{_BOX}">{"".join(parts)}</div>'


def _line(text: str, style: str) -> str:
    style = f"padding-left:8px;{style}"
    return f'<div style="{style}">{html.escape(text)}</div>' if text else ""


def _fold(summary: str, lines: Sequence[str]) -> str:
    """Write lines that are shown when their summary is clicked; nothing if none."""
    body = "".join(_line(line, "margin-top:2px") for line in lines)
    style = f"{_NOTE};padding-left:8px"
    head = f'<summary style="cursor:pointer">{html.escape(summary)}</summary>'
    return f'<details style="{style}">{head}{body}</details>' if lines else ""


def _cell(value: object, style: str = "", tag: str = "td") -> str:
    text = html.escape(_plain(value))
    return f'<{tag} style="{_CELL}{style}">{text}</{tag.split()[0]}>'


def _fill(looks: Mapping[str, tuple[str, str]] | None, header: str) -> str:
    if not looks or header not in looks:
        return ""
    fill, words = looks[header]
    return (
        f"background:{fill};color:{words};font-family:monospace;"
        f"border-right:4px solid {COLOURS['card']}"
    )


def _sides(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    for row in rows:
        if len(row) != len(headers):
            raise ValueError(f"{len(row)} cells under {len(headers)} headers: {row}")
    sides = ["left"] * len(headers)
    for i in range(1, len(headers)):
        texts = [_plain(row[i]) for row in rows]
        if all(t[:1] in "–−-[0123456789" or t == "unknown" for t in texts):
            sides[i] = "right"
    return sides


def _plain(value: object) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    return str(value) if not isinstance(value, bool) else "yes" if value else "no"
