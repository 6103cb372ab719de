"""Run a chapter in Jupyter; store static outputs, and what was measured."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit.recording.files import Recording, write


def run_notebook(path: Path, journal: Path, environment: Mapping[str, str]) -> Any:
    """Run all cells in a fresh kernel; write its journal; return the notebook."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    last = nbformat.v4.new_code_cell(
        f"import kit.recording\nkit.recording.write_journal({str(journal)!r})"
    )
    notebook.cells.append(last)
    client = NotebookClient(
        notebook,
        timeout=None,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(path.parent.resolve())}},
    )
    # Panels measure, and show a picture and a table.
    client.execute(env={**environment, "KIT_STATIC": "1"})
    notebook.cells.pop()
    return notebook


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
