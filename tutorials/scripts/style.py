"""Say what a chapter lacks of the anatomy and the cells that all chapters have.

    python tutorials/scripts/style.py tutorials/00_start_here.ipynb

`make test` asks the same of every chapter.
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path

import nbformat
from pages import CODE, GLOSSARY, ROOT, find_broken_links, find_uses
from slices import fingerprint

#: Which points of the sources each chapter covers, and which there are.
CURRICULUM = dict(
    row.split(" ", 1)
    for row in [
        "00 P1 A18",
        "01 P1-P3 P5-P11",
        "02 A1",
        "03 A2 A3",
        "04 A4 P4 P9",
        "05 A5",
        "06 A6 D3",
        "07 A9",
        "08 P6 P7 P11",
        "09 A13 A15",
        "10 A13 A14",
        "11 D1-D9",
        "12 A7 D8",
        "13 A11 A12 A17 D9",
        "14 A9 A10",
        "15 D1 A8",
        "16 R1-R7",
        "17 A7 A17",
        "18 A13 A16 A17",
        "19 A18",
    ]
)
KNOWN = "A1-A18 D1-D9 R1-R7 P1-P11"
README = ROOT / "README.md"
#: The heading of each part that every chapter has, and what must stand in its code.
PARTS = {
    "plain loop": r"\.backward\(\)",
    "guess": r"guess\(",
    "same answer": r"\bassert|allclose|assert_close",
    "how much": r"compare\((?:.|\n)*claim\(",
    r"\bwhy\b": r"\bmodel=",
    "turn the knobs": r"explore\(",
    "when .*not help": r"(?:compare|measure)\(",
    "data-cent(?:re|er) gpu": "",
    "one machine is not enough": "",
    "then and now": "",
    "exercises": r"check\(",
    "summary": "",
}
#: What a reader could take for a result: a figure with a unit of speed or gain.
FIGURE = re.compile(
    r"\d+(?:[.,]\d+)?[\s-]*"
    r"(?:×(?!\s*\d)|%|percent|-?fold\b"
    r"|(?:x|times) (?:as|faster|slower|less|more|the)\b"
    r"|(?:images|items|photos|samples|steps|tokens|batches)(?:/s| (?:per|a) second)"
    r"|[mµun]s\b|(?:milli|micro|nano)seconds|1/s\b|[KMGT]B/s|[KMGTP]?FLOP)",
    re.I,
)
#: Definitions, which prose may type: the interval's level, what "same" means.
DEFINITIONS = re.compile(
    r"\b95 % (?:confidence )?intervals?|\bwithin 2 %|\b2 % zone|±\s?2 %|\bbelow 2 %"
)
#: What stands in Markdown and is not read: addresses and marks.
ADDRESS = re.compile(r"(?<=\])\([^)]*\)|<[^>]+>")
BEHIND_THE_BACK = {
    r"[!%] *(?:pip|conda|mamba|uv)\b": "installs something",
    r"\bsys\.path\b|\bPYTHONPATH\b": "changes the path",
    r"(?:filterwarnings|simplefilter)\(\s*['\"]ignore['\"]\s*\)": "hides warnings",
    r"warnings\.warn *=|showwarning *=": "silences warnings",
}


def expand(text: str) -> set[str]:
    """Return the ids of "A1-A3 P4": A1, A2, A3, P4."""
    ids: set[str] = set()
    for part in text.split():
        first, _, last = part.partition("-")
        numbers = range(int(first[1:]), int((last or first)[1:]) + 1)
        ids |= {f"{first[0]}{number}" for number in numbers}
    return ids


class Chapter:
    """A notebook with what the rules ask for."""

    def __init__(self, path: Path, book: nbformat.NotebookNode | None = None) -> None:
        self.path, self.number = path, path.name[:2]
        self.is_chapter = path.parent.name != "more"
        self.book = book or nbformat.read(path, as_version=4)
        self.cells = self.book.cells
        self.code = [cell for cell in self.cells if cell.cell_type == "code"]
        self.prose = [cell for cell in self.cells if cell.cell_type == "markdown"]
        first = self.cells.index(self.code[0])
        self.opening = "\n\n".join(cell.source for cell in self.cells[:first])
        self.headings = [
            (number, match.lower())
            for number, cell in enumerate(self.cells)
            if cell.cell_type == "markdown"
            for match in re.findall(r"^#+ +(.+?) *$", cell.source, flags=re.M)
        ]
        self.own = self.book.metadata.get("kit", {})

    def places(self, part: str) -> list[int]:
        """Return the cells with a heading like this, the title aside."""
        return [place for place, text in self.headings[1:] if re.search(part, text)]

    def section(self, part: str) -> str:
        """Return the code from a part's heading to the next heading."""
        for place in self.places(part):
            ends = [number for number, _ in self.headings if number > place]
            between = self.cells[place : min(ends, default=None)]
            return "\n".join(c.source for c in between if c.cell_type == "code")
        return ""


