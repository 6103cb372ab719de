"""Write which technique helped, and where: a page for readers.

    python tutorials/scripts/what_helps.py --check
    python tutorials/scripts/what_helps.py --write

A row is a claim of a chapter on one machine, judged from its recording, or a challenger
in a comparison of the appendix on an H100. What is stale has no row, and is listed.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from cells import Cell, ClaimError, find_claims, parse
from claims import judge_chapter
from pages import format_table, write_table

import kit
from kit.errors import RecordingError
from kit.figures import format_value
from kit.machine import Machine
from kit.measuring.report import Comparison
from kit.measuring.verdict import MEMORY, RUN_SECONDS, SPEED

START = "<!-- rows: written by `python tutorials/scripts/what_helps.py --write` -->"
END = "<!-- end of rows -->"
#: What the rows are grouped by, and the chapters that are about it.
SUBJECTS = {
    "A slow script, one change at a time": "00",
    "Operations, profiling and waits": "01 02 03",
    "Loading": "04",
    "Storage": "05",
    "Batch size": "06",
    "Memory": "07",
    "Fewer, larger kernels": "08",
    "Number formats and mixed precision": "09 10",
    "Several processes: data parallel": "11 12 13 14",
    "Several processes: parts of a model, remote calls": "15 16",
    "Many machines: starting, saving, restarting": "17",
    "Faster hardware": "18",
    "All together": "19",
}
HEADERS = ["technique", "what is compared", "machine", "ratio [95 % interval]"]
HEADERS += ["verdict", "PyTorch", "date", "measured in"]
NOUNS = {SPEED: "speed", RUN_SECONDS: "time", MEMORY: "memory"}
APPENDIX = "more/00_on_a_gpu.ipynb"


class Row(NamedTuple):
    """A challenger against its baseline; `mark` is ✓, ✗ or ? for a claim."""

    chapter: str
    technique: str
    made: Comparison
    label: str
    mark: str
    link: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or check it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("tutorials"))
    parser.add_argument("--check", action="store_true", help="exit 1 for an old page")
    parser.add_argument("--write", action="store_true", help="write WHAT_HELPS.md")
    options = parser.parse_args(arguments)
    page = options.folder / "WHAT_HELPS.md"
    try:
        text = write_page(options.folder)
    except (RecordingError, ClaimError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(text.partition("\n")[0])
    if options.write:
        write_table(page, START, text, END)
    is_old = f"{START}\n\n{text}\n\n{END}" not in page.read_text(encoding="utf-8")
    if is_old:
        why = "is not what the recordings say. Run what_helps.py --write"
        print(f"✗ {page} {why}", file=sys.stderr)
    return 1 if options.check and is_old else 0


def write_page(folder: Path) -> str:
    """Return what stands between the two comments of the page."""
    notebooks = sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    listed = [*map(list_claims, notebooks), list_appendix(folder)]
    rows = [row for found, _ in listed for row in found]
    known = " ".join(SUBJECTS.values()).split()
    if unknown := {row.chapter for row in rows} - {*known}:
        raise ClaimError(f"{unknown}: chapters without a subject in what_helps.py")
    waiting = [f"- {line}" for _, missing in listed for line in missing]
    verdicts = Counter(row.made.ratios[row.label].verdict for row in rows)
    counts = [f"{count} {verdict}" for verdict, count in verdicts.most_common()]
    counts.append(f"{sum(row.mark == '✗' for row in rows)} with ✗")
    parts = [f"{len(rows)} rows: {', '.join(counts)}."]
    for subject, chapters in SUBJECTS.items():
        lines = [write_row(row) for row in rows if row.chapter in chapters.split()]
        if lines:
            parts += [f"## {subject}", format_table(HEADERS, lines)]
    if waiting:
        parts += ["## What waits for a measurement", "\n".join(waiting)]
    return "\n\n".join(parts)


def list_claims(notebook: Path) -> tuple[list[Row], list[str]]:
    """Return a chapter's claims, in its order, and a line for each that is stale."""
    chapter = notebook.stem[:2]
    judged, stale = judge_chapter(notebook)
    latest = {(each.claim.sentence, each.machine): each for each in judged}
    sections = {
        sentence: heading
        for heading, cell in find_sections(notebook)
        for sentence, _ in find_claims(cell)
    }
    rows = []
    for sentence, heading in sections.items():
        link = write_link(chapter, notebook.name, heading)
        for each in latest.values():
            if each.claim.sentence == sentence:
                made, mark = each.comparison, each.claim.verdict
                rows.append(Row(chapter, sentence, made, each.label, mark, link))
    return rows, stale


