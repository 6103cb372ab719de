"""A notebook that is wrong, or leaves something behind, turns red; no other does."""

import os
import subprocess
import sys

import nbformat
import pytest
from project import PYTHON, TUTORIALS

#: Cells, their tags, what is stored of them, and what a run says is wrong, if anything.
CELLS = [
    ("1 + 1", ["nbval-check-output"], "2", None),
    ("1 + 2", ["nbval-check-output"], "4", "Cell outputs differ"),
    ("1 / 0", [], "", "ZeroDivisionError"),
    ("import sys\nprint('oh', file=sys.stderr)", [], "", "writes to stderr:\noh"),
    ("print('meant', file=sys.stderr)", ["stderr-is-meant"], "", None),
    ("def explore(x): pass\nexplore(1)", [], "", "the panel shows no picture"),
    ("import kit\nassert kit.quick", [], "", None),
    ("import os\nassert os.environ['KIT_STATIC'] == '1'", [], "", None),
]
#: A process that listens and goes on, and a file in shared memory that nobody uses.
LEFT_OVER = r"""
import pathlib, subprocess, sys
listen = "import socket, time\ns = socket.create_server(('', 0))\ntime.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", listen], start_new_session=True)
pathlib.Path("/dev/shm/kit_left_over").write_bytes(b"x")
pathlib.Path("child").write_text(str(child.pid))
"""
#: It ends a moment after the notebook's kernel.
LATE = """
import os, subprocess, sys
code = f"import os, time\\nwhile os.getppid() == {os.getpid()}: time.sleep(0.05)"
code += "\\ntime.sleep(0.5)"
child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
"""


@pytest.fixture
def run(tmp_path):
    """Run notebooks of these cells as a contributor would; return what was said."""
    text = (TUTORIALS / "conftest.py").read_text("utf-8")
    shorter = text.replace("SECONDS_TO_END = 10.0", "SECONDS_TO_END = 5.0")
    assert shorter != text
    (tmp_path / "conftest.py").write_text(shorter)

    def run_notebooks(**notebooks):
        for name, cells in notebooks.items():
            made = []
            for source, tags, stored, *_ in cells:
                data = {"text/plain": stored}
                result = nbformat.v4.new_output(
                    "execute_result", data, execution_count=1
                )
                outputs = [result] if stored else []
                cell = nbformat.v4.new_code_cell(source, outputs=outputs)
                cell.execution_count, cell.metadata["tags"] = 1, tags
                made.append(cell)
            book = nbformat.v4.new_notebook(cells=made, metadata=PYTHON)
            nbformat.write(book, tmp_path / f"{name}.ipynb")
        command = [sys.executable, "-m", "pytest", "--nbval-lax", "-rA", "-q"]
        command += ["-p", "no:cacheprovider", "--color=no"]
        names = [f"{name}.ipynb" for name in notebooks]
        environment = {**os.environ, "PYTEST_ADDOPTS": ""}
        for name in ("KIT_QUICK", "KIT_STATIC"):
            environment.pop(name, None)
        done = subprocess.run(
            [*command, *names],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        return done.stdout + done.stderr

    return run_notebooks


def test_what_is_wrong_with_a_cell_makes_it_red_and_nothing_else_does(run):
    said = run(cells=CELLS)
    for number, (_, _, _, words) in enumerate(CELLS):
        outcome = "FAILED" if words else "PASSED"
        assert f"{outcome} cells.ipynb::Cell {number}" in said, said
        assert words is None or words in said, said


def test_what_a_notebook_leaves_behind_makes_it_red(run, tmp_path):
    left, late = [(LEFT_OVER, [], "")], [(LATE, [], "")]
    try:
        said = run(left=left, late=late)
    finally:
        pid = int((tmp_path / "child").read_text())
        os.kill(pid, 9)
        os.unlink("/dev/shm/kit_left_over")
    assert "ERROR left.ipynb::Cell 0" in said, said
    assert f"process {pid} on port " in said
    assert "shared memory /dev/shm/kit_left_over" in said
    assert "PASSED late.ipynb::Cell 0" in said
    assert "ERROR late" not in said, "it had time to end"