def count_bullets(text: str) -> int:
    """Return how many bullets a text has."""
    return len(re.findall(r"^[-*] +\S", text, flags=re.M))


def parse(cell: nbformat.NotebookNode) -> list[ast.stmt]:
    """Return a cell's statements without its magics; none where it is not Python."""
    if cell.source.startswith("%%"):
        return []
    lines = cell.source.splitlines()
    kept = [line for line in lines if not line.lstrip().startswith(("%", "!"))]
    try:
        return ast.parse("\n".join(kept)).body
    except SyntaxError:
        return []


# The rules: each yields what is wrong with a chapter


def opening(chapter: Chapter) -> Iterator[str]:
    """Ask for a title, one question, what to find out and need, the neighbours."""
    text = chapter.opening
    title = rf"# {chapter.number} · \S"
    if not re.match(title, text) or len(re.findall(r"^# ", text, re.M)) != 1:
        yield "it does not begin with one title and its number"
    if not any("this_machine()" in cell.source for cell in chapter.code[:4]):
        yield "no this_machine() near the top"
    head, _, rest = re.sub("you will find out", "\0", text, flags=re.I).partition("\0")
    if CODE.sub("", head).count("?") != 1:
        yield "not one question under the title"
    found = re.search(r"(.*?)^you need(.*?)(?:\n\n|\Z)", rest, re.I | re.M | re.S)
    if not found or count_bullets(found[1]) != 3:
        yield "not three bullets of what you will find out, and then what you need"
        return
    minutes = re.search(r"(\d+) min", found[2])
    if not minutes or int(minutes[1]) > 60:
        yield "it needs how many minutes, 60 at most?"
    yield from (f"{w}?" for w in ("gpu", "chapter") if w not in found[2].lower())
    yield from find_missing_links(chapter)


def find_missing_links(chapter: Chapter) -> Iterator[str]:
    """Yield which of contents and neighbours the opening does not name or link to."""
    text = chapter.opening
    links = re.findall(r"\]\(([^)\s#]+)[^)]*\)", text)
    if not any(link.endswith("README.md") for link in links):
        yield "no link to the contents"
    for word in ("previous", "contents", "next"):
        if not re.search(rf"\b{word}\b", text, re.I):
            yield f"the opening does not say {word}"
    for step in (-1, 1):
        near = f"{int(chapter.number) + step:02}_*.ipynb"
        for other in chapter.path.parent.glob(near):
            if other.name not in links:
                yield f"no link to {other.name}"


def appendix(chapter: Chapter) -> Iterator[str]:
    """Ask for a title, one question, what to find out and need, a way back."""
    head, _, rest = chapter.opening.partition("You will find out")
    if not re.match(r"# [A-Z]", head) or head.count("?") != 1:
        yield "it does not begin with a title, without a number, and one question"
    found = re.search(r"(.*?)^You need: \d+ minutes", rest, re.M | re.S)
    if not found or count_bullets(found[1]) != 3:
        yield "not three bullets of what you will find out, and what you need"
    if not re.search(r"\]\(\.\./\d\d_\w+\.ipynb\)", rest):
        yield "no link to a chapter"
    if f"](tutorials/more/{chapter.path.name})" not in README.read_text("utf-8"):
        yield "the contents do not name it"


