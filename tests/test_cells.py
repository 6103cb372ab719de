"""A notebook's cells as Python: the same as IPython makes of them."""

import json
from pathlib import Path

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from kit.recording.cells import make_python

TUTORIALS = Path(__file__).resolve().parents[1] / "tutorials"


def transform(source):
    return TransformerManager().transform_cell(source)


def test_cells_become_what_ipython_makes_of_them():
    chapters = sorted(TUTORIALS.rglob("[0-9][0-9]_*.ipynb"))
    assert chapters
    for path in chapters:
        cells = json.loads(path.read_text("utf-8"))["cells"]
        sources = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
        for source in sources:
            assert make_python(source) == transform(source), path.name


@pytest.mark.parametrize(
    "source",
    [
        "x = 1",
        "x = 1\n",
        "%env A=1\nimport os",
        "%load_ext a\n%b --c {logs}",
        "%matplotlib",
        "if True:\n    %time x\n    !ls -l 'x'\ny = 1",
        "%%px\nprint(1)",
        "%%px",
        "%%writefile -a some.py\nx = 1\n\n\ny = 2\n",
        "files = !ls *.py",
        "y = %time 1",
        "x = 1\nkit.measure?",
        "x = '''\n%env A=1\n!ls\n'''",
        "x = (7\n  % 4)",
        "def f(x:\n    pass",
        "!echo (it's\n%env B=(\nx = 1",
    ],
)
def test_magics_become_calls_as_in_ipython(source):
    assert make_python(source) == transform(source)
