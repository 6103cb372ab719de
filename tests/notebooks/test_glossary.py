"""Each term of the glossary is linked where a chapter first uses it, and only there."""

import re
from pathlib import Path
from typing import NamedTuple

import nbformat
import pytest
from test_links import CODE
from test_style import ALLOWED, CHAPTERS, FIGURE, plain

GLOSSARY = Path(__file__).resolve().parents[2] / "tutorials" / "GLOSSARY.md"
ENTRY = re.compile(
    r"(?:<a id=\"(?P<id>[^\"]+)\"></a>\n\n)?"
    r"^### (?P<heading>.+)\n(?:<!-- forms: (?P<forms>.+) -->\n)?\n"
    r"(?P<text>(?:(?!^### |^<a id).+\n|\n(?!### |<a id))*)",
    re.M,
)
FORMULA = re.compile(r"\$\$.*?\$\$|\$[^$\n]+\$", re.S)
NOT_PROSE = re.compile(r"^#+ [^\n]*|<!--.*?-->|<[^>]+>", re.M | re.S)
LINK = r"\[(?P<text>[^\]]*)\]\(\s*<?(?P<goal>[^)>\s]*)>?[^)]*\)"


class Entry(NamedTuple):
    """A term: its heading, its anchor, the words that count as a use, what it says."""

    heading: str
    anchor: str
    forms: list[str]
    text: str


def parse(page):
    """Return the entries of a glossary, in its order."""
    entries = []
    for found in ENTRY.finditer(page):
        heading = found["heading"]
        forms = found["forms"].split(", ") if found["forms"] else [heading]
        anchor = found["id"] or heading.replace(" ", "-")  # as JupyterLab makes it
        entries.append(Entry(heading, anchor, forms, found["text"]))
    return entries


PAGE = GLOSSARY.read_text("utf-8")
ENTRIES = parse(PAGE)


class Use(NamedTuple):
    """A place where a chapter uses a term: its anchor, the words, whether linked."""

    anchor: str
    words: str
    linked: bool


def uses(prose, entries):
    """Yield the uses of terms in Markdown, in order; the longest form counts.

    Headings, code, formulas and the text of other links are no uses.
    """
    anchors = {form.lower(): entry.anchor for entry in entries for form in entry.forms}
    longest = sorted(anchors, key=len, reverse=True)
    either = "|".join(re.escape(form).replace(r"\ ", r"\s+") for form in longest)
    for pattern in (CODE, FORMULA, NOT_PROSE):
        prose = pattern.sub(" ", prose)
    form = rf"(?<![\w-])(?P<form>{either})(?![\w-])"
    for found in re.finditer(f"{LINK}|{form}", prose, re.I):
        page, _, anchor = (found["goal"] or "").partition("#")
        if found["form"]:
            words = " ".join(found["form"].split())
            yield Use(anchors[words.lower()], words, False)
        elif page == GLOSSARY.name:
            yield Use(anchor, found["text"].strip("*_"), True)


def mistakes(prose, entries):
    """Yield what is wrong with the links of a chapter's prose."""
    known = {entry.anchor for entry in entries}
    seen, linked = set(), set()
    for use in uses(prose, entries):
        goal = f"{GLOSSARY.name}#{use.anchor}"
        if use.anchor not in known:
            yield f"[{use.words}]({goal}): no such term"
        if use.linked and use.anchor in linked:
            yield f"[{use.words}]({goal}): linked before"
        elif use.linked and use.anchor in seen:
            yield f"[{use.words}]({goal}): used before without a link"
        elif not use.linked and use.anchor not in seen:
            yield f"{use.words!r}: link its first use, [{use.words}]({goal})"
        seen.add(use.anchor)
        if use.linked:
            linked.add(use.anchor)


def prose_of(notebook):
    book = nbformat.read(notebook, as_version=4)
    return "\n\n".join(c.source for c in book.cells if c.cell_type == "markdown")


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_links_each_term_at_its_first_use(path):
    found = list(mistakes(prose_of(path), ENTRIES))
    assert not found, "\n".join(found)


# The glossary itself


def test_every_heading_is_an_entry():
    assert len(ENTRIES) == len(re.findall(r"^#{2,} ", PAGE, re.M)) > 40
    assert len({entry.anchor for entry in ENTRIES}) == len(ENTRIES)
    assert all(len(entry.text.split()) > 10 for entry in ENTRIES)


