"""Every chapter has the anatomy and the cells of the design, section 4."""

import ast
import importlib.util
import json
import linecache
import re
import statistics
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
from slices import fingerprint

import kit
from kit import teaching
from kit.teaching import check

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = ROOT / "tutorials"
CHAPTERS = sorted(TUTORIALS.glob("[0-9][0-9]_*.ipynb"))

# Which points of the sources each chapter covers, and which points there are.
CURRICULUM = {
    "00": "P1 A18",
    "01": "P1-P3 P5-P11",
    "02": "A1",
    "03": "A2 A3",
    "04": "A4 P4 P9",
    "05": "A5",
    "06": "A6 D3",
    "07": "A9",
    "08": "P6 P7 P11",
    "09": "A13 A15",
    "10": "A13 A14",
    "11": "D1-D9",
    "12": "A7 D8",
    "13": "A11 A12 A17 D9",
    "14": "A9 A10",
    "15": "D1 A8",
    "16": "R1-R7",
    "17": "A7 A17",
    "18": "A13 A16 A17",
    "19": "A18",
}
KNOWN = "A1-A18 D1-D9 R1-R7 P1-P11"

# Chapters of which there is no recording from a GPU yet. This list only gets shorter.
GPU_DEBTS = {
    *("00_start_here", "01_how_pytorch_runs", "02_profiling", "04_loading"),
    *("06_batch_size", "07_memory"),
    *("09_number_formats", "10_mixed_precision", "11_data_parallel", "12_ddp"),
    "13_communication",
}

# Headings of the parts that every chapter has.
PARTS = {
    "the plain loop": r"plain loop",
    "guess": r"guess",
    "same answer?": r"same answer",
    "how much?": r"how much",
    "why?": r"\bwhy\b",
    "turn the knobs": r"turn the knobs",
    "when it does not help": r"when .*not help",
    "on a data-centre GPU": r"data-cent(?:re|er) gpu",
    "where one machine is not enough": r"one machine is not enough",
    "then and now": r"then and now",
    "exercises": r"exercises",
    "summary": r"summary",
}

# What a reader could take for a result: a figure with a unit of speed or gain.
FIGURE = re.compile(
    r"\d+(?:[.,]\d+)?[\s-]*"
    r"(?:×(?!\s*\d)|%|percent|-?fold\b"
    r"|(?:x|times) (?:as|faster|slower|less|more|the)\b"
    r"|(?:images|items|photos|samples|steps|tokens|batches)(?:/s| (?:per|a) second)"
    r"|[mµun]s\b|(?:milli|micro|nano)seconds|1/s\b|[KMGT]B/s|[KMGTP]?FLOP)",
    re.I,
)
# Figures that are not measured, each with the reason why prose may type it.
ALLOWED = {
    r"\b95 % (?:confidence )?intervals?": "a definition: the interval's level",
    r"\bwithin 2 %|\b2 % zone|±\s?2 %|\bbelow 2 %": "a definition: what 'same' means",
    r"\b19 times out of 20": "a definition: the interval's level in words",
}


def expand(text):
    """Return the ids of "A1-A3 P4": A1, A2, A3, P4."""
    ids = set()
    for part in text.split():
        first, _, last = part.partition("-")
        low, high = int(first[1:]), int((last or first)[1:])
        ids |= {f"{first[0]}{number}" for number in range(low, high + 1)}
    return ids


class Chapter:
    """A notebook with what the rules ask for."""

    def __init__(self, path, notebook=None):
        self.path = path
        self.number = path.name[:2]
        self.book = notebook or nbformat.read(path, as_version=4)
        self.cells = self.book.cells
        self.code = [cell for cell in self.cells if cell.cell_type == "code"]
        self.prose = [cell for cell in self.cells if cell.cell_type == "markdown"]
        first = [i for i, c in enumerate(self.cells) if c.cell_type == "code"]
        opening = self.cells[: first[0] if first else None]
        self.opening = "\n\n".join(cell.source for cell in opening)

    def headings(self):
        """Return (cell's index, heading in small letters), in order."""
        return [
            (index, match.lower())
            for index, cell in enumerate(self.cells)
            if cell.cell_type == "markdown"
            for match in re.findall(r"^#+ +(.+?) *$", cell.source, flags=re.M)
        ]

    def places(self, part):
        return [i for i, text in self.headings()[1:] if re.search(PARTS[part], text)]

    def section(self, part):
        """Return the code from a part's heading to the next heading."""
        starts = sorted({index for index, _ in self.headings()})
        for place in self.places(part):
            end = min((s for s in starts if s > place), default=len(self.cells))
            between = self.cells[place:end]
            return "\n".join(c.source for c in between if c.cell_type == "code")
        return ""


