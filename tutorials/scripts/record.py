"""Record chapters: run them at full length, keep outputs and what was measured.

    python tutorials/scripts/record.py tutorials/00_start_here.ipynb

The machine must be quiet: before and after each chapter, a loop is compared with
itself. CONTRIBUTING.md says more, under "How to re-record".
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat
import torch
from cells import hash_claims, read_cells, read_notebook
from claims import judge_claim
from nbclient import NotebookClient
from pages import save_notebook
from recording import Recording, read, write

import kit
from kit.errors import RecordingError

SCRIPTS = Path(__file__).resolve().parent
#: How far from 1 the interval of a loop compared with itself may reach, at one of so
#: many looks.
MOST_OFF = 1.03
LOOKS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Record chapters, say what became of their claims; return the exit status.

    Where one fails, the others are recorded all the same.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("notebooks", nargs="+", type=Path, metavar="NOTEBOOK")
    parser.add_argument(
        "--dry-run", action="store_true", help="run and judge, but write nothing"
    )
    parser.add_argument(
        "--into", type=Path, metavar="FOLDER", help="write there, not beside NOTEBOOK"
    )
    parser.add_argument(
        "--quick", action="store_true", help="try it in quick mode, with --dry-run"
    )
    parser.add_argument(
        "--adopt",
        action="store_true",
        help="measure nothing: what the last commit's code measured is this code's",
    )
    options = parser.parse_args(arguments)
    if options.quick and not (options.into or options.dry_run):
        parser.error("--quick says nothing about speed: add --dry-run or --into FOLDER")
    os.environ["KIT_STATIC"] = "1"  # no bars of progress in a log
    status = 0
    for path in options.notebooks:
        try:
            if options.adopt:
                adopt(path)
            else:
                record(path, options)
        except Exception as error:
            print(f"{path}: {error}", file=sys.stderr, flush=True)
            status = 1
    return status


def record(path: Path, options: argparse.Namespace) -> None:
    """Run a notebook, keep its outputs and, of a chapter, what was measured.

    Raises RecordingError where the machine is not quiet, before or after.
    """
    is_chapter = path.resolve().parent.name == "tutorials"
    needs_quiet = is_chapter and not (options.quick or options.dry_run)
    if needs_quiet:
        check_quiet()
    print(f"recording {path} …", flush=True)
    made, notebook = run_notebook(path, is_quick=options.quick)
    codes = hash_claims(read_notebook(path))
    for row in made.claims:
        row["code"] = codes.get(row["sentence"], "")
        print(f"  {judge_claim(made, row, judged=not options.quick)!r}")
    if needs_quiet:
        check_quiet()
    if options.dry_run:
        return
    folder = options.into or path.parent
    if made.trials and is_chapter:
        target = replace_recording(path, made, options.into or folder / "recordings")
        notebook.metadata.setdefault("kit", {})["recording"] = target.name
        print(f"  {target}")
    folder.mkdir(parents=True, exist_ok=True)
    save_notebook(clean(notebook), folder / path.name)


def replace_recording(notebook: Path, made: Recording, folder: Path) -> Path:
    """Write what was made into a folder, in place of this machine's earlier."""
    name = f"{notebook.stem}__{made.trials[0].machine.name}"
    target = folder / f"{name}__{datetime.date.today().isoformat()}.json"
    write(made, target)
    for earlier in folder.glob(f"{name}__*.json"):
        if earlier != target:
            earlier.unlink()
    return target


def adopt(path: Path) -> None:
    """Stamp a chapter's new hashes on recordings that belonged to the last commit.

    Raises RecordingError where no recording did.
    """
    has_changed = False
    command = ["git", "show", f"HEAD:./{path.name}"]
    before = subprocess.check_output(command, cwd=path.parent, text=True)
    old_codes = hash_claims(read_cells(before))
    for sentence, new in hash_claims(read_notebook(path)).items():
        old = old_codes.get(sentence, new)
        for recording in path.parent.glob(f"recordings/{path.stem}__*.json"):
            text = recording.read_text(encoding="utf-8")
            if old != new and f'"{old}"' in text:
                text = text.replace(f'"{old}"', f'"{new}"')
                recording.write_text(text, encoding="utf-8")
                has_changed = True
                print(f"{recording.name}: {sentence!r}: {old} → {new}")
    if not has_changed:
        raise RecordingError(
            "nothing to adopt: no recording belongs to the code of the last commit, "
            "or the code before its claims is the same.\nAdopt before you commit."
        )


