"""Tables, sentences and pages as text and as HTML; a notebook's theme styles them."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas


def make_table(
    headers: Sequence[str], rows: Sequence[Sequence[object]]
) -> pandas.DataFrame:
    """Make a table whose first column names the rows; what is unknown is a dash.

    Raises ValueError for a row that is not as long as `headers`.
    """
    import pandas

    texts = [["–" if value is None else str(value) for value in row] for row in rows]
    if any(len(row) != len(headers) for row in texts):
        raise ValueError(f"rows of another length than {list(headers)}")
    table = pandas.DataFrame(
        [row[1:] for row in texts],
        index=[row[0] for row in texts],
        columns=[*headers[1:]],
    )
    return table.rename_axis(columns=headers[0])


def text_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Write a table in plain text.

    >>> print(text_table(["workers", "rate"], [["0", 770], ["auto", None]]))
    workers rate
    0        770
    auto       –
    """
    return make_table(headers, rows).to_string(line_width=1000)


def html_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    title: str = "",
    details: Sequence[str] = (),
) -> str:
    """Write a table below its title as HTML, details folded away; all is escaped.

    >>> html_table(["knob", "rate"], [["<2>", 770]]).count("&lt;2&gt;")
    1
    """
    table = make_table(headers, rows).to_html(border=0)
    return html_sentence(title) + table + fold("How sure, and why", details)


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
        f"<pre>{html.escape(text)}</pre></body></html>\n"
    )
