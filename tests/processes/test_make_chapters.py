"""`make test` runs chapters as a reader does, panels too."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import nbformat
import psutil
import pytest
from helpers import wait_until

ROOT = Path(__file__).resolve().parents[2]
BOARD = """
import psutil
%load_ext tensorboard
%tensorboard --logdir {logs}
with open("{logs}/servers", "w") as file:
    print(*(child.pid for child in psutil.Process().children()), file=file)
"""
TRAIN = """
import kit

def train(*, lr=1):
    if lr == 2:
        raise ZeroDivisionError("never")
    while True:
        yield sum(range(1000))
"""


@pytest.fixture
def run(tmp_path):
    """Run a notebook of these cells as `make test` runs a chapter."""

    def run_cells(*sources):
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        book = nbformat.v4.new_notebook(cells=cells)
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        book.metadata["kernelspec"] = kernel
        path = tmp_path / "chapter.ipynb"
        nbformat.write(book, path)
        command = ["make", "test-chapters", f"CHAPTERS={path}", f"VENV={sys.prefix}"]
        path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
        env = {**os.environ, "PATH": path}
        return subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True
        )

    return run_cells


def test_a_panel_whose_experiment_fails_makes_its_chapter_red(run):
    done = run(TRAIN, "kit.explore(train, lr=[1, 3])", "kit.explore(train, lr=[1, 2])")
    assert done.returncode != 0
    assert "1 failed, 2 passed" in done.stdout, done.stdout
    assert "train(lr=2) raised ZeroDivisionError" in done.stdout


@pytest.mark.timeout(180)
def test_the_server_of_tensorboard_ends_with_the_chapter(run, tmp_path):
    done = run(BOARD.replace("{logs}", str(tmp_path)))
    assert done.returncode == 0, done.stdout
    servers = [int(pid) for pid in (tmp_path / "servers").read_text().split()]
    assert servers, "none was started"
    wait_until(lambda: not any(map(psutil.pid_exists, servers)))
