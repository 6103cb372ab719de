"""`make test` runs chapters as a reader does, panels too."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
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
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    return run_cells


def test_a_panel_whose_experiment_fails_makes_its_chapter_red(run):
    done = run(TRAIN, "kit.explore(train, lr=[1, 3])", "kit.explore(train, lr=[1, 2])")
    assert done.returncode != 0
    assert "1 failed, 2 passed" in done.stdout, done.stdout
    assert "train(lr=2) raised ZeroDivisionError" in done.stdout
