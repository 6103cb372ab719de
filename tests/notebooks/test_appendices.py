"""Appendices are no chapters, but a reader finds in them the same care."""

import itertools
import re
import statistics
from pathlib import Path

import nbformat
import pytest

MORE = Path(__file__).resolve().parents[2] / "tutorials" / "more"
APPENDICES = sorted(MORE.glob("*.ipynb"))

every_appendix = pytest.mark.parametrize("path", APPENDICES, ids=lambda p: p.stem)


def read(path):
    """Return all cells, and those of code."""
    cells = nbformat.read(path, as_version=4).cells
    return cells, [cell for cell in cells if cell.cell_type == "code"]


@every_appendix
def test_its_opening_asks_one_question_and_leads_back(path):
    opening = read(path)[0][0].source
    assert re.match(r"# [A-Z]", opening), "its title is no title, or has a number"
    assert opening.partition("You will find out")[0].count("?") == 1
    assert len(re.findall(r"^- \S", opening, re.M)) == 3
    assert re.search(r"^You need: \d+ minutes, no GPU", opening, re.M)
    assert "](../../README.md#chapters)" in opening
    assert re.search(r"\]\(\.\./\d\d_\w+\.ipynb\)", opening), "no link to a chapter"


@every_appendix
def test_its_cells_are_as_few_and_short_as_a_chapters(path):
    cells, code = read(path)
    lines = [[line for line in c.source.split("\n") if line.strip()] for c in code]
    assert len(code) <= 30 and max(map(len, lines)) <= 25
    assert statistics.median(map(len, lines)) <= 6
    assert max(len(line) for some in lines for line in some) <= 88
    follows = [
        before.cell_type == "markdown"
        for before, cell in itertools.pairwise(cells)
        if cell.cell_type == "code"
    ]
    assert sum(follows) >= 0.85 * len(code)
    prose = [cell.source for cell in cells if cell.cell_type == "markdown"]
    assert len(" ".join(prose).split()) <= 2200


@every_appendix
def test_it_opens_without_questions_and_is_compared_with_what_it_shows(path):
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    assert book.metadata["kernelspec"]["name"] == "python3"
    tags = [cell.metadata.get("tags", []) for cell in book.cells]
    assert sum("nbval-check-output" in some for some in tags) >= 5
    assert len(path.read_bytes()) < 1_000_000


def test_the_contents_name_every_appendix():
    contents = (MORE.parents[1] / "README.md").read_text("utf-8")
    for path in APPENDICES:
        assert f"](tutorials/more/{path.name})" in contents


def test_every_entry_of_the_errata_asserts_what_it_shows():
    """An entry is what stands under a heading of the third level."""
    entry, asserts = "", {}
    for cell in read(MORE / "errata.ipynb")[0]:
        if cell.cell_type == "markdown":
            headings = re.findall(r"^##+ (.+)$", cell.source, re.M)
            entry = headings[-1] if headings else entry
            if "### " in cell.source:
                asserts[entry] = False
        elif entry in asserts:
            asserts[entry] |= bool(re.search(r"^ *assert|assert_", cell.source, re.M))
    assert len(asserts) >= 15
    assert [name for name, is_asserted in asserts.items() if not is_asserted] == []