def parts(chapter: Chapter) -> Iterator[str]:
    """Ask for every part once, with its means in code; the answer before the speed."""
    for part, means in PARTS.items():
        if len(chapter.places(part)) != 1:
            yield f"{len(chapter.places(part))} headings like {part!r}"
        elif not re.search(means, chapter.section(part)):
            yield f"no {means!r} in {part!r}"
    same, much = chapter.places("same answer"), chapter.places("how much")
    claims = [n for n, c in enumerate(chapter.cells) if "kit.claim(" in c.source]
    if same and min([*much, *claims, same[0]]) < same[0]:
        yield "speed before 'same answer?'"
    place, last = chapter.headings[-1]
    if "summary" not in last or chapter.cells[-1].cell_type != "markdown":
        yield "the summary is not the last"
    if not 3 <= count_bullets(chapter.cells[place].source) <= 5:
        yield "not three to five bullets in the summary"
    if not any("# changed" in cell.source for cell in chapter.code):
        yield "no line is marked '# changed'"
    source = chapter.section("plain loop")
    for node in ast.walk(ast.parse(source)):
        is_loop = isinstance(node, ast.FunctionDef | ast.For)
        text = (ast.get_source_segment(source, node) or "") if is_loop else ""
        if ".backward()" in text and (text.count("\n") >= 20 or "kit." in text):
            yield "the plain loop is long, or not plain"


def cells(chapter: Chapter) -> Iterator[str]:
    """Ask for few cells, short and narrow, after prose, with nothing hidden."""
    lines = [[s for s in c.source.split("\n") if s.strip()] for c in chapter.code]
    lengths = [len(some) for some in lines]
    if len(lengths) > 30 or max(lengths) > 25 or not all(lengths):
        yield f"{len(lengths)} code cells, of {min(lengths)} to {max(lengths)} lines"
    if statistics.median(lengths) > 6:
        yield f"their median is {statistics.median(lengths)} lines"
    if max(len(line) for some in lines for line in some) > 88:
        yield "a line of code is over 88 wide"
    kinds = "".join(cell.cell_type[0] for cell in chapter.cells)
    if kinds.count("mc") < 0.85 * len(lengths):
        yield f"only {kinds.count('mc')} of {len(lengths)} code cells follow prose"
    imports = [n for n, c in enumerate(chapter.code) if has_imports(c)]
    if imports != [0]:
        yield f"imports are in code cells {imports}, not only in the first"
    yield from find_hidden(chapter)


def find_hidden(chapter: Chapter) -> Iterator[str]:
    """Yield the cells that act behind the reader's back, or are not shown."""
    for number, cell in enumerate(chapter.cells):
        for pattern, what in BEHIND_THE_BACK.items():
            if cell.cell_type == "code" and re.search(pattern, cell.source):
                yield f"cell {number} {what}"
        tags = cell.metadata.get("tags", [])
        hidden = [*cell.metadata.get("jupyter", {}).values()]
        hidden += [tag for tag in tags if tag.startswith(("hide", "remove"))]
        if any(hidden) or cell.metadata.get("collapsed"):
            yield f"cell {number} is hidden"


def has_imports(cell: nbformat.NotebookNode) -> bool:
    """Return whether a cell imports something."""
    return any(isinstance(n, ast.Import | ast.ImportFrom) for n in parse(cell))


def prose(chapter: Chapter) -> Iterator[str]:
    """Ask that figures come from cells or recordings, and are not typed."""
    for cell in chapter.prose:
        text = DEFINITIONS.sub("", ADDRESS.sub("", CODE.sub("", cell.source)))
        for found in FIGURE.finditer(text):
            yield " ".join(text[max(0, found.start() - 30) : found.end()].split())


def terms(chapter: Chapter) -> Iterator[str]:
    """Ask for a link where a term of the glossary is first used."""
    text = "\n\n".join(cell.source for cell in chapter.prose)
    first: dict[str, bool] = {}
    for anchor, is_link in find_uses(text, GLOSSARY.read_text("utf-8")):
        first.setdefault(anchor, is_link)
    for anchor in (anchor for anchor, is_link in first.items() if not is_link):
        yield f"link its first use to {GLOSSARY.name}#{anchor}"


def links(chapter: Chapter) -> Iterator[str]:
    """Ask that no link leads nowhere."""
    if chapter.path.exists():
        yield from find_broken_links(chapter.path)


