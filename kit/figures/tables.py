"""Tables, sentences and pages as text and as HTML; a notebook's theme styles them."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

#: Columns of what begins so stand on the right.
_NUMBER = re.compile(r"[–−+\-\[0-9]|$")


def text_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Write a table in plain text; numbers stand on the right of their columns.

    Raises ValueError for a row that is not as long as `headers`.

    >>> print(text_table(["workers", "rate"], [["0", 770], ["auto", None]]))
    workers  rate
    0         770
    auto        –
    """
    columns = []
    for number, column in enumerate(zip(headers, *_write(rows), strict=True)):
        width = max(map(len, column))
        is_name = number == 0 or not all(map(_NUMBER.match, column[1:]))
        pad = str.ljust if is_name else str.rjust
        columns.append([pad(text, width) for text in column])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def html_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    title: str = "",
    details: Sequence[str] = (),
) -> str:
    """Write a table below its title as HTML, details folded away; all is escaped.

    The first column names the rows. Raises ValueError for a row that is not as long as
    `headers`.

    >>> html_table(["knob", "rate"], [["<2>", 770]]).count("&lt;2&gt;")
    1
    """
    import pandas

    names, *columns = zip(headers, *_write(rows), strict=True)
    content = {number: column[1:] for number, column in enumerate(columns)}
    table = pandas.DataFrame(content, index=names[1:])
    table.columns = pandas.Index([column[0] for column in columns], name=names[0])
    shown = html_sentence(title) + table.to_html(border=0)
    return shown + fold("How sure, and why", details)


def _write(rows: Sequence[Sequence[object]]) -> list[list[str]]:
    """Return all as text; what is unknown is a dash."""
    return [["–" if cell is None else str(cell) for cell in row] for row in rows]


def html_sentence(text: str, details: str = "") -> str:
    """Write a finding, and what stands behind it in small."""
    words = f"<b>{html.escape(text)}</b>" if text else ""
    if details:
        words += f"<br><small>{html.escape(details)}</small>"
    return f"<p>{words}</p>" if words else ""


def fold(summary: str, sentences: Sequence[str]) -> str:
    """Write sentences that a reader can unfold; nothing where there are none."""
    if not sentences:
        return ""
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f"<details><summary>{summary}</summary><ul>{items}</ul></details>"


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
        f"<pre style='white-space:pre-wrap'>{html.escape(text)}</pre></body></html>\n"
    )
