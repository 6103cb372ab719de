"""Every chapter keeps the rules of tutorials/scripts/style.py, and each bites."""

import itertools
import re

import nbformat
import pages
import pytest
import style
from project import APPENDICES, CHAPTERS, TUTORIALS, every_chapter
from style import Chapter, cells, file, images, opening, outputs, parts, prose, terms

import kit

#: Chapters of which there is no recording from a GPU yet. This list only gets shorter.
GPU_DEBTS = {0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16, 17, 18, 19}

RULED = [*itertools.product(CHAPTERS, style.RULES)]
RULED += itertools.product(APPENDICES, style.APPENDIX)
IDS = [f"{path.stem}-{rule.__name__}" for path, rule in RULED]


@pytest.mark.parametrize(("path", "rule"), RULED, ids=IDS)
def test_a_chapter_keeps_the_rules(path, rule):
    assert list(rule(Chapter(path))) == []


def test_every_entry_of_the_errata_asserts_what_it_shows():
    """An entry is what stands under a heading of the third level."""
    told = Chapter(TUTORIALS / "more" / "errata.ipynb").cells
    text = "\n".join(cell.source for cell in told)
    _, *entries = re.split(r"^### ", text, flags=re.M)
    assert len(entries) >= 15
    assert all(re.search(r"^ *assert", entry, re.M) for entry in entries)


@every_chapter
def test_a_gpu_has_recorded_it_or_it_says_that_none_has(path):
    chapter = Chapter(path)
    recordings = (TUTORIALS / "recordings").glob(f"{path.stem}__*.json")
    trials = [trial for recording in recordings for trial in kit.load(recording)]
    found = any(trial.machine.accelerators for trial in trials)
    assert found != (int(path.stem[:2]) in GPU_DEBTS), "the list is not true"
    said = "\n".join(cell.source for cell in chapter.prose)
    if found:
        assert "recorded(" in chapter.section("data-cent(?:re|er) gpu")
    else:
        assert "No GPU has recorded this chapter yet." in said
        assert f"record.py --into recorded tutorials/{path.name}`" in said


def test_the_curriculum_covers_all_that_its_sources_have():
    assert style.expand("A1-A3 P4") == {"A1", "A2", "A3", "P4"}
    covered = set().union(*map(style.expand, style.CURRICULUM.values()))
    assert covered == style.expand(style.KNOWN)


# The rules themselves: the first chapter keeps them all; then one change at a time


def find_new_faults(rule, change):
    """Return what a rule finds in the first chapter after a change, and not before."""
    good = Chapter(CHAPTERS[0])
    book = nbformat.read(good.path, as_version=4)
    change(book)
    return {*rule(Chapter(good.path, book))} - {*rule(good)}


#: Rule, what stands in the first chapter, what stands there instead.
BAD = [(opening, "# 00", "# 01"), (opening, "would we know?", "would we? Really?")]
BAD += [(opening, "- how to read", "How to read"), (opening, "30 min", "90 min")]
BAD += [(opening, "no GPU, ", ""), (opening, "../README.md#chapters", "x.md")]
BAD += [(opening, "Next: ", ""), (parts, "## Then and now", "")]
BAD += [(parts, "## Why?", "## Why?\n\n## Why not?"), (parts, "assert_close", "x")]
BAD += [(parts, "my_guess =", "kit.claim('Fast.')\nmy_guess =")]
BAD += [(parts, "# changed", "# other")]
BAD += [(parts, "    loader =", 20 * "    x = 1\n" + "    loader =")]
BAD += [(parts, "net(images)", "kit.fast(images)"), (parts, "- A ", "A ")]
BAD += [(cells, "def make_net", 25 * "x = 1\n" + "def make_net")]
BAD += [(cells, "model=predict)", f"model=predict)  # {70 * 'x'}")]
BAD += [(cells, "my_guess =", "import kit\nmy_guess =")]
BAD += [(opening, "this_machine", "measure")]
BAD += [(cells, "comparison.plot", "!pip install x\ncomparison.plot")]
BAD += [(cells, "my_guess =", "warnings.filterwarnings('ignore')\nmy_guess =")]
BAD += [(prose, "And your guess?", "It is 2 ×."), (prose, "small on", "3 ms on")]
BAD += [(prose, "And your guess?", "It saves 20 %.")]
BAD += [(images, "And your guess?", "![](x.png)")]
BAD += [(terms, "And your guess?", "Many *profilers*.")]
BAD += [(terms, "And your guess?", "A profiler; a [profiler](GLOSSARY.md#profiler).")]