def file(chapter: Chapter) -> Iterator[str]:
    """Ask for a kernel, the curriculum's points, less than 1 MB."""
    if chapter.book.metadata.get("kernelspec", {}).get("name") != "python3":
        yield "without the kernelspec python3 Jupyter asks, and nothing runs"
    listed = {*chapter.own.get("sources", [])}
    points = CURRICULUM.get(chapter.number, "") if chapter.is_chapter else ""
    if not expand(points) <= listed <= expand(KNOWN):
        yield f"its sources are {sorted(listed)}"
    if len(nbformat.writes(chapter.book).encode()) >= 1_000_000:
        yield "it has 1 MB or more"


def outputs(chapter: Chapter) -> Iterator[str]:
    """Ask for static outputs, made by one command from the code as it is."""
    if "widgets" in chapter.book.metadata:
        yield "there is widget state"
    made_by = chapter.own.get("made_by", {})
    now = {cell.id: fingerprint(cell.source) for cell in chapter.code}
    changed = {c for c in now.keys() | made_by if now.get(c) != made_by.get(c)}
    if changed:
        yield f"cells have changed since outputs were made: {sorted(changed)}"
    if [c.execution_count for c in chapter.code] != [*range(1, len(chapter.code) + 1)]:
        yield "cells were not run once each and in order"
    for number, cell in enumerate(chapter.code):
        if shows_result(cell) and not cell.outputs:
            yield f"code cell {number} shows nothing"
        for kinds in map(list_kinds, cell.outputs):
            if "stderr-is-meant" in cell.metadata.get("tags", []):
                kinds = kinds.replace("stderr", "")
            if re.search("widget|script|error|stderr|progress", kinds):
                yield f"code cell {number} shows {kinds}"


def list_kinds(output: nbformat.NotebookNode) -> str:
    """Return what an output is made of."""
    data = output.get("data", {})
    kinds = [*data, output.output_type, output.get("name", "")]
    kinds += ["script"] * ("<script" in "".join(data.get("text/html", "")))
    kinds += ["progress"] * (output.get("metadata", {}).get("kit") == "progress")
    return " ".join(kinds)


def shows_result(cell: nbformat.NotebookNode) -> bool:
    """Return whether a cell ends in something that Jupyter shows."""
    last = ([None, *parse(cell)])[-1]
    if not isinstance(last, ast.Expr) or cell.source.rstrip().endswith(";"):
        return False
    return bool(re.match(r"\w+$|kit\.|check\(", ast.unparse(last)))


class Images(HTMLParser):
    """The alt texts of a page's images; None for an image without one."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.alts: list[str | None] = []
        self.feed(page)

    def handle_starttag(
        self, tag: str, attrs: Sequence[tuple[str, str | None]]
    ) -> None:
        """Note an image's alt text."""
        if tag == "img":
            self.alts.append(dict(attrs).get("alt"))


def images(chapter: Chapter) -> Iterator[str]:
    """Ask for words for who does not see an image."""
    for number, cell in enumerate(chapter.cells):
        source = cell.source if cell.cell_type == "markdown" else ""
        alts = [*re.findall(r"!\[(.*?)\]", source), *Images(source).alts]
        for output in cell.get("outputs", []):
            page = "".join(output.get("data", {}).get("text/html", ""))
            alts += Images(page).alts
            for kind in output.get("data", {}):
                if kind.startswith("image/") and not page:
                    alts.append(output.metadata.get(kind, {}).get("alt"))
        if not all(alt and len(alt) > 3 for alt in alts):
            yield f"cell {number} has an image without alt text"


#: What is asked of every notebook, of chapters, and of what lies in tutorials/more.
ALL = (cells, prose, links, file, outputs, images)
RULES, APPENDIX = (opening, parts, terms, *ALL), (appendix, *ALL)


def main(words: Sequence[str] | None = None) -> int:
    """Print what the chapters lack; return 1 where it is something."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("chapters", nargs="+", type=Path)
    faults = [
        f"{path.name}, {rule.__name__}: {fault}"
        for path in parser.parse_args(words).chapters
        for rule in (RULES if Chapter(path).is_chapter else APPENDIX)
        for fault in rule(Chapter(path))
    ]
    print("\n".join(faults) or "nothing is missing")
    return bool(faults)


if __name__ == "__main__":
    raise SystemExit(main())
