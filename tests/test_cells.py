"""A notebook's cells as Python: the same as IPython makes of them."""

import ast
import json
from pathlib import Path

import pytest

from kit.recording import cell_source

TUTORIALS = Path(__file__).resolve().parents[1] / "tutorials"


def test_every_cell_of_a_chapter_is_python():
    chapters = sorted(TUTORIALS.rglob("[0-9][0-9]_*.ipynb"))
    assert chapters
    for path in chapters:
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                ast.parse(cell_source(cell), path.name)


@pytest.mark.parametrize(
    ("source", "python"),
    [
        ("x = 1", "x = 1\n"),
        (["x = 1\n", "y = 2"], "x = 1\ny = 2\n"),
        (
            "%env A=1\nimport os",
            "get_ipython().run_line_magic('env', 'A=1')\nimport os\n",
        ),
        ("if True:\n    !ls -l", "if True:\n    get_ipython().system('ls -l')\n"),
        ("%%px\nprint(1)", "get_ipython().run_cell_magic('px', '', 'print(1)\\n')\n"),
        ("files = !ls *.py", "files = get_ipython().getoutput('ls *.py')\n"),
        ("kit.measure?", "get_ipython().run_line_magic('pinfo', 'kit.measure')\n"),
        ("x = '''\n%env A=1\n!ls\n'''", "x = '''\n%env A=1\n!ls\n'''\n"),
        ("def f(x:\n    pass", "def f(x:\n    pass\n"),
        ("%%writefile some.py\nx = 1\n!y", "x = 1\n!y"),
        ("%%writefile -a some.py\nx = 1\n", "x = 1\n"),
        ("%%writefile some.txt\nno Python", ""),
    ],
)
def test_magics_become_calls_and_files_their_content(source, python):
    assert cell_source({"source": source}) == python
