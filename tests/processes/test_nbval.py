"""A notebook that is wrong, or leaves something behind, turns red; no other does."""

import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import nbformat
import psutil
import pytest
from project import PYTHON, TUTORIALS


@dataclass
class Case:
    """A cell, its stored outputs, and what a run says is wrong, if anything."""

    source: str
    fault: str = ""
    tags: list[str] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)


def shown(text):
    """Return a stored output of a first cell."""
    data = {"text/plain": text}
    return nbformat.v4.new_output("execute_result", data, execution_count=1)


CASES = [
    Case("1 + 1", "", ["nbval-check-output"], [shown("2")]),
    Case("1 + 2", "Cell outputs differ", ["nbval-check-output"], [shown("4")]),
    Case("1 / 0", "ZeroDivisionError"),
    Case("import sys\nprint('oh', file=sys.stderr)", "writes to stderr:\noh"),
    Case("print('meant', file=sys.stderr)", "", ["stderr-is-meant"]),
    Case("def explore(x): pass\nexplore(1)", "the panel shows no picture"),
    Case("import kit\nassert kit.quick"),
]
#: A process that listens and goes on.
LEFT_OVER = """
import pathlib, subprocess, sys
listen = "import socket, time; s = socket.create_server(('', 0)); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", listen], start_new_session=True)
pathlib.Path("child").write_text(str(child.pid))
"""


@pytest.fixture
def run(tmp_path):
    """Run cells as a contributor would run a chapter; return what is said of them."""
    text = (TUTORIALS / "conftest.py").read_text("utf-8")
    (tmp_path / "conftest.py").write_text(f"{text}\nSECONDS_TO_END = 3.0\n")

    def run_notebook(*cases):
        notebook = nbformat.v4.new_notebook(metadata=PYTHON)
        for case in cases:
            cell = nbformat.v4.new_code_cell(case.source, execution_count=1)
            cell.metadata["tags"] = case.tags
            cell.outputs = list(case.outputs)
            notebook.cells.append(cell)
        nbformat.write(notebook, tmp_path / "cells.ipynb")
        command = [sys.executable, "-m", "pytest", "--nbval-lax", "-rA", "cells.ipynb"]
        environment = os.environ | {"PYTEST_ADDOPTS": "", "KIT_QUICK": "0"}
        where = {"cwd": tmp_path, "env": environment}
        return subprocess.run(command, capture_output=True, text=True, **where).stdout

    return run_notebook


def test_a_cell_that_is_wrong_makes_its_notebook_red_and_no_other_does(run):
    report = run(*CASES)
    for number, case in enumerate(CASES):
        outcome = "FAILED" if case.fault else "PASSED"
        assert f"{outcome} cells.ipynb::Cell {number}" in report, report
        assert case.fault in report


def test_what_a_notebook_leaves_behind_makes_it_red(run, tmp_path):
    try:
        report = run(Case(LEFT_OVER))
        child = int((tmp_path / "child").read_text())
        assert "ERROR cells.ipynb::Cell 0" in report, report
        assert f"process {child} on port " in report
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(child).kill()
