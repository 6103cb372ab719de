"""What readers may rely on: names, a light import, examples, the first page."""

import doctest
import importlib
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from project import ROOT

from kit.__main__ import main

LOOK = """
import sys
before = {*sys.modules}
import kit
print(*{*sys.modules} - before)
for name in kit.__all__:
    getattr(kit, name)
print(*sys.modules)
"""
HEAVY = {"torch", "matplotlib", "pandas", "ipywidgets", "torchvision"}


def test_importing_the_kit_loads_nothing_heavy_and_has_all_names():
    command = [sys.executable, "-c", LOOK]
    said = subprocess.check_output(command, cwd=ROOT, text=True)
    alone, offered = map(str.split, said.splitlines())
    assert "kit" in alone and not {*alone} & (HEAVY | {"numpy", "scipy"})
    assert "kit.panel" in offered and not {*offered} & HEAVY


def modules_with_examples():
    for path in sorted((ROOT / "kit").rglob("*.py")):
        if ">>>" in path.read_text("utf-8"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(part for part in parts if part != "__init__")
            # Their examples start ranks, draw much, or load for long.
            is_long = name in ("kit.data", "kit.ranks.ranks", "kit.tuning")
            yield pytest.param(name, marks=[pytest.mark.nightly] * is_long)


@pytest.mark.parametrize("name", [*modules_with_examples()])
def test_examples_in_docstrings_are_true(name, quick, monkeypatch):
    if name == "kit.teaching":  # which gives no verdicts in a short run
        monkeypatch.delenv("KIT_QUICK")
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert result.attempted and not result.failed


def test_the_scripts_and_the_command_of_the_front_page_work(quick, capsys):
    readme = (ROOT / "README.md").read_text("utf-8")
    first, diagnosing = re.findall(r"^```python\n(.*?)^```", readme, re.M | re.S)
    Path("first.py").write_text(first)
    Path("train.py").write_text(first)
    found = runpy.run_path("first.py", run_name="__main__")
    assert "batch_size=256" in capsys.readouterr().out
    found["faster"] = found["train"]
    exec(compile(diagnosing, "README.md", "exec"), found)
    assert found["diagnosis"].step_seconds > 0
    words = shlex.split(re.search(r"-m kit (diagnose first[^`]+)`", readme)[1])
    assert main(words) == 0
    assert "train(batch_size=64)" in Path(words[-1]).read_text("utf-8")
