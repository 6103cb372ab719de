"""`record --plain`: a chapter is recorded where there is no Jupyter, and no psutil."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import psutil
import pytest
from helpers import forked, wait_until
from IPython.core.inputtransformer2 import TransformerManager

from kit import figures, recording
from kit.__main__ import main
from kit.machine import memory, processes, system
from kit.recording import plain
from kit.recording.cells import make_python
from kit.tools import prepare_tensorboard

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = ROOT / "tutorials"
MISSING = [
    *("IPython", "ipykernel", "ipywidgets", "jupyter_client", "jupyter_core"),
    *("jupyterlab", "nbformat", "nbclient", "traitlets", "comm", "zmq", "tornado"),
    *("psutil", "ipyparallel", "cloudpickle"),
]
HEADING = r"(?m)^(\w+)\.ipynb: cell \d+ of \d+, (\w+)\n"
# What Python runs first where it is found on the path.
REFUSE = f"""
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {MISSING!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refuse())
"""
pytestmark = pytest.mark.timeout(300)  # chapters run, in processes of their own
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs no psutil there")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("plain")


@pytest.fixture(scope="module")
def bare(folder):
    """An environment in which nothing of Jupyter can be imported, nor psutil."""
    (folder / "bare").mkdir()
    (folder / "bare" / "sitecustomize.py").write_text(REFUSE)
    found = os.pathsep.join([str(folder / "bare"), str(ROOT)])
    here = {k: v for k, v in os.environ.items() if not k.startswith("KIT_")}
    return here | {"PYTHONPATH": found, "KIT_CACHE": str(folder / "cache")}


def command(environment, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "kit", *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def write_chapter(folder, name, cells):
    """Write a notebook of these cells, by their ids."""
    folder.mkdir(parents=True, exist_ok=True)
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_markdown_cell("# A question?", id="title")]
    notebook.cells += [
        nbformat.v4.new_code_cell(source, id=cell) for cell, source in cells.items()
    ]
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    path = folder / f"{name}.ipynb"
    nbformat.write(notebook, path)
    return path


@linux_only
def test_the_bare_environment_lacks_all_that_a_notebook_needs(bare):
    code = f"""
import kit
for name in {MISSING}:
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    print(name)
"""
    done = subprocess.run([sys.executable, "-c", code], env=bare, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


# A chapter that does what chapters do

CELLS = {
    "imports": """
%env WIDTH=3
import os
import torch
from torch.utils.data import DataLoader

import kit
from kit.tuning import find_batch_size, tune_loader

