"""`record_gpu.sh`: chapters recorded where there is neither Jupyter nor a network."""

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import nbformat
import pytest

from kit import recording

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tutorials" / "scripts" / "record_gpu.sh"
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="is for Linux"),
    pytest.mark.timeout(300),
]
# Stands in for Python: it notes what it is asked for, and what is set.
STUB = """#!/usr/bin/env bash
set -u
printf '%s|' "${@//$'\\n'/ }" >>"$NOTES"
echo "${JUPYTER_PATH:-}|${PYTHONPATH:-}" >>"$NOTES"
case "$*" in
  *find_spec*) exit "${LACKS:-0}" ;;
  *this_machine*) echo some-gpu ;;
  *"pip install"*) exit "${PIP:-0}" ;;
  *scripts/record.py*)
    while [[ $1 != --into ]]; do shift; done
    echo one >"$2/00_some.ipynb"
    exit "${KIT:-0}" ;;
  *lenet_race.py*)
    while [[ $1 != --json ]]; do shift; done
    echo two >"$2"
    exit "${RACE:-0}" ;;
esac
"""


@pytest.fixture
def wheels(tmp_path):
    (tmp_path / "wheels").mkdir()
    return tmp_path / "wheels"


def run(folder, *arguments, **environment):
    """Run the script in a folder; return what came of it, with all that it said."""
    return subprocess.run(
        [SCRIPT, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_stub(folder, *arguments, **environment):
    """Run it with a Python that is none; return what came of it, and its notes."""
    stub, notes = folder / "stub", folder / "notes"
    stub.write_text(STUB)
    stub.chmod(0o755)
    notes.touch()
    environment |= {"PYTHON": str(stub), "NOTES": str(notes), "PYTHONPATH": "more"}
    done = run(folder, *arguments, **environment)
    return done, [line.split("|") for line in notes.read_text().splitlines()]


def test_it_installs_then_records_then_races(tmp_path, wheels):
    arguments = ["--race", "10", "--seconds", "300", wheels, "out", "00", "04_loading"]
    done, notes = run_stub(tmp_path, *arguments)
    assert done.returncode == 0, done.stdout
    _, install, *_, record, name, race = notes
    target = install[install.index("--target") + 1]
    assert {"--no-index", "ipykernel", "nbclient", str(wheels)} <= {*install}
    assert record[-2] == f"{target}/share/jupyter"
    assert record[-1] == f"{target}:{ROOT}:more"
    script = str(SCRIPT.with_name("record.py"))
    assert record[:3] == [script, "--into", str(tmp_path / "out")]
    assert 200 < int(record[record.index("--seconds") + 1]) <= 300
    names = [Path(word).name for word in record if word.endswith(".ipynb")]
    assert names == ["00_start_here.ipynb", "04_loading.ipynb"]
    assert "this_machine" in name[1]
    assert race[race.index("--seeds") + 1] == "10"
    there = {path.name for path in (tmp_path / "out").iterdir()}
    (made,) = (name for name in there if re.fullmatch(r"lenet.*some-gpu__.*json", name))
    assert there == {"log.txt", "00_some.ipynb", "lenet_race.txt", made}
    assert "tutorials/recordings/" in done.stdout
    assert (tmp_path / "out" / "log.txt").read_text() == done.stdout
    assert not Path(target).parent.exists(), "nothing is left behind"


def test_a_bundle_is_two_files(tmp_path, wheels):
    done, notes = run_stub(tmp_path, "--bundle", "--smoke", wheels, "out", "00")
    assert done.returncode == 0, done.stdout
    assert "--smoke" in notes[-1]
    there = {path.name for path in (tmp_path / "out").iterdir()}
    assert there == {"log.txt", "recordings.tar.gz"}
    with tarfile.open(tmp_path / "out" / "recordings.tar.gz") as bundle:
        assert bundle.getnames() == ["./00_some.ipynb"]


@pytest.mark.parametrize("failing", ["PIP", "KIT", "RACE"])
def test_what_is_not_there_is_told_and_the_rest_is_kept(tmp_path, wheels, failing):
    arguments = ["--bundle", "--race", "3", wheels, "out", "00"]
    done, _ = run_stub(tmp_path, *arguments, **{failing: "1"})
    assert done.returncode == 1
    with_bundle = (tmp_path / "out" / "recordings.tar.gz").exists()
    assert with_bundle == ("Not all" in done.stdout) == (failing != "PIP")


def test_without_time_nothing_begins(tmp_path):
    """The first second may be over before, or not."""
    arguments = ["--seconds", "1", "--race", "3", "-", "out"]
    done, notes = run_stub(tmp_path, *arguments)
    assert done.returncode == 1 and "Not all" in done.stdout
    assert not [words for words in notes if "--json" in words]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "WHEELS OUT CHAPTER"),
        (["-", "out"], "name a chapter"),
        (["nowhere", "out", "00"], "nowhere"),
        (["-", "out", "77"], "77"),
        (["--fast", "-", "out", "00"], "--fast"),
        (["--seconds", "soon", "-", "out", "00"], "soon"),
        (["--race"], "--race"),
        (["-", ".", "00"], "is not empty"),
    ],
)
def test_what_is_asked_wrongly_is_refused(tmp_path, arguments, named):
    done, notes = run_stub(tmp_path, *arguments)
    assert done.returncode == 2
    assert named in done.stdout.splitlines()[-1]
    assert not [words for words in notes if "kit" in words or "pip" in words]


def test_a_python_that_lacks_pytorch_is_refused(tmp_path):
    done, _ = run_stub(tmp_path, "-", "out", "00", LACKS="1")
    assert done.returncode == 2 and "PYTHON=" in done.stdout


def test_it_is_real(tmp_path):
    """A short chapter, in a folder of its own, with the environment of this test."""
    notebook = nbformat.v4.new_notebook()
    source = "import kit\n\n\ndef count():\n    while True:\n        yield 1\n\n\n"
    cells = [
        f"{source}kit.measure(count)",
        "import shutil\nshutil.which('tensorboard')",
    ]
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, tmp_path / "00_short.ipynb")
    before = (tmp_path / "00_short.ipynb").read_bytes()
    done = run(tmp_path, "--smoke", "-", "out", "00_short.ipynb", PYTHON=sys.executable)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "00_short.ipynb").read_bytes() == before
    (made,) = (tmp_path / "out").glob("00_short__*.json")
    assert [trial.experiment for trial in recording.read(made).trials] == ["count"]
    cells = json.loads((tmp_path / "out" / "00_short.ipynb").read_text())["cells"]
    assert "items per second" in "".join(cells[0]["outputs"][0]["data"]["text/plain"])
    assert "bin/tensorboard" in str(cells[1]["outputs"])