def python(cell):
    """Parse a cell without its magics; None where it is not Python."""
    lines = cell.source.splitlines()
    if lines and lines[0].startswith("%%"):
        return None
    kept = [line for line in lines if not line.lstrip().startswith(("%", "!"))]
    try:
        return ast.parse("\n".join(kept))
    except SyntaxError:
        return None


def lines_of(cell):
    """Count the lines that say something; the formatter decides on empty ones."""
    return sum(bool(line.strip()) for line in cell.source.splitlines())


def plain(source):
    """Prose without code, addresses and formulas."""
    for pattern in (
        r"```.*?```",
        r"~~~.*?~~~",
        r"``.+?``",
        r"`[^`]*`",
        r"\$\$.*?\$\$",
        r"\$[^$\n]+\$",
        r"(?<=\])\([^)]*\)",
        r"<[^>]+>",
    ):
        source = re.sub(pattern, "", source, flags=re.S)
    return source


# Each rule yields what is wrong with a chapter.
RULES = []


def rule(function):
    RULES.append(function)
    return function


# Anatomy


@rule
def title_and_one_question(chapter):
    """Title first, and one question."""
    first = chapter.cells[0]
    if first.cell_type != "markdown" or not re.match(r"# \S", first.source):
        yield "the first cell does not begin with a title"
    if sum(text.startswith("# ") for text in chapter.opening.splitlines()) != 1:
        yield "there is more than one title"
    head = re.split(r"you will find out", chapter.opening, flags=re.I)[0]
    if plain(head).count("?") != 1:
        yield f"{head.count('?')} questions under the title, not one"


@rule
def find_out_and_need(chapter):
    """What the reader will find out, in three bullets, and needs."""
    parts = r"you will find out(.*?)^you need(.*?)(?:\n\n|\Z)"
    found = re.search(parts, chapter.opening, flags=re.I | re.M | re.S)
    if not found:
        yield "no 'You will find out' and 'You need', in this order"
        return
    bullets = re.findall(r"^[-*] +\S", found[1], flags=re.M)
    if len(bullets) != 3:
        yield f"{len(bullets)} bullets of what to find out, not 3"
    minutes = re.search(r"(\d+) min", found[2])
    if not minutes:
        yield "it needs how many minutes?"
    elif int(minutes[1]) > 45:
        yield f"{minutes[1]} minutes are over 45"
    if "gpu" not in found[2].lower():
        yield "does it need a GPU?"
    if "chapter" not in found[2].lower():
        yield "which chapter comes before?"


@rule
def links_to_neighbours(chapter):
    """Links to the previous chapter, the contents and the next."""
    links = re.findall(r"\]\(([^)\s]+)\)", chapter.opening)
    if not any(link.partition("#")[0].endswith("README.md") for link in links):
        yield "no link to the contents"
    for word in ("previous", "contents", "next"):
        if not re.search(rf"\b{word}\b", chapter.opening, flags=re.I):
            yield f"the opening does not say '{word}'"
    for step in (-1, 1):
        wanted = f"{int(chapter.number) + step:02}_"
        for other in CHAPTERS:
            if other.name.startswith(wanted) and other.name not in links:
                yield f"no link to {other.name}"


@rule
def imports_in_one_cell(chapter):
    """Imports in one cell, the first of code."""
    with_imports = []
    for number, cell in enumerate(chapter.code):
        tree = python(cell)
        if tree and any(isinstance(n, ast.Import | ast.ImportFrom) for n in tree.body):
            with_imports.append(number)
    if with_imports != [0]:
        yield f"imports are in code cells {with_imports}, not only in the first"