@pytest.mark.parametrize(("rule", "old", "new"), BAD)
def test_a_broken_rule_is_seen(rule, old, new):
    def change(book):
        found = [cell for cell in book.cells if old in cell.source]
        assert found, f"it has no {old!r} any more: choose another change"
        for cell in found:
            cell.source = cell.source.replace(old, new)

    assert find_new_faults(rule, change)


def show(kind="display_data", **output):
    """Return a change of what the cell of the panel shows; else nothing."""

    def change(book):
        (cell,) = [cell for cell in book.cells if "kit.explore(" in cell.source]
        cell.outputs = [nbformat.v4.new_output(kind, **output)] if output else []

    return change


def set_cell(**fields):
    return lambda book: book.cells[2].update(nbformat.from_dict(fields))


def repeat_cells(book):
    book.cells[1:1] = 9 * book.cells[1:3]


SHOWN = [(cells, set_cell(metadata={"jupyter": {"source_hidden": True}}))]
SHOWN += [(cells, set_cell(metadata={"tags": ["hide-input"]})), (cells, repeat_cells)]
SHOWN += [(file, lambda book: book.metadata.kernelspec.update(name="conda-env"))]
SHOWN += [(file, lambda book: book.metadata.kit.update(sources=["P1"]))]
SHOWN += [(file, lambda book: book.metadata.kit.update(sources=["P1", "A18", "Z1"]))]
SHOWN += [(file, show(data={"text/plain": "x" * 1_000_000}))]
SHOWN += [(outputs, lambda book: book.metadata.update(widgets={}))]
SHOWN += [(outputs, set_cell(source="kit.this_machine"))]
SHOWN += [(outputs, set_cell(execution_count=9)), (outputs, show())]
SHOWN += [(outputs, show("error", ename="E", evalue="", traceback=[]))]
SHOWN += [(outputs, show("stream", name="stderr", text="Warning"))]
SHOWN += [(outputs, show(data={"application/vnd.jupyter.widget-view+json": {}}))]
SHOWN += [(outputs, show(data={"text/html": "<script>"}))]
SHOWN += [(images, show(data={"image/png": "AAAA"}))]
SHOWN += [(images, show(data={"text/html": "<img alt='' src='x'>"}))]


@pytest.mark.parametrize(("rule", "change"), SHOWN)
def test_a_broken_output_or_file_is_seen(rule, change):
    assert find_new_faults(rule, change)


def test_the_glossary_explains_what_is_used_each_word_once():
    page = pages.GLOSSARY.read_text("utf-8")
    entries, used = pages.read_entries(page), set()
    assert len(entries) == page.count("\n### ") > 40
    assert [*entries] == sorted(entries), "not in the order of the alphabet"
    forms = [form.lower() for some, _ in entries.values() for form in some]
    assert len(set(forms)) == len(forms), "a word counts for two terms"
    for path in CHAPTERS:
        text = "\n\n".join(cell.source for cell in Chapter(path).prose)
        used |= {anchor for anchor, _ in pages.find_uses(text, page)}
    for anchor, (_, text) in entries.items():
        # GitHub makes a heading's letters small and drops marks; JupyterLab does not.
        assert anchor.replace("-", "").isalpha() and anchor.islower(), anchor
        assert len(text.split()) > 10, f"{anchor} explains nothing"
        others = text.split("](#")[1:]
        used |= {other.partition(")")[0] for other in others} - {anchor}
    assert set(entries) <= used, "entries that nobody uses"
    made = [nbformat.v4.new_markdown_cell(page), nbformat.v4.new_code_cell("x")]
    book = nbformat.v4.new_notebook(cells=made)
    assert not list(prose(Chapter(TUTORIALS / "00", book))), "a measured number"
