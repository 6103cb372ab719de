"""Train with each method of chapter 14, and write down losses and bytes.

    python tutorials/scripts/sweep_sending.py [notebook] [--into FILE] [--rates …]

It runs the chapter's own cells, so what is recorded is what the chapter shows: every
method at three learning rates, from three seeds, on two ranks. That takes about ten
minutes on two quiet cores. Neither losses nor bytes depend on how busy the machine is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat

TUTORIALS = Path(__file__).resolve().parents[1]
#: The cells that define the methods, in their order.
CELLS = ["imports", "net", "train", "learn", "hooks", "apart", "power-sgd", "top-k"]
CELLS += ["outer", "stale", "methods"]
LEARNING_RATES = (0.05, 0.1, 0.2)
SEEDS = (0, 1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given = TUTORIALS / "14_sending_less.ipynb"
    parser.add_argument("notebook", nargs="?", type=Path, default=given)
    parser.add_argument("--into", type=Path, default=TUTORIALS / "sending_sweep.json")
    parser.add_argument("--rates", nargs="+", type=float, default=LEARNING_RATES)
    asked = parser.parse_args()
    notebook, into = asked.notebook.resolve(), asked.into.resolve()
    os.chdir(TUTORIALS)  # from where ranks import `links`
    sys.path.insert(0, str(TUTORIALS))
    names = run_cells(notebook)
    runs = sweep(names, asked.rates)
    import torch

    batches = names["BATCHES"]
    told = {"torch": torch.__version__, "batches": batches, "images": 16, "ranks": 2}
    lines = ",\n  ".join(json.dumps(run) for run in runs)
    head = json.dumps(told)[:-1]
    into.write_text(f'{head}, "runs": [\n  {lines}\n]}}\n', "utf-8")


def run_cells(notebook: Path) -> dict[str, Any]:
    """Run the cells that define the methods; return their names."""
    sources = {
        cell.id: cell.source
        for cell in nbformat.read(notebook, as_version=4).cells
        if cell.cell_type == "code"
    }
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in CELLS:
        exec(compile(sources[cell], f"<{notebook.stem}, {cell}>", "exec"), names)
    return names


def sweep(names: dict[str, Any], rates: Sequence[float]) -> list[dict[str, Any]]:
    """Train by each method, at each learning rate, from each seed."""
    import kit

    runs = []
    begin = time.perf_counter()
    with kit.start_ranks(2) as ranks:
        for method, train in names["METHODS"].items():
            for lr in rates:
                for seed in SEEDS:
                    (loss, sent), _ = ranks.run(names["learn"], train, lr, seed)
                    run = {"method": method, "rate": lr, "seed": seed}
                    run |= {"loss": round(loss, 4), "megabytes": round(sent, 3)}
                    runs.append(run)
                    print(f"{time.perf_counter() - begin:5.0f} s", run, flush=True)
    return runs


if __name__ == "__main__":
    main()