def test_entries_are_in_alphabetical_order():
    headings = [entry.heading.lower() for entry in ENTRIES]
    assert headings == sorted(headings)


def test_no_word_counts_for_two_terms():
    forms = [form.lower() for entry in ENTRIES for form in entry.forms]
    assert len(set(forms)) == len(forms)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.anchor)
def test_an_anchor_is_the_same_on_github_and_in_jupyterlab(entry):
    """GitHub makes a heading's letters small and drops marks, JupyterLab does neither.

    Both make an anchor of `<a id="…"></a>`.
    https://github.com/jupyterlab/jupyterlab/blob/main/packages/rendermime/src/renderers.ts
    """
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", entry.anchor)


def test_every_entry_is_used_by_a_chapter_or_another_entry():
    used = {use.anchor for path in CHAPTERS for use in uses(prose_of(path), ENTRIES)}
    for entry in ENTRIES:
        used |= set(re.findall(r"\]\(#([^)]+)\)", entry.text)) - {entry.anchor}
    assert {entry.anchor for entry in ENTRIES} <= used


def test_entries_type_no_measured_number():
    for entry in ENTRIES:
        text = plain(entry.text)
        for allowed in ALLOWED:
            text = re.sub(allowed, "", text)
        assert not FIGURE.findall(text), entry.heading


def test_chapters_that_are_there_are_linked_where_they_are_named():
    for path in CHAPTERS:
        named = re.findall(rf"(?<!\[)\bchapter {path.name[:2]}\b", PAGE, re.I)
        assert not named, f"link it: [chapter {path.name[:2]}]({path.name})"


# The rules themselves

SMALL = parse(
    """# Glossary

Words.

### profiler
<!-- forms: profiler, profilers -->

It looks. See [sampling profiler](#sampling-profiler).

### sampling profiler

It looks now and then, [self](#self) too.

<a id="tensorboard"></a>

### TensorBoard
<!-- forms: TensorBoard -->

It draws.

### warm-up
<!-- forms: warm-up, warm up -->

It begins.
"""
)


def test_entries_are_read():
    assert [entry[:3] for entry in SMALL] == [
        ("profiler", "profiler", ["profiler", "profilers"]),
        ("sampling profiler", "sampling-profiler", ["sampling profiler"]),
        ("TensorBoard", "tensorboard", ["TensorBoard"]),
        ("warm-up", "warm-up", ["warm-up", "warm up"]),
    ]
    assert "self" in SMALL[1].text and "draws" in SMALL[2].text


@pytest.mark.parametrize(
    "text",
    [
        "Nothing here.",
        "A [profiler](GLOSSARY.md#profiler), and then many profilers.",
        "Two [*Profilers*](GLOSSARY.md#profiler).",
        "It is called a [tool](GLOSSARY.md#profiler), and a profiler.",
        "**No [warm-up](GLOSSARY.md#warm-up).** To warm up takes time.",
        "A [sampling profiler](GLOSSARY.md#sampling-profiler) is no other.",
        "[sampling profiler](GLOSSARY.md#sampling-profiler): a [profiler]"
        "(GLOSSARY.md#profiler).",
        "`profiler`, and ``a profiler``, and $profiler$\n\n```\nprofiler\n```\n",
        "# The profiler\n\n[the profiler's page](https://example.org/profiler)",
        "<img alt='a profiler' src='x.png'> <!-- profiler -->",
        "A preprofiler and a profiler-like thing.",
    ],
)
def test_prose_that_keeps_the_rule(text):
    assert list(mistakes(text, SMALL)) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A profiler.", "link its first use, [profiler](GLOSSARY.md#profiler)"),
        ("A sampling\nprofiler.", "[sampling profiler](GLOSSARY.md#sampling-profiler)"),
        ("A profiler, a [profiler](GLOSSARY.md#profiler).", "used before"),
        (2 * "A [profiler](GLOSSARY.md#profiler). ", "linked before"),
        ("An [oracle](GLOSSARY.md#oracle).", "no such term"),
        ("[A page](page.md) and a profiler.", "link its first use"),
        ("# One\n\nA profiler.\n\n# Two", "link its first use"),
    ],
)
def test_prose_that_breaks_the_rule(text, said):
    assert said in " ".join(mistakes(text, SMALL))
