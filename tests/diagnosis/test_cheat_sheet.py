"""The cheat sheet has what a diagnosis advises, and each of its lines runs."""

import contextlib
import copy
import re

import pytest
import torch
from experiments import diagnosed, train
from project import TUTORIALS
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import kit
import kit.clock

pytestmark = pytest.mark.usefixtures("quick")

SHEET = (TUTORIALS / "CHEATSHEET.md").read_text("utf-8")
#: The table's rows: what one sees, a line to be sure, the verdict, advice, a chapter.
ROWS = [
    line.strip("| ").split(" | ")
    for line in SHEET.splitlines()
    if line.startswith("| ") and not line.startswith(("| you see", "| ---"))
]
LINES = [re.search("`(.+?)`", row[column])[1] for row in ROWS for column in (1, 3)]
LINES += re.findall(r"^```python\n(.*?)^```", SHEET, re.M | re.S)


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_the_sheet_runs(line, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = diagnosed()  # once for all lines
    monkeypatch.setattr(kit, "diagnose", lambda train, seconds=20: found)
    monkeypatch.setattr(torch, "compile", copy.copy)  # loading a compiler takes 1 s
    step, model = train(), nn.Linear(4, 1)
    model.no_sync = contextlib.nullcontext  # as a model has it that DDP has wrapped
    here = {"kit": kit, "torch": torch, "train": train, "repaired": train}
    here |= {"dataset": TensorDataset(torch.rand(8, 4)), "DataLoader": DataLoader}
    here |= {"batch": torch.rand(4, 4), "batch_size": 4, "device": "cpu"}
    here |= {"model": model, "loss": torch.zeros(()), "diagnosis": found}
    here |= {"handle": model.register_forward_hook(lambda *_: None)}
    here["step"] = (lambda: next(step)) if "step()" in line else 0
    if line.startswith("torch.cuda") and not torch.cuda.is_available():
        assert callable(eval(line.partition("(")[0], here))
        return
    exec(line, here)
