"""Record chapters: run them at full length, keep outputs and what was measured.

    python tutorials/scripts/record.py tutorials/00_start_here.ipynb

The machine must be quiet: before and after each chapter, the README's loop is compared
with itself. CONTRIBUTING.md says more, under "How to re-record".
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import math
import os
import re
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat
import torch
from claims import judge_claim
from fingerprints import fingerprint_claims, read_cells
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from pages import write_notebook
from recording import Recording, read, write

from kit import compare
from kit.errors import RecordingError
from kit.measuring.verdict import Ratio

#: Kept back from the time there is: to interrupt a cell and write down what was
#: measured, and for the check that the machine is still quiet.
SECONDS_TO_END, SECONDS_TO_CHECK = 15.0, 30.0
#: A cell that runs when the time is over is interrupted so often, so far apart.
INTERRUPTS, SECONDS_TO_STOP = 3, 3.0
#: What asks for quick mode; the second, until the last chapter reads `kit.quick`.
QUICK = ("KIT_QUICK", "KIT_SMOKE")
#: How far from 1 the interval of a loop compared with itself may reach, at one of so
#: many looks.
MOST, LOOKS = 1.03, 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Record chapters, say what became of their claims; return the exit status.

    What fails is told, and the others are recorded all the same.
    """
    options = read_arguments(arguments)
    # All that runs here has full length; only what cells see is told otherwise.
    for name in QUICK:
        os.environ.pop(name, None)
    try:
        check_options(options)
        recorder = Recorder(options)
        whole = [recorder.record(path) for path in options.notebooks]
    except RecordingError as error:
        warn(f"error: {error}")
        return 1
    return 0 if all(whole) else 1


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("notebooks", nargs="+", type=Path, metavar="NOTEBOOK")
    parser.add_argument(
        "--dry-run", action="store_true", help="run and judge, but write nothing"
    )
    parser.add_argument(
        "--into",
        type=Path,
        metavar="FOLDER",
        help="recordings and notebooks go there, the chapter's own stay as they are",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="try it in quick mode; no claim is judged by that",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        help="how long it may take in all; keep what was measured by then",
    )
    options = parser.parse_args(arguments)
    if options.seconds is not None and not 0 < options.seconds < math.inf:
        parser.error(f"--seconds: {options.seconds} is not a positive number")
    return options


def tell(text: str) -> None:
    """Print a line at once: recording takes minutes."""
    print(text, flush=True)


def warn(text: str) -> None:
    """Print what failed."""
    print(text, file=sys.stderr, flush=True)


def check_options(options: argparse.Namespace) -> None:
    """Raise RecordingError where this would put half a result before readers."""
    if options.quick and not (options.into or options.dry_run):
        raise RecordingError(
            "--quick runs everything shortly, which says nothing about speed.\n"
            "Name a folder of its own: --into FOLDER; or add --dry-run."
        )
    if options.seconds and not options.into:
        raise RecordingError(
            "--seconds may cut a chapter, whose notebook replaces none.\n"
            "Name a folder for it: --into FOLDER."
        )
    for path in options.notebooks if options.into else ():
        chapters = path.parent.resolve()
        if options.into.resolve() in (chapters, chapters / "recordings"):
            raise RecordingError(
                f"--into {options.into} is where readers look.\n"
                "Name a folder of its own, or leave --into out."
            )


