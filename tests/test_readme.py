"""What the front page tells a reader to type works as it stands there."""

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kit.__main__ import main

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
COMMAND = re.search(r"`python -m kit (diagnose [^`]+)`", README)[1]

pytestmark = pytest.mark.usefixtures("smoke")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A reader's own folder, with the script of the front page in it."""
    for name in ("first.py", "train.py"):
        (tmp_path / name).write_text(BLOCKS[0])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_piece_of_python_is_tried_here():
    first, own = BLOCKS
    assert "`first.py`" in README.partition(first)[0].rpartition("\n\n")[0][-200:]
    assert "kit.measure(train)" in first and "kit.diagnose(train)" in own


def test_the_first_script_measures_and_compares(folder):
    done = subprocess.run(
        [sys.executable, "first.py"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    for words in ("train · batch_size=64", "items per second", "batch_size=256"):
        assert words in done.stdout


def test_your_own_loop_is_diagnosed(folder):
    found = runpy.run_path("first.py")
    found["repaired"] = found["train"]
    exec(compile(BLOCKS[1], "README.md", "exec"), found)
    assert found["diagnosis"].call == "train(batch_size=64)"
    assert found["diagnosis"].shares


def test_a_loop_is_diagnosed_from_a_shell(folder, capsys):
    assert main(shlex.split(COMMAND)) == 0
    assert "train(batch_size=64)" in capsys.readouterr().out
    page = shlex.split(COMMAND)[-1]
    assert "train(batch_size=64)" in Path(page).read_text("utf-8")