@rule
def this_machine_is_shown(chapter):
    """`kit.this_machine()`, near the top."""
    if not any("this_machine()" in cell.source for cell in chapter.code[:4]):
        yield "no this_machine() in the first cells"


@rule
def parts_are_there(chapter):
    """Every required part has one heading."""
    for part in PARTS:
        if len(chapter.places(part)) != 1:
            yield f"{len(chapter.places(part))} headings '{part}'"


@rule
def parts_are_in_order(chapter):
    """*Same answer?* precedes *how much?*; the summary comes last."""
    same, much = chapter.places("same answer?"), chapter.places("how much?")
    if same and much and not same[0] < much[0]:
        yield "'how much?' comes before 'same answer?'"
    if not re.search(PARTS["summary"], chapter.headings()[-1][1]):
        yield "the last heading is not the summary"
    if chapter.cells[-1].cell_type != "markdown":
        yield "there is code after the summary"


@rule
def same_answer_is_asserted(chapter):
    """Asserted, and before any claim of speed."""
    if not re.search(
        r"\bassert|allclose|assert_close", chapter.section("same answer?")
    ):
        yield "'same answer?' asserts nothing"
    claims = [i for i, c in enumerate(chapter.cells) if "kit.claim(" in c.source]
    for place in chapter.places("same answer?"):
        if claims and claims[0] < place:
            yield "a claim comes before 'same answer?'"


@rule
def parts_do_what_they_say(chapter):
    """Each part has its means in code."""
    wanted = {
        "guess": r"guess\(",
        "how much?": r"compare\((?:.|\n)*claim\(",
        "why?": r"\bmodel=",
        "turn the knobs": r"explore\(" if "explore" in kit.__all__ else r"\bkit\.",
        "when it does not help": r"(?:compare|measure)\(",
        "exercises": r"check\(",
    }
    for part, pattern in wanted.items():
        if not re.search(pattern, chapter.section(part)):
            yield f"no {pattern!r} in '{part}'"
    if not any("# changed" in cell.source for cell in chapter.code):
        yield "no line is marked '# changed'"


@rule
def plain_loop_is_plain(chapter):
    """In full, at most 20 lines of plain PyTorch."""
    source = chapter.section("the plain loop")
    loops = [
        ast.get_source_segment(source, node) or ""
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.FunctionDef, ast.For))
    ]
    loops = [text for text in loops if ".backward()" in text]
    if not loops:
        yield "no loop with a backward pass"
        return
    if max(len(text.splitlines()) for text in loops) > 20:
        yield "it is over 20 lines"
    if any("kit." in text for text in loops):
        yield "it is not plain"


@rule
def summary_has_bullets(chapter):
    """Three to five."""
    for place in chapter.places("summary"):
        bullets = re.findall(r"^[-*] +\S", chapter.cells[place].source, flags=re.M)
        if not 3 <= len(bullets) <= 5:
            yield f"{len(bullets)} bullets"


@rule
def sources_are_covered(chapter):
    """The curriculum's ids, in the metadata."""
    listed = chapter.book.metadata.get("kit", {}).get("sources", [])
    if unknown := sorted(set(listed) - expand(KNOWN)):
        yield f"unknown ids {unknown}"
    if missing := sorted(expand(CURRICULUM[chapter.number]) - set(listed)):
        yield f"missing ids {missing}"


# Cells


@rule
def few_code_cells(chapter):
    """At most 30."""
    if len(chapter.code) > 30:
        yield f"{len(chapter.code)} code cells"


@rule
def short_code_cells(chapter):
    """Median at most 6 lines, none above 25."""
    lengths = sorted(map(lines_of, chapter.code))
    if statistics.median(lengths) > 6:
        yield f"the median is {statistics.median(lengths)} lines"
    if lengths[-1] > 25:
        yield f"one has {lengths[-1]} lines"


@rule
def narrow_code_cells(chapter):
    """At most 88 characters."""
    for number, cell in enumerate(chapter.code):
        widest = max((len(line) for line in cell.source.splitlines()), default=0)
        if widest > 88:
            yield f"code cell {number} is {widest} wide"
        if not cell.source.strip():
            yield f"code cell {number} is empty"


