"""Find links of documents and notebooks that lead nowhere."""

import re
from urllib.parse import unquote

import nbformat
from project import ROOT

#: Code and formulas, in which brackets are no links.
CODE = re.compile(
    r"^(?P<fence>```|~~~).*?^(?P=fence)|``.+?``|`[^`]*`|\$\$.*?\$\$|\$[^$\n]+\$",
    re.M | re.S,
)
LINKS = (
    # An anchor may hold a pair of brackets, as its heading does.
    re.compile(r"\[[^\]]*\]\(\s*<?((?:[^()>\s]|\([^()\s]*\))*)>?[^)]*\)"),
    re.compile(r"<(?:a|img)\b[^>]*?\b(?:href|src)\s*=\s*[\"']([^\"']*)[\"']", re.I),
)
ANCHOR = re.compile(r"<[^>]*?\b(?:id|name)\s*=\s*[\"']([^\"']+)[\"']", re.I)


def read_markdown(path):
    """Return the Markdown of a document or a notebook."""
    if path.suffix == ".md":
        return path.read_text("utf-8")
    cells = nbformat.read(path, as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def find_anchors(path):
    """Return a page's anchors: JupyterLab's for a notebook, GitHub's for a document.

    JupyterLab keeps a heading's letters and joins them with dashes; GitHub also makes
    them small and drops punctuation.
    """
    text = read_markdown(path)
    found = set(ANCHOR.findall(CODE.sub("", text)))
    without_code = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.M | re.S)
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", without_code, re.M):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading)
        if path.suffix == ".md":
            plain = re.sub(r"[^\w\- ]", "", plain.lower())
        found.add(plain.replace(" ", "-"))
    return found


def find_broken_links(path):
    """Yield the links of a page that lead nowhere; other sites are not asked."""
    text = CODE.sub("", read_markdown(path))
    for pattern in LINKS:
        for link in pattern.findall(text):
            name, _, anchor = map(unquote, link.partition("#"))
            if re.match(r"https?:|mailto:", link):
                continue
            goal = (path.parent / name).resolve() if name else path
            is_there = bool(link) and goal.is_relative_to(ROOT) and goal.exists()
            is_page = goal.suffix in (".ipynb", ".md")
            if not is_there or (
                anchor and is_page and anchor not in find_anchors(goal)
            ):
                yield link