def list_appendix(folder: Path) -> tuple[list[Row], list[str]]:
    """Return what the H100 measured, and a line for each comparison that is missing.

    A heading names the chapter. A loop against itself has none, and is no technique.
    """
    rows, missing = [], []
    for heading, cell in find_sections(folder / APPENDIX):
        chapter = re.search(r"\(chapters? (\d\d)", heading)
        for name in find_comparisons(cell) if chapter else ():
            link = write_link("H100:", APPENDIX, heading)
            path = folder / "more" / "h100" / f"{name}.json"
            if not path.exists():
                missing.append(f"`{name}` in {link}")
                continue
            made = kit.load(path)
            for label in made.ratios:
                technique = write_technique(made, label)
                rows.append(Row(chapter[1], technique, made, label, "", link))
    return rows, missing


def find_sections(notebook: Path) -> Iterator[tuple[str, Cell]]:
    """Yield each code cell of a notebook, and the heading that it is under."""
    heading = ""
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            yield heading, Cell(cell["id"], source)
        elif cell["cell_type"] == "markdown":
            text = re.sub(r"^(```|~~~).*?^\1", "", source, flags=re.M | re.S)
            heading = [heading, *re.findall(r"^#{1,6} +(.+?) *#*$", text, re.M)][-1]


def find_comparisons(cell: Cell) -> Iterator[str]:
    """Yield the names of the appendix's comparisons that a cell makes."""
    for node in ast.walk(parse(cell.source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "compare":
            yield ast.literal_eval(node.args[0])


def write_technique(made: Comparison, label: str) -> str:
    """Return what an experiment does, with those knobs that nothing varies."""
    variant = made.trials[made.labels.index(label)]
    fixed = [
        f"{knob}={format_value(value)}"
        for knob, value in variant.knobs.items()
        if made.baseline.knobs.get(knob) == value
    ]
    return ", ".join([variant.title.removesuffix("."), *fixed])


def write_link(where: str, name: str, heading: str) -> str:
    """Return a link to a section of a notebook, with JupyterLab's anchor."""
    plain = re.sub(r"[`*]", "", heading)
    title = re.sub(r" \(chapters?[^)]*\)", "", plain)
    return f"[{where} {title}]({name}#{plain.replace(' ', '-')})"


def write_row(row: Row) -> list[str]:
    """Return the cells of a row; bold is what lost, and what nobody can tell."""
    ratio, base = row.made.ratios[row.label], row.made.baseline
    said = ratio.verdict
    if said in ("more", "less", "same"):
        said += f" {NOUNS.get(row.made.of, row.made.of)}"
    if ratio.verdict in ("slower", "more", "cannot tell") or row.mark == "✗":
        said = f"**{said}**"
    compared = f"`{row.label}` vs. `{row.made.labels[0]}`"
    version = base.machine.torch.partition("+")[0]
    where = [name_machine(base.machine), str(ratio), f"{said} {row.mark}".rstrip()]
    return [row.technique, compared, *where, version, base.started[:10], row.link]


def name_machine(machine: Machine) -> str:
    """Return what a reader calls a machine: its first GPU, or else its processor."""
    if machine.accelerators:
        return machine.accelerators[0].partition(",")[0]
    processor = (machine.processor or machine.name).replace("(R)", "")
    _, _, instructions = machine.name.partition("-cores-")
    parts = [processor.removesuffix(" Processor"), f"{machine.cores} cores"]
    return ", ".join([*parts, instructions.upper()]).removesuffix(", ")


if __name__ == "__main__":
    sys.exit(main())
