"""`python -m kit machine`, `diagnose`, `record`, `claims`, `cheatsheet`: from a shell.

`diagnose train.py:train batch_size=64` says where a training loop's time goes.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kit import figures, recording
from kit.machine import this_machine
from kit.recording import Manner, Recorder, Recording, RecordingError
from kit.teaching import FAILS, HOLDS, Claim

_START = "<!-- claims: written by `python -m kit claims --write README.md` -->"
_END = "<!-- end of claims -->"
_HOW_TO_DIAGNOSE = """\
examples:
  python -m kit diagnose train.py:train batch_size=64
  python -m kit diagnose package.module:train amp=True --seconds 30 --html report.html

In train.py, the training loop is a function that says `yield` after each step:

  def train(*, batch_size=64):
      model, loader = ...
      for batch in loader:
          ...
          yield len(batch)

Exit status: 0 diagnosed, 1 it could not be measured, 2 it was asked for wrongly."""


class Judged(NamedTuple):
    """One claim of one recording, judged from its raw blocks."""

    chapter: str
    machine: str
    claim: Claim
    is_current: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kit", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("machine", help="say what this machine is, and why")
    record = commands.add_parser(
        "record", help="run chapters at full length; keep outputs and recordings"
    )
    record.add_argument("notebooks", nargs="+", type=Path)
    record.add_argument(
        "--dry-run", action="store_true", help="run and judge, but write nothing"
    )
    record.add_argument(
        "--into",
        type=Path,
        metavar="FOLDER",
        help="recordings and notebooks go there, the chapter's own stay as they are",
    )
    record.add_argument(
        "--smoke",
        action="store_true",
        help="try it, as short as can be; no claim is judged by that",
    )
    record.add_argument(
        "--seconds",
        type=_seconds,
        help="how long it may take in all; keep what was measured by then",
    )
    claims = commands.add_parser(
        "claims", help="judge every chapter's claims by its committed recordings"
    )
    claims.add_argument("--folder", type=Path, default=Path("tutorials"))
    claims.add_argument(
        "--check", action="store_true", help="exit 1 where a claim does not stand"
    )
    claims.add_argument(
        "--write", type=Path, metavar="README", help="put the table into this file"
    )
    cheatsheet = commands.add_parser("cheatsheet", help="write the cheat sheet's table")
    cheatsheet.add_argument("--write", type=Path, metavar="FILE", required=True)
    diagnose = _add_diagnose(commands)
    options, rest = parser.parse_known_args(arguments)
    if options.command == "diagnose":  # knobs may come after options, too
        options.knobs += [word for word in rest if not word.startswith("-")]
        rest = [word for word in rest if word.startswith("-")]
        if not rest:
            return diagnose_script(options)
        hint = "; knobs are written name=value" if "=" in rest[0] else ""
        diagnose.error(f"no such option: {' '.join(rest)}{hint}")
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if options.command == "machine":
        print(this_machine(), flush=True)
        return 0
    try:
        if options.command == "record":
            names = (field.name for field in dataclasses.fields(Manner))
            manner = Manner(**{name: getattr(options, name) for name in names})
            return record_notebooks(options.notebooks, manner)
        if options.command == "cheatsheet":
            return write_cheatsheet(options.write)
        return show_claims(options.folder, check=options.check, readme=options.write)
    except RecordingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _add_diagnose(commands: Any) -> argparse.ArgumentParser:
    """Add the command `diagnose` and return its parser."""
    parser = commands.add_parser(
        "diagnose",
        help="say where the time of a script's training loop goes",
        description="Say where a step's time goes and what removing each cost saves.",
        epilog=_HOW_TO_DIAGNOSE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", help="train.py:train, or package.module:train")
    parser.add_argument("knobs", nargs="*", metavar="name=value", help="its arguments")
    parser.add_argument("--seconds", type=_seconds, help="how long to measure, in all")
    parser.add_argument("--json", action="store_true", help="print JSON, nothing else")
    parser.add_argument("--html", metavar="FILE", help="write the report as a page")
    return parser


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text} is not a positive number")


def diagnose_script(options: argparse.Namespace) -> int:
    """Diagnose an experiment that lives in a script; print and write what was found."""
    from kit import diagnosis
    from kit.clock.experiment import ExperimentError, resolve
    from kit.diagnosis import imports, scripts, shell

    status = 2
    try:
        diverted = shell.divert_stdout() if options.json else contextlib.nullcontext()
        with imports.restore_imports(), diverted:
            knobs = scripts.parse_knobs(options.knobs)
            path = shell.check_page(options.html) if options.html else None
            experiment = scripts.load_experiment(options.target)
            resolve("diagnose()", experiment).bind("diagnose()", knobs)
            status = 1
            if options.seconds:
                found = diagnosis.diagnose(experiment, seconds=options.seconds, **knobs)
            else:
                found = diagnosis.diagnose(experiment, **knobs)
            page = found.to_html() if path else ""
            report = shell.format_json(found.to_dict()) if options.json else repr(found)
        print(report)
        if path:
            shell.write_page(page, path)
            print(path, file=sys.stderr if options.json else sys.stdout)
    except ExperimentError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.__cause__:
            print(f"\n{imports.format_traceback(error.__cause__)}", file=sys.stderr)
        return status
    except KeyboardInterrupt:
        print("interrupted: there is no diagnosis", file=sys.stderr)
        return 130
    return 0


def record_notebooks(notebooks: Sequence[Path], manner: Manner) -> int:
    """Record chapters; say what became of them and of their claims.

    What fails is told, and the others are recorded all the same.
    """

    def judge_all(made: Recording) -> Iterable[str]:
        return (repr(_claim(made, x, judged=not manner.smoke)) for x in made.claims)

    manner.check(notebooks)
    recorder = Recorder(
        manner,
        tell=lambda text: print(text, flush=True),
        warn=lambda text: print(text, file=sys.stderr, flush=True),
        judge=judge_all,
    )
    whole = [recorder.record(path) for path in notebooks]
    return 0 if all(whole) else 1


def judge(folder: Path) -> tuple[list[Judged], list[str]]:
    """Judge the claims of every recording; return them, and what does not stand.

    What counts is the claim as the chapter makes it now. It does not stand where its
    recording contradicts it, where its experiment has changed since, or where no
    recording holds it.
    """
    judged: list[Judged] = []
    problems: list[str] = []
    for notebook in sorted(folder.glob("[0-9][0-9]_*.ipynb")):
        chapter = notebook.stem
        definitions = recording.notebook_definitions(notebook) or {}
        claims, unreadable = _read_claims(notebook)
        problems += [f"{chapter}: {problem}" for problem in unreadable]
        found: set[str] = set()
        for path in sorted((folder / "recordings").glob(f"{chapter}__*.json")):
            made = recording.read(path)
            if wrong := _find_misplaced(path, made):
                problems.append(f"{path.name}: {wrong}")
                continue
            for row in made.claims:
                if row.get("sentence") not in claims:
                    continue
                claim = _claim(made, {**row, **claims[row["sentence"]]})
                found.add(claim.sentence)
                trials = made.comparisons[row["comparison"]].trials
                current = all(
                    recording.is_current(t.source, definitions) for t in trials
                )
                machine = trials[0].machine.name
                judged.append(Judged(chapter, machine, claim, current))
        problems += [
            f"{chapter}: no recording holds the claim {sentence!r}; record it again"
            for sentence in claims
            if sentence not in found
        ]
    for entry in judged:
        where = f"{entry.chapter} on {entry.machine}: {entry.claim.sentence!r}"
        if not entry.is_current:
            problems.append(f"{where}: its experiment changed since; record it again")
        if entry.claim.verdict == FAILS and not _holds_elsewhere(entry, judged):
            problems.append(f"{where}: its own recording contradicts it")
    return judged, problems


def _find_misplaced(path: Path, made: Recording) -> str:
    """Return why a recording may not judge this chapter's claims, or nothing."""
    if any("smoke" in trial.conditions for trial in made.trials):
        return "it is of a short run, which judges nothing; record it without --smoke"
    for trial in made.trials:
        if trial.machine.name != path.stem.split("__")[1]:
            return f"it was made on {trial.machine.name}; its name says otherwise"
    return ""