# A chapter in Jupyter


def run_notebook(path: Path, *, is_quick: bool) -> tuple[Recording, Any]:
    """Run all cells in a fresh kernel; return what was measured, and the notebook."""
    notebook = nbformat.read(path, as_version=4)
    environment = {**os.environ, "KIT_STATIC": "1"}
    environment.pop("KIT_QUICK", None)
    if is_quick:
        environment["KIT_QUICK"] = "1"
    # As `jupyter` does: kernels find TensorBoard and other programs of this Python.
    folders = [os.environ["PATH"], sysconfig.get_path("scripts")]
    environment["PATH"] = os.pathsep.join(folders)
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder, "journal.json")
        first = (
            f"import sys\nsys.path.append({str(SCRIPTS)!r})\n"
            "import recording as _recording\n_journal = _recording.start_journal()"
        )
        last = f"_recording.write_journal(_journal, {str(journal)!r})"
        notebook.cells.insert(0, nbformat.v4.new_code_cell(first))
        notebook.cells.append(nbformat.v4.new_code_cell(last))
        client = NotebookClient(
            notebook,
            timeout=None,
            kernel_name="python3",
            record_timing=False,
            resources={"metadata": {"path": str(path.parent.resolve())}},
        )
        client.execute(env=environment)
        notebook.cells = notebook.cells[1:-1]
        return read(journal), notebook


def clean(notebook: Any) -> Any:
    """Make the outputs of a notebook those that readers get to see.

    Widgets, progress and pages with scripts go; cells count from one; a warning names
    "a cell" and not the file that a cell is meanwhile, nor a folder of this machine.
    """
    notebook.metadata.pop("widgets", None)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code, 1):
        cell.execution_count = number
        cell.outputs = [output for output in cell.outputs if is_static(output)]
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = number
            if "text" in output:
                text = re.sub(r"[\w/]*ipykernel_\d+/\d+\.py", "a cell", output.text)
                output.text = re.sub(r"/\S*/site-packages/", "", text)
    return notebook


def is_static(output: Any) -> bool:
    """Return whether an output means something in a stored notebook."""
    data = output.get("data", {})
    is_widget = "application/vnd.jupyter.widget-view+json" in data
    is_page = "<script" in "".join(data.get("text/html", ""))
    is_progress = output.get("metadata", {}).get("kit") == "progress"
    return not (is_widget or is_page or is_progress)


# Whether the machine is quiet


def multiply() -> Iterator[int]:
    """Multiply small matrices: where they lie in memory matters little."""
    a, b = torch.rand(256, 256), torch.rand(256, 256)
    product = torch.empty(256, 256)
    while True:
        for _ in range(10):
            torch.mm(a, b, out=product)
        yield 1


def check_quiet() -> None:
    """Compare a loop with itself; say how quiet this machine is.

    Raises RecordingError where the interval of what is 1 is not within 3 % of it, at
    each of three looks. It computes with one thread, as the chapters do.
    """
    torch.set_num_threads(1)
    for _ in range(LOOKS):
        twice = {"a loop": multiply, "the same loop": multiply}
        ratio = kit.compare(twice, seconds=15.0).ratio
        said = f"A loop compared with itself: {ratio}"
        if 1 / MOST_OFF <= ratio.low and ratio.high <= MOST_OFF:
            print(f"  {said}. The machine is quiet.", flush=True)
            return
    raise RecordingError(
        f"this machine is not quiet. {said}; a recording needs an interval between "
        f"{1 / MOST_OFF:.2f} and {MOST_OFF:.2f}.\n"
        "End other programs, or wait until they end; then record again."
    )


if __name__ == "__main__":
    sys.exit(main())
