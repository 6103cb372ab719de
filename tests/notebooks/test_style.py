"""Every chapter keeps the rules of tutorials/scripts/style.py, and each bites."""

import json
import re
from pathlib import Path

import nbformat
import pages
import pytest
import style
from project import (
    APPENDICES,
    CHAPTERS,
    PYTHON,
    TUTORIALS,
    every_appendix,
    every_chapter,
)
from slices import fingerprint
from style import Chapter, cells, file, images, opening, outputs, parts, prose, terms

import kit

#: Chapters of which there is no recording from a GPU yet. This list only gets shorter.
GPU_DEBTS = {
    *("00_start_here", "01_how_pytorch_runs", "02_profiling", "04_loading"),
    *("06_batch_size", "07_memory", "08_fewer_larger_kernels"),
    *("09_number_formats", "10_mixed_precision", "11_data_parallel", "12_ddp"),
    *("13_communication", "15_model_parallel"),
}


@pytest.mark.parametrize("rule", style.RULES, ids=lambda rule: rule.__name__)
@every_chapter
def test_a_chapter_keeps_the_rules(path, rule):
    assert list(rule(Chapter(path))) == []


@pytest.mark.parametrize("rule", style.APPENDIX, ids=lambda rule: rule.__name__)
@every_appendix
def test_an_appendix_keeps_the_rules(path, rule):
    assert list(rule(Chapter(path))) == []


def test_every_entry_of_the_errata_asserts_what_it_shows():
    """An entry is what stands under a heading of the third level."""
    entry, asserts = "", {}
    for cell in Chapter(TUTORIALS / "more" / "errata.ipynb").cells:
        headings = re.findall(r"^##+ .+$", cell.source, re.M)
        if cell.cell_type == "markdown" and headings:
            entry = headings[-1]
            asserts |= {entry: False} if entry.startswith("### ") else {}
        elif entry in asserts:
            asserts[entry] |= bool(re.search(r"^ *assert", cell.source, re.M))
    assert len(asserts) >= 15
    assert [name for name, is_asserted in asserts.items() if not is_asserted] == []


@pytest.mark.parametrize("path", [*CHAPTERS, *APPENDICES], ids=lambda path: path.stem)
def test_jupyter_can_open_a_chapter(path):
    nbformat.validate(json.loads(path.read_text("utf-8")))


@every_chapter
def test_a_gpu_has_recorded_it_or_it_says_that_none_has(path):
    chapter = Chapter(path)
    recordings = (TUTORIALS / "recordings").glob(f"{path.stem}__*.json")
    trials = [trial for recording in recordings for trial in kit.load(recording)]
    found = any(trial.machine.accelerators for trial in trials)
    assert found == (path.stem not in GPU_DEBTS), "the list of debts is not true"
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


#: The rules themselves: a chapter that keeps them all, then one change at a time.
GOOD = """# 00 · Made up

**How fast is it?**

You will find out:

- one;
- two;
- three.

You need: 20 minutes, no GPU, no earlier chapter.

Previous: none · [Contents](../README.md#chapters) · Next: none
§ import kit
§ An [interval](GLOSSARY.md#interval) tells.
§ kit.this_machine()
§ ## The plain loop
§ def loop():
    loss = net(x).sum()
    loss.backward()
§ ## Guess
§ kit.guess('How many?')
§ One line.
§ x = 1  # changed
§ ## Same answer?
§ assert x == 1
§ ## How much?
See the 95 % interval, within 2 % of `2 ×`, 64×64 pixels in 5 s, no `profiler`,
$profiler$ or [profiler of others](https://example.org), or preprofiler.
§ kit.claim('Fast.', kit.compare(loop))
kit.compare(); kit.claim()
§ ## Why?
§ comparison.plot(x='n', model=len)
§ ## Turn the knobs
§ kit.explore(loop)
§ ## When it does not help
§ kit.compare(loop)
§ ## On a data-centre GPU
§ kit.recorded('00_made_up/loop')
§ ## Where one machine is not enough
## Then and now
## Exercises
§ check('00/one', None)
§ ## Summary

- one
- two
- three"""