torch.set_num_threads(1)
kit.this_machine()
""".strip(),
    "sets": "%%writefile plain_sets.py\n"
    "class Numbers:\n    def __len__(self):\n        return 64\n\n"
    "    def __getitem__(self, index):\n        return float(index)\n",
    "loop": '''
from plain_sets import Numbers


def scale():
    return int(os.environ["WIDTH"])


class Sum:
    # Classes of cells are found, too.
    def __call__(self, batch):
        return float(batch.sum()) * scale()


def train(*, num_workers=0):
    """Add numbers up."""
    while True:
        for batch in DataLoader(Numbers(), 16, num_workers=num_workers):
            yield len(batch), {"sum": Sum()(batch)}
'''.strip(),
    "guess": "my_guess = kit.guess('How much?', answer=2)\nmy_guess",
    "compare": "comparison = kit.compare(train, num_workers=[0, 1], seconds=2)\n"
    "display(comparison, my_guess.check(comparison), comparison.plot());",
    "claim": "kit.claim('Workers make it slower.', comparison, expect='slower')",
    "knobs": "kit.explore(train, num_workers=[0, 1], seconds=0.1)",
    "shell": "files = !ls\n!echo {files}\n%load_ext tensorboard\nlen(files)",
    "silent": "None",
    "handle": "shown = display('first', display_id=True)\nshown.update('second')",
    "text": "text = '''\n%env WIDTH=4\n'''\nos.environ['WIDTH'], text",
    "save": "kit.save(comparison.trials, 'kept.json')\nlen(kit.load('kept.json'))",
    "recorded": "kit.recorded('00_plain/train')",
}


#: More of what the kit does, which leaves no trial behind.
MORE = {
    "imports": CELLS["imports"],
    "loop": CELLS["loop"],
    "spawn": "settings = {'num_workers': 1, 'multiprocessing_context': 'spawn'}\n"
    "next(iter(DataLoader(Numbers(), 4, **settings)))",
    "diagnose": "found = kit.diagnose(train, seconds=2)\nfound.shares.keys()",
    "timeline": "kit.timeline(train, steps=1)",
    "tune": "def make_loader(*, num_workers):\n"
    "    return DataLoader(Numbers(), 16, num_workers=num_workers)\n\n\n"
    "tune_loader(make_loader, step=lambda batch: batch.sum(), seconds=3)",
    "batch": "def fill(*, batch_size=8):\n    while True:\n"
    "        yield len(torch.ones(batch_size, 1000) + 1)\n\n\n"
    "find_batch_size(fill, memory=1e8, most=64, seconds=1)",
}


@pytest.fixture(scope="module")
def chapter(folder):
    write_chapter(folder / "tutorials", "01_more", MORE)
    return write_chapter(folder / "tutorials", "00_plain", CELLS)


@pytest.fixture(scope="module")
def done(bare, chapter, folder):
    """What `record --plain` displayed of each cell, and what it wrote."""
    kept = folder / "plain"
    both = [chapter, chapter.with_stem("01_more")]
    done = command(bare, "record", "--plain", "--smoke", "--into", kept, *both)
    assert done.returncode == 0, done.stdout[-4000:]
    before, *parts = re.split(HEADING, done.stdout)
    assert before.startswith(f"recording {chapter}")
    shown = {}
    for name, cell, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        shown.setdefault(name, {})[cell] = text
    (path,) = kept.glob("00_plain__*.json")
    return shown["00_plain"], shown["01_more"], recording.read(path)


@pytest.fixture(scope="module")
def usual(chapter, folder):
    """The recording that a kernel makes of the same chapter."""
    kept = folder / "usual"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment["KIT_CACHE"] = str(folder / "cache")
    done = command(environment, "record", "--smoke", "--into", kept, chapter)
    assert done.returncode == 0, done.stdout[-4000:]
    (path,) = kept.glob("*.json")
    return recording.read(path)


@linux_only
def test_the_same_is_recorded_as_in_a_kernel(done, usual):
    *_, made = done
    assert made.claims == usual.claims
    assert [row["sentence"] for row in made.claims] == ["Workers make it slower."]
    for name in ("experiment", "title", "knobs", "source"):
        there = [getattr(trial, name) for trial in usual.trials]
        assert [getattr(trial, name) for trial in made.trials] == there
    source = made.trials[0].source
    assert "# Classes of cells are found, too." in source
    assert "def scale(" in source and "def train(" in source
    assert [c.labels for c in made.comparisons] == [c.labels for c in usual.comparisons]


@linux_only
def test_what_cells_display_is_text(done):
    shown, more, made = done
    assert (list(shown), list(more)) == (list(CELLS), list(MORE))
    assert shown["imports"].startswith(made.trials[0].machine.name)
    assert "Your guess: 2" in shown["guess"]
    assert "num_workers=1" in shown["compare"] and "Measured: " in shown["compare"]
    assert re.search(
        r"(?m)\. num_workers=0: [\d,]+.*; num_workers=1: ", shown["compare"]
    )
    assert not shown["compare"].endswith("None\n"), "a semicolon displays nothing"
    assert "tensor([0., 1., 2., 3.]" in more["spawn"]
    assert "Workers make it slower." in shown["claim"]
    assert shown["silent"] == shown["sets"] == shown["loop"] == ""
    assert shown["handle"].splitlines() == ["'first'", "'second'"]
    assert shown["text"] == "('3', '\\n%env WIDTH=4\\n')\n", "no magic in a string"
    assert "'input'" in more["diagnose"] and "Timeline of" in more["timeline"]
    assert "num_workers=" in more["tune"] and "fill: " in more["batch"]
    assert shown["save"] == "2\n" and shown["recorded"].startswith("[]\n")


@linux_only
def test_a_panel_measures_and_shows_a_table(done):
    shown, *_ = done
    lines = shown["knobs"].splitlines()
    lines = lines[lines.index("Panel of train: num_workers") :]
    rows = [row.split()[:2] for row in lines if row[:1].isdigit()]
    assert rows == [["1", "0"], ["2", "1"]]
    assert "<" not in shown["knobs"]


@linux_only
def test_what_needs_a_notebook_is_left_out_and_said_so(done):
    shown, *_ = done
    lines = [line for text in shown.values() for line in text.splitlines()]
    left = [line.partition(": ")[2] for line in lines if line.startswith("Left out")]
    assert left == ["!ls", "!echo {files}", "%load_ext tensorboard"]
    assert shown["shell"].endswith("\n0\n"), "what a command prints is nothing"


@linux_only
def test_the_notebook_stays_as_it_is(done, chapter):
    stored = nbformat.read(chapter, as_version=4)
    assert not any(cell.get("outputs") for cell in stored.cells)
    made = {path.name for path in chapter.parent.iterdir()} - {"__pycache__"}
    assert made == {"00_plain.ipynb", "01_more.ipynb", "plain_sets.py", "kept.json"}


@linux_only
@pytest.mark.nightly
@pytest.mark.parametrize("name", ["00_start_here", "08_number_formats"])
def test_a_real_chapter_is_recorded_so(bare, tmp_path, name):
    """Its claims, and its experiments as they are, are those of the usual recording."""
    notebook = TUTORIALS / f"{name}.ipynb"
    done = command(bare, "record", "--plain", "--smoke", "--into", tmp_path, notebook)
    assert done.returncode == 0, done.stdout[-4000:]
    (path,) = tmp_path.iterdir()
    made = recording.read(path)
    *_, usual = sorted((TUTORIALS / "recordings").glob(f"{name}__*.json"))
    usual = recording.read(usual)
    assert made.claims and made.claims == usual.claims
    definitions = recording.notebook_definitions(notebook)
    for trial in made.trials:
        assert trial.source and recording.is_current(trial.source, definitions)
    assert {t.experiment for t in made.trials} == {t.experiment for t in usual.trials}


# What fails

BROKEN = {
    "01_raises": {
        "fine": "def divide(x):\n    return x / 0",
        "broken": "print('here')\n1 and divide(2)  # so it ends",
        "after": "print('never')",
    },
    "02_leaves": {"leave": "raise SystemExit"},
    "03_syntax": {"words": "%env A=1\nthis is no Python"},
    "04_killed": {"kill": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"},
    "05_ranks": {"start": "import kit\nkit.start_ranks(2)"},
    "06_absent": None,
    "07_good": {"fine": "'it went ' + 'on'"},
}


@pytest.fixture(scope="module")
def failures(bare, folder):
    """What `record --plain` says of each chapter that fails, and of one that does not.

    The good one comes last.
    """
    chapters = [folder / "broken" / f"{name}.ipynb" for name in BROKEN]
    for path, cells in zip(chapters, BROKEN.values(), strict=True):
        if cells:
            write_chapter(path.parent, path.stem, cells)
    done = command(bare, "record", "--plain", "--dry-run", *chapters)
    assert done.returncode == 1
    parts = re.split(r"(?m)^recording .*/(\w+)\.ipynb …\n", done.stdout)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@linux_only
def test_a_cell_that_fails_is_named_with_its_traceback(failures):
    text = failures["01_raises"]
    assert "01_raises.ipynb: cell broken failed.\nTraceback" in text
    assert "[broken]" in text and "1 and divide(2)  # so it ends" in text
    assert "[fine]" in text and "return x / 0" in text
    assert text.rstrip().endswith("ZeroDivisionError: division by zero")
    assert "here\n" in text and "never" not in text
    assert "plain.py" not in text, "only lines of the cells"
    assert "SystemExit" in failures["02_leaves"]
    assert "this is no Python" in failures["03_syntax"]
    assert "SyntaxError" in failures["03_syntax"]


@linux_only
def test_a_process_that_is_ended_is_no_result(failures):
    text = failures["04_killed"]
    assert "ended with status -9" in text and "memory" in text
    assert "cell 1 of 1, kill" in text, "the last that was named"


@linux_only
def test_ranks_say_what_they_lack(failures):
    text = failures["05_ranks"]
    assert "start_ranks(): ipyparallel is not installed" in text
    assert "pip install ipyparallel" in text


@linux_only
def test_the_others_are_run_all_the_same(failures):
    assert list(failures) == list(BROKEN)
    assert "no such file" in failures["06_absent"]
    assert failures["07_good"] == "07_good.ipynb: cell 1 of 1, fine\n'it went on'\n"


def test_a_recording_has_full_length_unless_asked_otherwise(
    tmp_path, capfd, monkeypatch
):
    monkeypatch.setenv("KIT_SMOKE", "1")
    code = "import os\nos.environ.get('KIT_SMOKE', 'full length')"
    path = write_chapter(tmp_path / "tutorials", "00_long", {"look": code})
    assert main(["record", "--plain", "--dry-run", str(path)]) == 0
    assert "'full length'" in capfd.readouterr().out
    kept = str(tmp_path / "kept")
    assert main(["record", "--plain", "--smoke", "--into", kept, str(path)]) == 0
    assert "'1'" in capfd.readouterr().out


@pytest.mark.parametrize("options", [[], ["--plain"]])
def test_a_short_run_is_kept_from_where_readers_look(tmp_path, capsys, options):
    path = write_chapter(tmp_path / "tutorials", "00_short", {"one": "1"})
    kept = path.parent / "recordings"
    assert main(["record", "--smoke", "--into", str(kept), *options, str(path)]) == 1
    assert "--into" in capsys.readouterr().err
    assert not kept.exists()


# Magics


def chapters():
    return sorted(TUTORIALS.rglob("[0-9][0-9]_*.ipynb"))


def transform(source):
    return TransformerManager().transform_cell(source)


def test_cells_become_what_ipython_makes_of_them():
    assert chapters()
    for path in chapters():
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


def test_a_cell_that_writes_a_file_writes_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"get_ipython": plain._Shell}
    plain.run_cell("%%writefile 'a b.py'\nx = 1\n", "one", names)
    plain.run_cell("%%writefile -a 'a b.py'\ny = 2", "two", names)
    assert Path("a b.py").read_text() == "x = 1\ny = 2\n"
    assert capsys.readouterr().out == ""


def test_cells_are_compiled_as_they_are(capsys):
    """Nothing of the file that runs them reaches them: annotations are values there."""
    plain.run_cell("def f(x: int): ...\nf.__annotations__", "some cell", {})
    assert capsys.readouterr().out == "{'x': <class 'int'>}\n"


def test_a_figure_is_told_by_its_description(capsys):
    figure = figures.draw_bars(["a", "b"], [1, 2], title="b is more", unit="s")
    figure = getattr(figure, "figure", figure)
    for shown in (figure, figure.axes[0], figures.show(figure, "My own words.")):
        plain.display(shown)
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == second and "b is more" in first
    assert third == "My own words."


def test_logs_are_prepared_where_tensorboard_cannot_be_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("KIT_STATIC", "text")
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert prepare_tensorboard(tmp_path / "runs") == tmp_path / "runs" / "1"


# What the system tells


@pytest.fixture(params=["as it is", "no lists", "psutil"])
def told(request, monkeypatch):
    """Each way in which the kit learns of processes."""
    if request.param == "no lists":
        monkeypatch.setattr(system, "LISTS_CHILDREN", False)
    if request.param == "psutil":
        monkeypatch.setattr(system, "is_linux", lambda: False)


@linux_only
def test_every_way_tells_the_same_of_processes(told):
    own = psutil.Process()
    child = subprocess.Popen(["sleep", "60"])
    try:
        found = psutil.Process(child.pid)
        assert child.pid in processes.descendants()
        assert set(system.list_children(own.pid)) == {c.pid for c in own.children()}
        wait_until(lambda: system.read_command(child.pid).startswith(b"sleep"))
        wait_until(lambda: system.name_state(child.pid) == "sleeping")
        assert system.read_resident_bytes(child.pid) == found.memory_info().rss > 0
        assert processes.suspend([child.pid])
        wait_until(lambda: system.read_state(child.pid) == "T")
        assert found.status() == "stopped" and processes.alive([child.pid])
        processes.end([child.pid])
        wait_until(lambda: system.read_state(child.pid) == "Z")
        assert not processes.alive([child.pid])
    finally:
        child.kill()
        child.wait()
    assert system.read_state(child.pid) == system.name_state(child.pid) == ""
    assert system.read_command(child.pid) == b""
    assert system.list_children(child.pid) == []
    assert system.read_resident_bytes(child.pid) == 0


@linux_only
def test_memory_is_told_as_psutil_tells_it(told):
    total, available = system.read_memory()
    expected = psutil.virtual_memory()
    assert total == expected.total
    assert available == pytest.approx(expected.available, rel=0.2)
    own = psutil.Process().memory_full_info().uss
    assert memory.private_bytes() == pytest.approx(own, rel=0.05)


@linux_only
def test_a_fork_shares_its_memory_until_it_writes():
    filled = bytearray(os.urandom(32_000_000))
    reader, writer = os.pipe()

    def tell():
        before = memory.private_bytes()
        filled[::4096] = bytes(len(filled[::4096]))
        os.write(writer, str(memory.private_bytes() - before).encode())

    forked(tell).join()
    grown = int(os.read(reader, 100))
    os.close(reader)
    os.close(writer)
    assert grown == pytest.approx(len(filled), rel=0.1)


def test_elsewhere_psutil_is_needed_and_its_absence_is_told(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setitem(sys.modules, "psutil", None)
    for call in (system.list_children, system.read_state, system.read_resident_bytes):
        with pytest.raises(ImportError, match="pip install psutil"):
            call(os.getpid())