@rule
def code_follows_prose(chapter):
    """At least 85 % of code cells."""
    follows = [
        before.cell_type == "markdown"
        for before, cell in zip(chapter.cells, chapter.cells[1:], strict=False)
        if cell.cell_type == "code"
    ]
    if sum(follows) < 0.85 * len(chapter.code):
        yield f"only {sum(follows)} of {len(chapter.code)} follow prose"


@rule
def nothing_is_done_behind_the_readers_back(chapter):
    """No installs, no path tricks, no hidden cells, no blanket warning filters."""
    bad = {
        r"[!%] *(?:pip|conda|mamba|uv)\b": "installs something",
        r"\bsys\.path\b|\bPYTHONPATH\b": "changes the path",
        r"filterwarnings\(\s*['\"]ignore['\"]\s*\)|simplefilter\(\s*['\"]ignore": (
            "ignores all warnings"
        ),
        r"warnings\.warn *=|showwarning *=": "silences warnings",
    }
    for number, cell in enumerate(chapter.code):
        yield from (
            f"code cell {number} {what}"
            for pattern, what in bad.items()
            if re.search(pattern, cell.source)
        )
    for number, cell in enumerate(chapter.cells):
        jupyter = cell.metadata.get("jupyter", {})
        hidden = {"source_hidden", "outputs_hidden"} & {
            k for k, v in jupyter.items() if v
        }
        tags = [t for t in cell.metadata.get("tags", []) if re.match("hide|remove", t)]
        if hidden or tags or cell.metadata.get("collapsed"):
            yield f"cell {number} is hidden"


@rule
def prose_types_no_measured_number(chapter):
    """Figures come from cells or recordings."""
    for cell in chapter.prose:
        text = plain(cell.source)
        for allowed in ALLOWED:
            text = re.sub(allowed, "", text)
        for found in FIGURE.finditer(text):
            around = text[max(0, found.start() - 30) : found.end() + 10]
            yield " ".join(around.split())


# The file


@rule
def kernel_is_named(chapter):
    """Without it, Jupyter asks and nothing runs."""
    if chapter.book.metadata.get("kernelspec", {}).get("name") != "python3":
        yield "the kernelspec is not python3"


@rule
def outputs_are_stored(chapter):
    """By one command, from the first cell to the last."""
    counts = [cell.execution_count for cell in chapter.code]
    if counts != list(range(1, len(counts) + 1)):
        yield f"cells were not run once each and in order: {counts}"
    for number, cell in enumerate(chapter.code):
        tree = python(cell)
        last = tree.body[-1] if tree and tree.body else None
        shows = isinstance(last, ast.Expr) and not cell.source.rstrip().endswith(";")
        call = ast.unparse(last) if shows else ""
        if re.match(r"\w+$|kit\.|check\(", call) and not cell.outputs:
            yield f"code cell {number}, {call[:40]}…, shows nothing"


@rule
def outputs_are_fresh(chapter):
    """What is shown is what the code makes: no cell has changed since."""
    made_by = chapter.book.metadata.get("kit", {}).get("made_by", {})
    now = {cell.id: fingerprint(cell.source) for cell in chapter.code}
    if changed := [cell for cell in now if made_by.get(cell) != now[cell]]:
        yield f"cells have changed since outputs were made: {', '.join(changed)}"
    if gone := sorted(made_by.keys() - now.keys()):
        yield f"cells are gone since outputs were made: {', '.join(gone)}"


@rule
def outputs_are_static(chapter):
    """No widgets, no errors, no script, no progress."""
    if "widgets" in chapter.book.metadata:
        yield "there is widget state"
    for number, cell in enumerate(chapter.code):
        for output in cell.outputs:
            kinds = set(output.get("data", {}))
            if output.output_type == "error":
                yield f"code cell {number} shows an error"
            if any("widget" in kind or "javascript" in kind for kind in kinds):
                yield f"code cell {number} shows a widget"
            if "<script" in "".join(output.get("data", {}).get("text/html", "")):
                yield f"code cell {number} shows a script"
            is_meant = "stderr-is-meant" in cell.metadata.get("tags", [])
            if output.get("name") == "stderr" and not is_meant:
                yield f"code cell {number} shows stderr: {output.text[:60]!r}"
            if output.get("metadata", {}).get("kit") == "progress":
                yield f"code cell {number} shows progress"


