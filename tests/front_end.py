"""How a panel's page is read."""

import html
import re

VIEW = "application/vnd.jupyter.widget-view+json"
HTML = "text/html"


def text_of(markup):
    return html.unescape(re.sub(r"<[^>]+>", " ", markup)).strip()


def alt_of(markup):
    found = re.search(r'<img[^>]*\balt="([^"]*)"', markup)
    return html.unescape(found[1]) if found else None


def rows_of(markup):
    """Return the rows of a table below its head, each as its cells' texts."""
    rows = re.findall(r"<tr>(.*?)</tr>", markup.partition("<tbody>")[2], re.S)
    cells = r"<t[dh][^>]*>(.*?)</t[dh]>"
    return [[text_of(cell) for cell in re.findall(cells, row, re.S)] for row in rows]
