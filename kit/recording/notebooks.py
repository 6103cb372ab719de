"""Run a chapter in Jupyter; store static outputs, and what was measured."""

from __future__ import annotations

import asyncio
import datetime
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit.machine import ticks
from kit.recording.files import Recording, RecordingError, write

#: A cell that runs when the time is over is interrupted so often, so far apart.
_INTERRUPTS, _SECONDS_TO_STOP = 3, 3.0


def run_notebook(
    path: Path, journal: Path, environment: Mapping[str, str], seconds: float = math.inf
) -> tuple[Any, bool]:
    """Run all cells in a fresh kernel; write its journal.

    Return the notebook, and whether it was cut: after `seconds` the cell that runs is
    interrupted and no other begins, but the journal is written.
    """
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":  # a cell that is not run shows nothing
            cell.outputs, cell.execution_count = [], None
    last = nbformat.v4.new_code_cell(
        f"import kit.recording\nkit.recording.write_journal({str(journal)!r})"
    )
    notebook.cells.append(last)
    client = _make_client(ticks.CLOCK.wall() + seconds, last)(
        notebook,
        timeout=None,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(path.parent.resolve())}},
    )
    # Panels measure, and show a picture and a table.
    client.execute(env={**environment, "KIT_STATIC": "1"})
    notebook.cells.pop()
    return notebook, client.is_cut


def _make_client(deadline: float, last: Any) -> Any:
    """Return a class of clients that run no cell beyond a time, but for the last."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, DeadKernelError

    class Client(NotebookClient):
        is_cut = False

        async def async_execute_cell(self, cell: Any, *place: Any, **more: Any) -> Any:
            if cell is last or cell.cell_type != "code":
                return await super().async_execute_cell(cell, *place, **more)
            if self.is_cut or ticks.CLOCK.wall() >= deadline:
                self.is_cut = True
                return cell
            running = asyncio.ensure_future(
                super().async_execute_cell(cell, *place, **more)
            )
            left = None if deadline == math.inf else deadline - ticks.CLOCK.wall()
            await asyncio.wait({running}, timeout=left)
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

        async def _interrupt(self, running: Any) -> None:
            """Interrupt a cell, again where it goes on; at last end the kernel."""
            for _ in range(_INTERRUPTS):
                await self.km.interrupt_kernel()
                await asyncio.wait({running}, timeout=_SECONDS_TO_STOP)
                if running.done():
                    return
            await self.km.shutdown_kernel(now=True)

    return Client


def write_notebook(notebook: Any, path: Path) -> None:
    """Store the notebook with static outputs only."""
    import nbformat

    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if _is_static(o)]
            for output in cell.outputs:
                output.get("data", {}).pop(
                    "application/vnd.jupyter.widget-view+json", 0
                )
    text = nbformat.writes(notebook)
    part = path.with_suffix(".part")
    part.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
    part.replace(path)


def _is_static(output: Any) -> bool:
    """Return whether an output means something in a stored notebook.

    Progress does not, and neither does a page that a script fetches from a server.
    """
    page = "".join(output.get("data", {}).get("text/html", ""))
    return output.get("metadata", {}).get("kit") != "progress" and "<script" not in page


def replace_recording(notebook: Path, made: Recording, folder: Path) -> Path:
    """Write what was made into a folder, in place of this machine's earlier."""
    machine = made.trials[0].machine.name
    today = datetime.date.today().isoformat()
    target = folder / f"{notebook.stem}__{machine}__{today}.json"
    write(made, target)
    for earlier in folder.glob(f"{notebook.stem}__{machine}__*.json"):
        if earlier != target:
            earlier.unlink()
    return target