class Images(HTMLParser):
    """The alt texts of a page's images; None for an image without one."""

    def __init__(self, page):
        super().__init__()
        self.alts = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            self.alts.append(dict(attrs).get("alt"))


@rule
def images_have_alt_text(chapter):
    """In outputs and in prose."""
    for number, cell in enumerate(chapter.cells):
        pages = [] if cell.cell_type == "code" else [cell.source]
        alts = [alt for page in pages for alt in re.findall(r"!\[(.*?)\]", page)]
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            pages.append("".join(data.get("text/html", "")))
            for kind in data:
                if kind.startswith("image/") and "text/html" not in data:
                    alts.append(output.metadata.get(kind, {}).get("alt"))
        alts += [alt for page in pages for alt in Images(page).alts]
        if not all(alt and len(alt) > 3 for alt in alts):
            yield f"cell {number} has an image without alt text"


@rule
def file_is_small(chapter):
    """Under 1 MB."""
    size = len(nbformat.writes(chapter.book).encode())
    if size >= 1_000_000:
        yield f"{size:,} bytes"


every_chapter = pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)


def test_there_are_chapters():
    assert CHAPTERS


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@every_chapter
def test_chapter(path, rule):
    assert list(rule(Chapter(path))) == []


@every_chapter
def test_chapter_is_a_valid_notebook(path):
    nbformat.validate(json.loads(path.read_text("utf-8")))


# Exercises


def exercises_of(path):
    """Return the exercises that a chapter's notebook checks, in order."""
    found = {}
    for cell in Chapter(path).code:
        for name in re.findall(r"\bcheck\(\s*['\"]([^'\"]+)['\"]", cell.source):
            found[name] = None
    return list(found)


def run_solutions(path, monkeypatch):
    """Run a solutions notebook from top to bottom; return exercise → what was found.

    Its cells run in this process, which has imported PyTorch already.
    """
    found, names = {}, {"__name__": "__main__"}

    def noted(name, *answers):
        found[name] = check(name, *answers)
        return found[name]

    monkeypatch.setattr(teaching, "check", noted)
    monkeypatch.setenv("KIT_SMOKE", "1")
    monkeypatch.chdir(path.parent)
    monkeypatch.syspath_prepend("")  # as in a kernel
    for number, cell in enumerate(Chapter(path).code):
        name = f"<{path.stem}, cell {number}>"  # experiments must find their source
        lines = cell.source.splitlines(keepends=True)
        linecache.cache[name] = len(cell.source), None, lines, name
        exec(compile(cell.source, name, "exec"), names)
    return found


def wrong_answers_of(number, which="WRONG"):
    """Return exercise → plausible wrong answers, from a file beside the checks."""
    path = TUTORIALS / "checks" / f"{number}_wrong.py"
    if not path.is_file():
        path = Path(__file__).parent / f"attempts_{number}.py"
    assert path.is_file(), f"plausible wrong answers are missing: write {path.name}"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    answers = getattr(module, which, {})
    return {f"{number}/{name}": some for name, some in answers.items()}


def assert_refused(wrong):
    for name, answers in wrong.items():
        for answer in answers:
            found = check(name, answer)
            assert found.attempted
            assert not found.passed, f"{name} takes {answer.__name__}"
            assert len(found.message) > 20, f"{name} does not say why"
            assert not found.message.startswith("it raised"), found


@pytest.fixture
def in_tutorials(monkeypatch, tmp_path):
    monkeypatch.chdir(TUTORIALS)
    monkeypatch.setenv("KIT_CACHE", str(tmp_path))


@every_chapter
def test_chapter_has_three_exercises_or_more(path, in_tutorials):
    names = exercises_of(path)
    assert len(names) >= 3
    for name in names:
        assert name.startswith(f"{path.name[:2]}/")
        found = check(name, None)
        assert not found.attempted
        assert "not attempted" in repr(found)


