"""Every chapter runs from top to bottom, quickly, and shows what its code makes."""

import math
import re

import nbformat
import psutil
import pytest
import record
import slices
from helpers import wait_until
from project import APPENDICES, CHAPTERS, PYTHON

#: Cells with this tag show the same on every machine and at any length.
SAME, LEAST = "nbval-check-output", 5
#: Cells with this tag may say something on stderr: the prose says what, and why.
HEARD = "stderr-is-meant"

pytestmark = pytest.mark.timeout(300)


def run(path):
    """Run a chapter; return the claims that it made, and its cells with outputs."""
    made, book, _ = record.run_notebook(path, record.make_environment(True), math.inf)
    return [row["sentence"] for row in made.claims], book


def find_faults(path, claimed, book):
    """Yield what a run of a chapter has left out, or shows and should not."""
    written = slices.find_claims(slices.read_notebook(path))
    yield from (f"not claimed: {each!r}" for each in written if each not in claimed)
    stored, checked = nbformat.read(path, as_version=4), 0
    nbformat.validate(stored)
    for old, cell in zip(stored.cells, book.cells, strict=True):
        if cell.cell_type != "code":
            continue
        if re.search(r"\bexplore\(", cell.source) and "<img" not in str(cell.outputs):
            yield f"the panel of cell {cell.id} did not run"
        heard, tags = read(cell, "stderr"), cell.metadata.get("tags", [])
        if heard and HEARD not in tags:
            yield f"cell {cell.id} says on stderr: {heard}"
        if SAME in tags:
            checked += 1
            shown, kept = read(cell), read(old)
            if shown != kept:
                yield f"cell {cell.id} shows\n{shown}\nand is stored with\n{kept}"
    if checked < LEAST:
        yield f"only {checked} cells have the tag {SAME}"


def read(cell, stream="stdout"):
    """Return what a cell shows as text: a stream, and with stdout its results."""
    shown = ""
    for output in cell.outputs:
        if output.get("name") == stream:
            shown += output.text  # on a busy machine a line may come in two pieces
        if stream == "stdout" and "data" in output:
            shown += f"\n{output.data.get('text/plain', '')}\n"
    return shown.strip()


AT_NIGHT = [pytest.param(path, marks=pytest.mark.nightly) for path in APPENDICES]


@pytest.mark.parametrize("path", [*CHAPTERS, *AT_NIGHT], ids=lambda path: path.stem)
def test_a_chapter_runs_and_shows_what_its_code_makes(path):
    faults = list(find_faults(path, *run(path)))
    assert not faults, "\n\n".join(faults)


TRAIN = """
import kit

def train(*, lr=1):
    if lr == 2:
        raise ZeroDivisionError("never")
    while True:
        yield sum(range(1000))
"""
BOARD = """
import psutil
%load_ext tensorboard
%tensorboard --logdir {logs}
with open("{logs}/servers", "w") as file:
    print(*(child.pid for child in psutil.Process().children()), file=file)
"""
FIVE = [f"2 ** {n}" for n in range(LEAST)]


@pytest.fixture
def chapter(tmp_path):
    """Write a notebook of these cells; those of FIVE have their outputs and a tag."""

    def write_chapter(*sources):
        cells = [nbformat.v4.new_code_cell(source) for source in [*sources, *FIVE]]
        for cell in cells[len(sources) :]:
            data = {"text/plain": str(eval(cell.source))}
            result = nbformat.v4.new_output("execute_result", data, execution_count=1)
            cell.outputs, cell.metadata["tags"] = [result], [SAME]
        book = nbformat.v4.new_notebook(cells=cells, metadata=PYTHON)
        nbformat.write(book, path := tmp_path / "00_chapter.ipynb")
        return path

    return write_chapter


#: Cells that are wrong, and the words that say so.
ILL = {
    "def later():\n    kit.explore(train, lr=[1, 3])": "panel of cell",
    "import sys\nprint('oh', file=sys.stderr)": "on stderr: oh",
    "import warnings\nwarnings.warn('outdated')": "outdated",
    "kit.claim = print\nboth = kit.compare(train, lr=[1, 3])\n"
    "kit.claim('Not made.', both.ratio)": "'Not made.'",
}


def test_every_fault_is_seen(chapter):
    path = chapter(TRAIN, *ILL)
    claimed, book = run(path)
    path.write_text(path.read_text().replace('"16"', '"17"'))
    del book.cells[-2].metadata["tags"]
    faults = "\n".join(find_faults(path, claimed, book))
    for words in [*ILL.values(), "only 4 cells", "16\nand is stored with\n17"]:
        assert words in faults, faults
    pieces = [nbformat.v4.new_output("stream", text=text) for text in ("a ", "b\n")]
    assert read(nbformat.from_dict({"outputs": pieces})) == "a b", "one line, in pieces"


def test_a_panel_whose_experiment_fails_makes_its_chapter_red(chapter):
    path = chapter(TRAIN, "kit.explore(train, lr=[1, 2])")
    with pytest.raises(record.CellExecutionError, match="ZeroDivisionError"):
        run(path)


def test_the_server_of_tensorboard_ends_with_the_chapter(chapter, tmp_path):
    run(chapter(BOARD.replace("{logs}", str(tmp_path))))
    servers = [int(pid) for pid in (tmp_path / "servers").read_text().split()]
    assert servers, "none was started"
    wait_until(lambda: not any(map(psutil.pid_exists, servers)))