class Recorder:
    """Records one chapter after another, until the time is over."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.environment = make_environment(options.quick)
        self.deadline = time.monotonic() + (options.seconds or math.inf)
        self.is_quiet = False

    def record(self, path: Path) -> bool:
        """Run a chapter, keep outputs and what was measured; return whether all of it.

        Raises RecordingError where the machine is not quiet before it begins.
        """
        short = self.options.quick or self.options.dry_run
        needs_quiet = path.parent.name != "solutions" and not short
        deadline = self.deadline - SECONDS_TO_END - SECONDS_TO_CHECK * needs_quiet
        if needs_quiet and not self.is_quiet and time.monotonic() < deadline:
            tell(f"  {check_quiet()}")
        if time.monotonic() >= deadline:
            warn(f"{path}: left out, there is no time left.")
            return False
        tell(f"recording {path} …")
        self.is_quiet = False
        try:
            made, notebook, is_cut = run_notebook(path, self.environment, deadline)
            if keeps_trials(path):
                add_fingerprints(made, path)
        except Exception as error:
            warn(f"{path}: {error}")
            return False
        for row in made.claims:
            tell(f"  {judge_claim(made, row, judged=not self.options.quick)!r}")
        if needs_quiet and not self._stays_quiet(path):
            return False
        if is_cut:
            warn(f"{path}: cut, the time is over. What was measured is kept.")
        if not self.options.dry_run:
            self._keep(path, made, notebook, is_cut)
        return not is_cut

    def _stays_quiet(self, path: Path) -> bool:
        """Return whether the machine is quiet still, which serves the next one, too."""
        try:
            tell(f"  {check_quiet()}")
        except RecordingError as error:
            warn(f"{path}: nothing of it is kept, for {error}")
            return False
        self.is_quiet = True
        return True

    def _keep(self, path: Path, made: Recording, notebook: Any, is_cut: bool) -> None:
        """Write the recording, then the notebook; say where."""
        into = self.options.into
        if made.trials and keeps_trials(path):
            folder = into or path.parent / "recordings"
            tell(f"  {replace_recording(path, made, folder)}")
        target = path
        if into:
            into.mkdir(parents=True, exist_ok=True)
            target = into / (f"{path.stem}_cut.ipynb" if is_cut else path.name)
            tell(f"  {target}")
        name_cells(notebook)
        write_notebook(notebook, target)


def name_cells(notebook: Any) -> None:
    """Say "a cell" where a warning names the file that a cell is in the meantime.

    Files of packages go without the folder that this machine has them in.
    """
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "text" in output:
                text = re.sub(r"[\w/]*ipykernel_\d+/\d+\.py", "a cell", output.text)
                output.text = re.sub(r"/\S*/site-packages/", "", text)


def keeps_trials(path: Path) -> bool:
    """Return whether what a notebook measures is kept: only chapters make claims."""
    return path.parent.name not in ("more", "solutions")


def add_fingerprints(made: Recording, path: Path) -> None:
    """Add to each claim the fingerprint of the code that it belongs to."""
    current = fingerprint_claims(path, read_cells(path))
    for row in made.claims:
        row["fingerprint"] = current[row["sentence"]]


def replace_recording(notebook: Path, made: Recording, folder: Path) -> Path:
    """Write what was made into a folder, in place of this machine's earlier."""
    name = f"{notebook.stem}__{made.trials[0].machine.name}"
    target = folder / f"{name}__{datetime.date.today().isoformat()}.json"
    write(made, target)
    for earlier in folder.glob(f"{name}__*.json"):
        if earlier != target:
            earlier.unlink()
    return target


# A chapter in Jupyter


def make_environment(is_quick: bool) -> dict[str, str]:
    """Return the variables that a chapter's kernel sees."""
    # As `jupyter` does: kernels find TensorBoard and what else is beside Python.
    programs = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    quick = dict.fromkeys(QUICK, "1") if is_quick else {}
    # Panels measure, and show a picture and a table.
    return {**os.environ, "PATH": programs, "KIT_STATIC": "1", **quick}