@every_chapter
def test_solutions_run_and_checks_accept_them(path, monkeypatch):
    """Data sets come from the cache that all of `make test` shares."""
    found = run_solutions(TUTORIALS / "solutions" / path.name, monkeypatch)
    assert list(found) == exercises_of(path)
    for result in found.values():
        assert result.attempted and result.passed, result


@every_chapter
def test_checks_refuse_plausible_wrong_answers(path, in_tutorials):
    wrong = wrong_answers_of(path.name[:2])
    assert set(wrong) == set(exercises_of(path))
    assert min(map(len, wrong.values())) >= 2
    assert_refused(wrong)


@pytest.mark.nightly
@every_chapter
def test_checks_refuse_more_wrong_answers(path, in_tutorials):
    more = wrong_answers_of(path.name[:2], "MORE")
    assert set(more) <= set(exercises_of(path))
    assert_refused(more)


def test_a_chapter_without_wrong_answers_is_seen():
    with pytest.raises(AssertionError, match=r"write attempts_99\.py"):
        wrong_answers_of("99")


@every_chapter
def test_a_gpu_has_recorded_it_or_it_says_that_none_has(path):
    chapter = Chapter(path)
    found = [
        trial
        for recording in (TUTORIALS / "recordings").glob(f"{path.stem}__*.json")
        for trial in kit.load(recording)
        if trial.machine.accelerators
    ]
    assert bool(found) == (path.stem not in GPU_DEBTS), "the list of debts is not true"
    if found:
        assert "recorded(" in chapter.section("on a data-centre GPU")
        return
    prose = "\n".join(cell.source for cell in chapter.prose)
    assert "No GPU has recorded this chapter yet." in prose
    assert f"record.py --into recorded tutorials/{path.name}`" in prose


# The rules themselves: a chapter that keeps them all, and one change at a time

OPENING = """# 00 · Made up

**How fast is it?**

You will find out:

- one;
- two;
- three.

You need: 20 minutes, no GPU, no earlier chapter.

Previous: none · [Contents](../README.md#chapters) · Next: none
"""
PLAIN = """def loop():
    loss = net(x).sum()
    loss.backward()
"""


def good():
    """A notebook without a fault: cells by name, so that one can be changed."""
    code, prose = nbformat.v4.new_code_cell, nbformat.v4.new_markdown_cell
    cells = {
        "opening": prose(OPENING),
        "imports": code("import kit"),
        "machine?": prose("This is your machine."),
        "machine": code("kit.this_machine()"),
        "plain?": prose("## The plain loop\n\nIt is plain."),
        "plain": code(PLAIN),
        "guess?": prose("## Guess"),
        "guess": code("kit.guess('How many?')"),
        "change?": prose("One line."),
        "change": code("x = 1  # changed"),
        "same?": prose("## Same answer?"),
        "same": code("assert x == 1"),
        "much?": prose("## How much?\n\nLook at the 95 % interval and `2 ×`."),
        "much": code(
            "kit.claim('Fast.', kit.compare(loop))\nkit.compare(); kit.claim()"
        ),
        "why?": prose("## Why?"),
        "why": code("comparison.plot(x='n', model=len)"),
        "knobs?": prose("## Turn the knobs"),
        "knobs": code("kit.explore(loop)"),
        "not?": prose("## When it does not help"),
        "not": code("kit.compare(loop)"),
        "gpu?": prose("## On a data-centre GPU"),
        "gpu": code("kit.recorded('00_made_up/loop')"),
        "more": prose("## Where one machine is not enough"),
        "then": prose("## Then and now"),
        "exercise?": prose("## Exercises"),
        "exercise": code("check('00/one', None)"),
        "summary": prose("## Summary\n\n- one\n- two\n- three"),
    }
    return cells


