"""Links in notebooks and documents lead somewhere; so do their anchors."""

import re
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest
from project import own_files

ROOT = Path(__file__).resolve().parents[2]
PAGE = (".ipynb", ".md")
CODE = re.compile(r"^(```|~~~).*?^\1|``.+?``|`[^`\n]*`", flags=re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)>\s]*)>?[^)]*\)")
HTML = re.compile(r"<(?:a|img)\b[^>]*?\b(?:href|src)\s*=\s*[\"']([^\"']*)[\"']", re.I)
REFERENCE = re.compile(r"^\[[^\]]+\]:\s*<?(\S+?)>?\s*$", re.M)
ANCHOR = re.compile(r"<[^>]*?\b(?:id|name)\s*=\s*[\"']([^\"']+)[\"']", re.I)


PAGES = [path for path in own_files() if path.suffix in PAGE]


def prose(path):
    """Return the Markdown of a page without its code."""
    if path.suffix == ".ipynb":
        book = nbformat.read(path, as_version=4)
        texts = [c.source for c in book.cells if c.cell_type == "markdown"]
    else:
        texts = [path.read_text("utf-8")]
    return "\n\n".join(CODE.sub("", text) for text in texts)


def headings(path):
    """Return a page's headings, code marks and all."""
    if path.suffix == ".ipynb":
        book = nbformat.read(path, as_version=4)
        text = "\n\n".join(c.source for c in book.cells if c.cell_type == "markdown")
    else:
        text = path.read_text("utf-8")
    fenced = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.M | re.S)
    return re.findall(r"^#{1,6} +(.+?) *#*$", fenced, flags=re.M)


def anchors(path):
    """Return a page's anchors: JupyterLab's for a notebook, GitHub's for a document.

    JupyterLab keeps a heading's letters and joins them with dashes; GitHub also makes
    them small and drops punctuation.
    """
    found = set(ANCHOR.findall(prose(path)))
    for heading in headings(path):
        text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading)
        if path.suffix == ".ipynb":
            found.add(text.replace(" ", "-"))
        else:
            found.add(re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-"))
    return found


def links(path):
    text = prose(path)
    for pattern in (LINK, HTML, REFERENCE):
        yield from pattern.findall(text)


def broken(path, root=ROOT):
    """Yield each link that leads nowhere, with the reason."""
    for link in links(path):
        if re.match(r"[a-z][a-z+.-]*:", link, re.I):
            if link.startswith(("file:", "http://localhost", "http://127.")):
                yield f"{link}: only here"
            continue
        if not link:
            yield "an empty link"
            continue
        name, _, anchor = map(unquote, link.partition("#"))
        goal = (path.parent / name).resolve() if name else path
        if name.startswith("/"):
            yield f"{link}: not relative"
        elif not goal.is_relative_to(root):
            yield f"{link}: outside the repository"
        elif not goal.exists():
            yield f"{link}: no such file"
        elif anchor and goal.suffix in PAGE and anchor not in anchors(goal):
            yield f"{link}: no such heading"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    assert not list(broken(path))


def test_there_are_pages():
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md"} <= {p.name for p in PAGES}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "other.md").write_text("# A `b` c!\n\n```\n# not this\n```\n## D\n")
    (tmp_path / "with space.md").write_text("# X\n")
    (tmp_path / "picture.png").write_bytes(b"")
    return tmp_path


GOOD = [
    "[x](other.md)",
    "[x](other.md#a-b-c)",
    "[x](other.md#d)",
    "[x](./other.md 'a title')",
    "[x](<other.md>)",
    "[x](with%20space.md)",
    "[x](https://example.org/page#part)",
    "[x](mailto:a@example.org)",
    "![x](picture.png)",
    "<img src='picture.png'>",
    "`[x](nowhere.md)`",
    "```\n[x](nowhere.md)\n```",
    "[x][1]\n\n[1]: other.md\n",
]
BAD = [
    "[x](nowhere.md)",
    "[x](other.md#e)",
    "[x](other.md#not-this)",
    "[x]()",
    "[x](../../../outside.md)",
    "[x](/other.md)",
    "[x](file:///other.md)",
    "[x](http://localhost:8888/lab)",
    "![x](nowhere.png)",
    "<a href='nowhere.md'>x</a>",
    "[x][1]\n\n[1]: nowhere.md\n",
]


def page(folder, kind, text):
    path = folder / f"page.{kind}"
    if kind == "md":
        path.write_text(f"# Title\n\n{text}\n", encoding="utf-8")
    else:
        cells = [nbformat.v4.new_markdown_cell(f"# Title\n\n{text}")]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


@pytest.mark.parametrize("kind", ["md", "ipynb"])
@pytest.mark.parametrize("text", GOOD)
def test_a_good_link_is_taken(folder, kind, text):
    assert list(broken(page(folder, kind, text), folder)) == []


@pytest.mark.parametrize("kind", ["md", "ipynb"])
@pytest.mark.parametrize("text", BAD)
def test_a_broken_link_is_seen(folder, kind, text):
    assert len(list(broken(page(folder, kind, text), folder))) == 1


def test_anchors_of_a_notebook_are_jupyters(folder):
    text = "## Same answer?\n\n[a](#Same-answer?) [b](#same-answer) [c](#Title)"
    found = list(broken(page(folder, "ipynb", text), folder))
    assert found == ["#same-answer: no such heading"]
