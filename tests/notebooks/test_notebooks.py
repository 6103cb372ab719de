"""Notebooks store nothing wrong or stale."""

import re

import check_notebooks
import nbformat
import pages
import pytest
from check_notebooks import find_faults
from fingerprints import (
    Cell,
    ClaimError,
    fingerprint,
    fingerprint_claims,
)
from project import APPENDICES, CHAPTERS, PYTHON, ROOT, TUTORIALS, every_chapter

NOTEBOOKS = [*CHAPTERS, *APPENDICES]
#: Chapters whose second edition is to come have fewer cells that nbval compares.
FEWER = {"00": 0, "04": 3, "06": 3, "07": 2, "11": 4, "12": 3, "19": 4}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_nothing_is_wrong_with_what_a_notebook_stores(path, monkeypatch):
    least = FEWER.get(path.name[:2], check_notebooks.LEAST)
    monkeypatch.setattr(check_notebooks, "LEAST", least)
    assert list(find_faults(path)) == []


@pytest.fixture
def notebook(tmp_path):
    """Write a notebook with these cells, as `record.py` would store it."""

    def write(*cells, **metadata):
        made = [nbformat.v4.new_code_cell(source) for source in cells]
        for number, cell in enumerate(made):
            cell.id, cell.execution_count = f"cell-{number}", number + 1
        book = nbformat.v4.new_notebook(cells=made, metadata={**PYTHON, **metadata})
        path = tmp_path / "more" / "made_up.ipynb"
        path.parent.mkdir(exist_ok=True)
        pages.write_notebook(book, path)
        return path

    return write


def change(path, edit):
    """Change one cell of a stored notebook behind the back of `record.py`."""
    book = nbformat.read(path, as_version=4)
    edit(book, book.cells[0])
    nbformat.write(book, path)
    return list(find_faults(path))


def test_the_chapters_cover_all_points_of_their_sources():
    """No list but what the notebooks say: whoever drops a point sees it here."""
    said = set()
    for path in NOTEBOOKS:
        said |= {*nbformat.read(path, as_version=4).metadata.kit.get("sources", [])}
    known = {"A": 18, "D": 9, "R": 7, "P": 11}
    assert said == {f"{k}{n + 1}" for k, most in known.items() for n in range(most)}


def test_every_entry_of_the_errata_asserts_what_it_shows():
    """An entry is what stands under a heading of the third level."""
    book = nbformat.read(TUTORIALS / "more" / "errata.ipynb", as_version=4)
    text = "\n".join(cell.source for cell in book.cells)
    _, *entries = re.split(r"^### ", text, flags=re.M)
    assert len(entries) >= 15
    assert all(re.search(r"^ *assert", entry, re.M) for entry in entries)


def test_the_glossary_explains_each_term_once_in_alphabetical_order():
    page = (TUTORIALS / "GLOSSARY.md").read_text("utf-8")
    entries = pages.read_entries(page)
    assert len(entries) == page.count("\n### ") > 40
    assert [*entries] == sorted(entries)
    for term, text in entries.items():
        assert len(text.split()) > 10, f"{term} explains nothing"


@every_chapter
def test_the_contents_name_every_chapter(path):
    assert f"](tutorials/{path.name})" in (ROOT / "README.md").read_text("utf-8")


# Fingerprints


#: What Python 3.11, 3.12 and 3.13 parse into trees that `ast.dump` tells apart.
ODD = '''
"""  A docstring.

    With an indent.
"""
f"{x=} {{a}} {y!r:>{w}} {z:%d %b}" "b" f"c{d}{{}}"
def f(a, /, b: int = 3, *c, d=..., **e) -> "x":
    return a[1:2, ...], {**e}, [*c], -1, 1e300, 1j, b"x", None, u"t"
class A(B, m=C):
    x: int
match x:
    case {"a": [1, *r], **k} if (y := 2):
        pass
    case P(z=1) | None:
        await g()
'''


def test_a_fingerprint_is_the_same_on_every_python():
    """Written down on Python 3.11; the stored ones of all notebooks count, too."""
    assert fingerprint(ODD) == "f47091e498d3"
    assert fingerprint(f"%matplotlib inline\nfiles = !ls\n{ODD}") == "4847967df83e"


def fingerprint_claim(path, *sources):
    cells = [Cell(f"{number}", source) for number, source in enumerate(sources)]
    return fingerprint_claims(path, cells)["So."]


BEFORE = "def f(n=1):\n    yield n\nfound = kit.compare(f, n=[1, 2])"
CLAIM = "kit.claim('So.', found.ratio, at_least=2)"


@pytest.mark.parametrize(
    "sources",
    [
        [
            "def f(n = 1):  # laid out\n  yield n\nfound = kit.compare(f, n=[1, 2])",
            CLAIM,
        ],
        ["def f(n=1):\n    yield n", "found = kit.compare(f, n=[1, 2])", CLAIM],
        [BEFORE.replace("yield", "'A text.'\n    yield"), CLAIM],
        [BEFORE + "\nprint('more words')", CLAIM],
        ["%matplotlib inline\n" + BEFORE, CLAIM],
        [BEFORE.replace("2])", "2], title='Words')"), CLAIM],
        [BEFORE, CLAIM.replace("at_least=2", "open=True, otherwise='Or not.'")],
        [BEFORE, CLAIM, "found = None"],
    ],
)
def test_what_measures_nothing_makes_no_recording_stale(tmp_path, sources):
    path = tmp_path / "made_up.ipynb"
    assert fingerprint_claim(path, *sources) == fingerprint_claim(path, BEFORE, CLAIM)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("n=1", "n=3"),
        ("[1, 2]", "[2, 1]"),
        ("yield n", "yield 2"),
        ("f, n", "f, m"),
    ],
)
def test_what_is_measured_makes_a_recording_stale(tmp_path, old, new):
    path, after = tmp_path / "made_up.ipynb", BEFORE.replace(old, new)
    assert after != BEFORE
    assert fingerprint_claim(path, after, CLAIM) != fingerprint_claim(
        path, BEFORE, CLAIM
    )


def test_a_module_beside_the_notebook_counts_and_a_file_of_a_cell_by_its_cell(tmp_path):
    path, cell = tmp_path / "made_up.ipynb", "import beside\n" + BEFORE
    (tmp_path / "beside.py").write_text("import other\n'''Text.'''\nX = 1\n")
    (tmp_path / "other.py").write_text("Y = 1\n")
    before = fingerprint_claim(path, cell, CLAIM)
    (tmp_path / "other.py").write_text("'''Told.'''\nY = 1  # one\n")
    assert fingerprint_claim(path, cell, CLAIM) == before
    (tmp_path / "other.py").write_text("Y = 2\n")
    assert fingerprint_claim(path, cell, CLAIM) != before
    writes = "%%writefile beside.py\nX = 1"
    without = fingerprint_claim(path, writes, cell, CLAIM)
    (tmp_path / "beside.py").write_text("X = 5\n")
    assert fingerprint_claim(path, writes, cell, CLAIM) == without
    assert fingerprint_claim(path, writes + "0", cell, CLAIM) != without


def test_a_claim_that_stands_twice_is_refused(tmp_path):
    with pytest.raises(ClaimError, match="twice"):
        fingerprint_claim(tmp_path / "made_up.ipynb", BEFORE, CLAIM, CLAIM)