def make_chapter(text=GOOD, change=lambda book: None):
    """Make a chapter of cells by turns, prose and code, each with an output."""
    book = nbformat.v4.new_notebook()
    for number, source in enumerate(text.split("\n§ ")):
        if number % 2 == 0:
            book.cells.append(nbformat.v4.new_markdown_cell(source))
            continue
        shown = nbformat.v4.new_output("display_data", {"text/plain": "shown"})
        made = {"outputs": [shown], "execution_count": number // 2 + 1}
        book.cells.append(nbformat.v4.new_code_cell(source, **made))
    made_by = {cell.id: fingerprint(cell.source) for cell in book.cells[1::2]}
    own = {"sources": ["P1", "A18"], "made_by": made_by}
    book.metadata = nbformat.from_dict({**PYTHON, "kit": own})
    change(book)
    return Chapter(Path("00_made_up.ipynb"), book)


def test_a_good_chapter_breaks_no_rule():
    chapter = make_chapter()
    assert [fault for rule in style.RULES for fault in rule(chapter)] == []
    nbformat.validate(json.loads(nbformat.writes(chapter.book)))


#: Rule, what stands in the good chapter, what stands there instead.
BAD = [(opening, "# 00", "# 01"), (opening, "fast is it?", "fast? Really?")]
BAD += [(opening, "- three.\n", ""), (opening, "20 minutes", "90 minutes")]
BAD += [(opening, "no GPU, ", ""), (opening, "../README.md#chapters", "x.md")]
BAD += [(opening, "Next: none", ""), (parts, "## Then and now", "")]
BAD += [(parts, "## Why?", "## Why?\n\n## Why not?"), (parts, "assert x", "x")]
BAD += [(parts, "§ x = 1", "§ kit.claim('Fast.')\nx = 1")]
BAD += [(parts, "# changed", "# other")]
BAD += [(parts, "    loss = net", 20 * "    x = 1\n" + "    loss = net")]
BAD += [(parts, "net(x)", "kit.fast(x)"), (parts, "- two\n- three", "")]
BAD += [(cells, "kit.guess", 25 * "x = 1\n" + "kit.guess")]
BAD += [(cells, "§ One line.", 19 * "§ Look.\n§ x\n" + "§ One line.")]
BAD += [(cells, "model=len)", f"model=len)  # {70 * 'x'}")]
BAD += [(cells, "kit.guess", "import kit\nkit.guess")]
BAD += [(opening, "this_machine", "measure")]
BAD += [(cells, "comparison.plot", "!pip install x\ncomparison.plot")]
BAD += [(cells, "assert x", "warnings.filterwarnings('ignore')\nassert x")]
BAD += [(prose, "`2 ×`", "2 ×"), (prose, "One line.", "It takes 3 ms.")]
BAD += [(prose, "One line.", "It saves 20 %."), (images, "One line.", "![](x.png)")]
BAD += [(terms, "One line.", "Many *profilers*.")]
BAD += [(terms, "One line.", "A profiler; a [profiler](GLOSSARY.md#profiler).")]


@pytest.mark.parametrize(("rule", "old", "new"), BAD)
def test_a_broken_rule_is_seen(rule, old, new):
    assert old in GOOD
    assert list(rule(make_chapter(GOOD.replace(old, new, 1))))


def show(kind="display_data", **output):
    """Return a change of what the cell `kit.explore(loop)` shows; else nothing."""

    def change(book):
        (cell,) = [cell for cell in book.cells if "explore" in cell.source]
        cell.outputs = [nbformat.v4.new_output(kind, **output)] if output else []

    return change


def set_cell(**fields):
    return lambda book: book.cells[3].update(nbformat.from_dict(fields))


SHOWN = [(cells, set_cell(metadata={"jupyter": {"source_hidden": True}}))]
SHOWN += [(cells, set_cell(metadata={"tags": ["hide-input"]}))]
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
    assert list(rule(make_chapter(change=change)))


def test_a_picture_with_words_is_not_refused():
    described = {"image/png": {"alt": "Two bars."}}
    change = show(data={"image/png": "AA"}, metadata=described)
    assert not list(images(make_chapter(change=change)))


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


def test_the_glossary_types_no_measured_number():
    page = nbformat.v4.new_markdown_cell(pages.GLOSSARY.read_text("utf-8"))
    book = nbformat.v4.new_notebook(cells=[page, nbformat.v4.new_code_cell("x")])
    assert not list(prose(Chapter(TUTORIALS / "00", book)))