class Client(NotebookClient):
    """Runs a notebook until a deadline; then its last cell, which writes a file."""

    deadline = math.inf
    is_cut = False

    async def async_execute_cell(self, cell: Any, *place: Any, **more: Any) -> Any:
        """Run a cell; interrupt it at the deadline."""
        if cell is self.nb.cells[-1] or cell.cell_type != "code":
            return await super().async_execute_cell(cell, *place, **more)
        left = self.deadline - time.monotonic()
        if self.is_cut or left <= 0:
            self.is_cut = True
            return cell
        running = asyncio.ensure_future(
            super().async_execute_cell(cell, *place, **more)
        )
        await asyncio.wait({running}, timeout=None if left == math.inf else left)
        if not running.done():
            self.is_cut = True
            await self._interrupt(running)
        try:
            return await running
        except CellExecutionError:
            if not self.is_cut:
                raise
            return cell
        except DeadKernelError:
            if not self.is_cut:
                raise
            raise RecordingError(
                "the time was over, and the cell that ran went on when it was "
                "interrupted, so nothing of it is kept.\nGive it more --seconds."
            ) from None

    async def _interrupt(self, running: asyncio.Future[Any]) -> None:
        """Interrupt a cell, again where it goes on; at last end the kernel."""
        for _ in range(INTERRUPTS):
            await self.km.interrupt_kernel()
            await asyncio.wait({running}, timeout=SECONDS_TO_STOP)
            if running.done():
                return
        await self.km.shutdown_kernel(now=True)


def run_notebook(
    path: Path, environment: dict[str, str], deadline: float
) -> tuple[Recording, Any, bool]:
    """Run all cells in a fresh kernel.

    Return what was measured, the notebook, and whether it was cut: at the deadline the
    cell that runs is interrupted and no other begins.
    """
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":  # a cell that is not run shows nothing
            cell.outputs, cell.execution_count = [], None
    beside = f"import sys\nsys.path.append({str(Path(__file__).resolve().parent)!r})\n"
    beside += "import journal\n"
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal.json"
        last = f"journal.write_journal({str(journal)!r})"
        notebook.cells.insert(0, nbformat.v4.new_code_cell(beside))
        notebook.cells.append(nbformat.v4.new_code_cell(last))
        client = Client(
            notebook,
            timeout=None,
            kernel_name="python3",
            record_timing=False,
            resources={"metadata": {"path": str(path.parent.resolve())}},
        )
        client.deadline = deadline
        client.execute(env=environment)
        notebook.cells.pop()
        notebook.cells.pop(0)
        count_from_one(notebook)
        return read(journal), notebook, client.is_cut


def count_from_one(notebook: Any) -> None:
    """Number the executed cells as if nothing had run before the first one."""
    for cell in notebook.cells:
        if cell.get("execution_count"):
            cell.execution_count -= 1
        for output in cell.get("outputs", []):
            if output.get("execution_count"):
                output.execution_count -= 1


# Whether the machine is quiet


def train(*, batch_size: int = 64) -> Iterator[object]:
    """Train a linear layer."""
    net = torch.nn.Linear(256, 10)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    while True:
        inputs, labels = torch.randn(batch_size, 256), torch.randint(10, (batch_size,))
        loss = torch.nn.functional.cross_entropy(net(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield batch_size, {"loss": loss}


def compare_with_itself() -> Ratio:
    """Compare the README's loop with itself, for longer where it is noisy; truth: 1.

    It computes with one thread, as every chapter does: threads that wait for each
    other feel a disturbance that those loops do not.
    """
    torch.set_num_threads(1)
    twice = {"the README's loop": train, "the same loop": train}
    return compare(twice, seconds=20.0).ratio


def check_quiet() -> str:
    """Return a sentence that says how quiet this machine is.

    Raises RecordingError where the interval of what is 1 is not within 3 % of it, at
    each of three looks.
    """
    for _ in range(LOOKS):
        ratio = compare_with_itself()
        words = f"The README's loop compared with itself: {ratio}"
        if 1 / MOST <= ratio.low and ratio.high <= MOST:
            return f"{words}. The machine is quiet."
    raise RecordingError(
        f"this machine is not quiet. {words}; a recording needs an interval between "
        f"{1 / MOST:.2f} and {MOST:.2f}.\n"
        "End other programs, or wait until they end; then record again."
    )


if __name__ == "__main__":
    sys.exit(main())