def made_up(cells, **metadata):
    number = 0
    for cell in cells.values():
        if cell.cell_type == "code":
            number += 1
            cell.execution_count = number
            data = {"text/plain": "shown"}
            if not cell.outputs:
                cell.outputs = [nbformat.v4.new_output("display_data", data)]
    book = nbformat.v4.new_notebook(cells=list(cells.values()))
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    made_by = {cell.id: fingerprint(cell.source) for cell in code}
    own = {"sources": ["P1", "A18"], "made_by": made_by}
    book.metadata = nbformat.from_dict(
        {"kernelspec": {"name": "python3"}, "kit": own} | metadata
    )
    return Chapter(Path("00_made_up.ipynb"), book)


def complaints(chapter):
    return {rule.__name__ for rule in RULES if list(rule(chapter))}


def test_a_good_chapter_breaks_no_rule(monkeypatch):
    monkeypatch.setattr(f"{__name__}.CHAPTERS", [])
    chapter = made_up(good())
    assert {r.__name__: list(r(chapter)) for r in RULES if list(r(chapter))} == {}


def source(name, old, new):
    """Return a change of one cell's source."""

    def change(cells):
        assert old in cells[name].source
        cells[name].source = cells[name].source.replace(old, new)

    return change


def drop(*names):
    def change(cells):
        for name in names:
            del cells[name]

    return change


def swap(first, second):
    def change(cells):
        cells[first], cells[second] = cells[second], cells[first]

    return change


def output(cell, kind="display_data", **fields):
    def change(cells):
        cells[cell].outputs = [nbformat.v4.new_output(kind, **fields)]

    return change


def metadata(name, **fields):
    def change(cells):
        cells[name].metadata = nbformat.from_dict(fields)

    return change


def many(cells):
    cells["guess"].source += "\nx = 1" * 25


def lots(cells):
    last = cells.pop("summary")
    for number in range(20):
        cells[f"{number}?"] = nbformat.v4.new_markdown_cell("Look.")
        cells[f"{number}"] = nbformat.v4.new_code_cell("x = 1")
    cells["summary"] = last


BROKEN = [
    ("title_and_one_question", source("opening", "# 00", "## 00")),
    ("title_and_one_question", source("opening", "fast is it?", "fast? Really?")),
    ("title_and_one_question", source("opening", "fast is it?", "fast it is.")),
    ("find_out_and_need", source("opening", "- three.\n", "")),
    ("find_out_and_need", source("opening", "20 minutes", "90 minutes")),
    ("find_out_and_need", source("opening", "no GPU, ", "")),
    ("find_out_and_need", source("opening", "You need:", "Bring")),
    ("links_to_neighbours", source("opening", "../README.md#chapters", "x.md")),
    ("links_to_neighbours", source("opening", "Next: none", "")),
    ("imports_in_one_cell", source("guess", "kit.", "import kit\nkit.")),
    ("this_machine_is_shown", source("machine", "this_machine", "measure")),
    ("parts_are_there", source("then", "Then and now", "History")),
    ("parts_are_there", drop("why?")),
    ("parts_are_in_order", swap("same?", "much?")),
    ("parts_are_in_order", swap("summary", "then")),
    ("same_answer_is_asserted", source("same", "assert ", "")),
    ("parts_do_what_they_say", source("not", "kit.compare(loop)", "x = 1")),
    ("parts_do_what_they_say", source("change", "# changed", "# other")),
    (
        "plain_loop_is_plain",
        source("plain", "    loss.b", "    x = 1\n" * 19 + "    loss.b"),
    ),
    ("plain_loop_is_plain", source("plain", "net(x)", "kit.fast(x)")),
    ("summary_has_bullets", source("summary", "- three", "")),
    ("few_code_cells", lots),
    ("short_code_cells", many),
    ("narrow_code_cells", source("why", "len)", "len)  # " + "x" * 70)),
    ("code_follows_prose", drop("machine?", "change?")),
    (
        "nothing_is_done_behind_the_readers_back",
        source("why", "c", "!pip install x\nc"),
    ),
    (
        "nothing_is_done_behind_the_readers_back",
        source("why", "comparison", "sys.path.append(1)\ncomparison"),
    ),
    (
        "nothing_is_done_behind_the_readers_back",
        source("why", "comparison", "warnings.filterwarnings('ignore')\ncomparison"),
    ),
    (
        "nothing_is_done_behind_the_readers_back",
        metadata("why", jupyter={"source_hidden": True}),
    ),
    ("nothing_is_done_behind_the_readers_back", metadata("why", tags=["hide-input"])),
    ("prose_types_no_measured_number", source("much?", "`2 ×`", "2 ×")),
    (
        "prose_types_no_measured_number",
        source("why?", "Why?", "Why?\n\nIt takes 3 ms."),
    ),
    (
        "prose_types_no_measured_number",
        source("why?", "Why?", "Why?\n\nIt saves 20 %."),
    ),
    ("prose_types_no_measured_number", source("why?", "Why?", "Why?\n\n500 images/s")),
    ("outputs_are_static", output("why", "error", ename="E", evalue="", traceback=[])),
    (
        "outputs_are_static",
        output("why", data={"application/vnd.jupyter.widget-view+json": {}}),
    ),
    ("outputs_are_static", output("why", "stream", name="stderr", text="Warning")),
    ("images_have_alt_text", output("why", data={"image/png": "AAAA"})),
    ("images_have_alt_text", output("why", data={"text/html": "<img src='x'>"})),
    ("images_have_alt_text", output("why", data={"text/html": "<img alt='' src='x'>"})),
    ("images_have_alt_text", source("why?", "Why?", "Why?\n\n![](x.png)")),
    ("file_is_small", output("why", data={"text/plain": "x" * 1_000_000})),
]