def _holds_elsewhere(entry: Judged, judged: Iterable[Judged]) -> bool:
    """Whether another machine's recording supports a claim that fails on this one."""
    return any(
        other.chapter == entry.chapter
        and other.claim.sentence == entry.claim.sentence
        and other.claim.verdict == HOLDS
        for other in judged
    )


def _claim(made: Recording, row: dict[str, Any], *, judged: bool = True) -> Claim:
    """Judge a recorded claim anew, from the raw blocks of its comparison."""
    fields = {k: v for k, v in row.items() if k not in ("comparison", "label")}
    try:
        ratio = made.comparisons[row["comparison"]].ratios[row["label"]]
        return Claim(ratio=ratio, judged=judged, **fields)
    except (KeyError, IndexError, TypeError) as error:
        raise RecordingError(f"claims: {row!r:.80} is not whole: {error!r}") from error


def _read_claims(notebook: Path) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Find every `claim("…", …)` in a notebook.

    Return {sentence: the other literal arguments}, and what cannot be read.
    """
    claims: dict[str, dict[str, Any]] = {}
    problems = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        for node in ast.walk(ast.parse(recording.cell_source(cell))):
            if not isinstance(node, ast.Call):
                continue
            if getattr(node.func, "attr", getattr(node.func, "id", "")) != "claim":
                continue
            written = {"expect": "faster", "at_least": None}
            for keyword in node.keywords:
                if isinstance(keyword.value, ast.Constant) and keyword.arg:
                    written[keyword.arg] = keyword.value.value
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant):
                written["sentence"] = first.value
            if "sentence" in written:
                claims[str(written["sentence"])] = written
            else:
                problems.append(
                    f"a claim's sentence is put together ({ast.unparse(node)[:60]}…); "
                    "write it as one string, so that it can be checked"
                )
    return claims, problems


def show_claims(folder: Path, *, check: bool, readme: Path | None) -> int:
    """Print the table claim × machine; check it, or write it into the README."""
    judged, problems = judge(folder)
    machines = sorted({entry.machine for entry in judged})
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for entry in judged:
        cell = f"{entry.claim.verdict} {entry.claim.ratio}"
        key = entry.chapter, entry.claim.sentence
        rows.setdefault(key, {})[entry.machine] = cell
    headers = ["chapter", "claim", *machines]
    table = [[*key, *(row.get(m, "") for m in machines)] for key, row in rows.items()]
    print(figures.text_table(headers, table) if table else "no claims recorded yet")
    block = "\n".join([_START, "", *_markdown(headers, table), "", _END])
    if readme is not None:
        _write_table(readme, block)
    front = folder.parent / "README.md"
    if check and front.is_file() and block not in front.read_text(encoding="utf-8"):
        problems.append(
            "README.md: its table of claims is not the recordings'; "
            "run `python -m kit claims --write README.md`"
        )
    for problem in problems:
        print(f"✗ {problem}", file=sys.stderr)
    return 1 if check and problems else 0


def write_cheatsheet(page: Path) -> int:
    """Write the table symptom, measurement, chapter into its page."""
    from kit.diagnosis import cheatsheet as sheet

    rows = _markdown(sheet.HEADERS, sheet.list_rows(page.parent))
    _write_table(page, "\n".join([sheet.START, "", *rows, "", sheet.END]))
    return 0


def _write_table(page: Path, block: str) -> None:
    """Put a table in place of the one between the same first and last line."""
    start, *_, end = block.splitlines()
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise RecordingError(
            f"{page}: cannot be read ({error.strerror}).\n"
            "Name the file that has the table: --write README.md, for example."
        ) from error
    before, _, rest = text.partition(start)
    _, found, after = rest.partition(end)
    if not found:
        raise RecordingError(f"{page}: has no lines {start} and {end}.")
    page.write_text(before + block + after, encoding="utf-8")


def _markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterable[str]:
    for index, row in enumerate([headers, *rows]):
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
        if index == 0:
            yield "| " + " | ".join("---" for _ in headers) + " |"


if __name__ == "__main__":
    sys.exit(main())