@pytest.mark.parametrize(("name", "change"), BROKEN)
def test_a_broken_rule_is_seen(name, change):
    cells = good()
    change(cells)
    assert name in complaints(made_up(cells))


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("kernel_is_named", {"kernelspec": {"name": "conda-env"}}),
        ("sources_are_covered", {"kit": {"sources": ["P1"]}}),
        ("sources_are_covered", {"kit": {"sources": ["P1", "A18", "Z1"]}}),
        ("sources_are_covered", {"kit": {}}),
        ("outputs_are_static", {"widgets": {"application/x": {}}}),
    ],
)
def test_broken_metadata_is_seen(name, changed):
    assert name in complaints(made_up(good(), **changed))


@pytest.mark.parametrize(
    ("new", "is_stale"), [("x = 1  # another", False), ("x = 2", True), ("", True)]
)
def test_outputs_of_code_that_has_changed_since_are_seen(new, is_stale):
    chapter = made_up(good())
    chapter.code[3].source = "x = 1"
    made_by = chapter.book.metadata["kit"]["made_by"]
    made_by[chapter.code[3].id] = fingerprint("x = 1")
    chapter.code[3].source = new
    assert ("outputs_are_fresh" in complaints(chapter)) == is_stale


def test_outputs_that_are_missing_or_out_of_order_are_seen():
    chapter = made_up(good())
    chapter.code[3].execution_count = 9
    assert "outputs_are_stored" in complaints(chapter)
    chapter = made_up(good())
    chapter.code[1].outputs = []
    assert "outputs_are_stored" in complaints(chapter)


@pytest.mark.parametrize(
    "text",
    ["`1.5 ×`", "a 95 % interval", "within 2 % of it", "64×64 pixels", "3 × 3", "5 s"],
)
def test_figures_that_are_not_measured_are_fine(text):
    cells = good()
    cells["why?"].source += f"\n\nHere it is: {text}."
    assert "prose_types_no_measured_number" not in complaints(made_up(cells))


def test_images_with_alt_text_are_fine():
    png = nbformat.v4.new_output(
        "display_data",
        data={"image/png": "AAAA"},
        metadata={"image/png": {"alt": "Bars, two of them."}},
    )
    page = nbformat.v4.new_output(
        "display_data", data={"text/html": "<img alt='Bars, two.' src='x'>"}
    )
    cells = good()
    cells["why"].outputs = [png, page]
    assert "images_have_alt_text" not in complaints(made_up(cells))


def test_curriculum_knows_only_ids_that_exist():
    assert expand("A1-A3 P4") == {"A1", "A2", "A3", "P4"}
    for ids in CURRICULUM.values():
        assert expand(ids) <= expand(KNOWN)
    assert expand(KNOWN) == set().union(*map(expand, CURRICULUM.values()))
