"""Scripts that chapters send readers to: torchrun's training, recording on a GPU."""

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

SCRIPTS = Path(__file__).resolve().parents[2] / "tutorials" / "scripts"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
SMALL = ["--epochs=2", "--images=3000", "--batch-size=32", "--learning-rate=0.05"]
#: Sums of halves are rounded otherwise, and training makes that grow.
TOLERANCE = 0.02
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="is for Linux")


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_two_processes_of_torchrun_train_as_well_as_one():
    loopback = {"GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"}
    environment, found = os.environ | {"OMP_NUM_THREADS": "1"} | loopback, []
    for how in ([], TORCHRUN):
        command = [sys.executable, *how, str(SCRIPTS / "train_ddp.py"), *SMALL]
        told = subprocess.check_output(command, env=environment, text=True)
        accuracies = re.findall(r"accuracy ([\d.]+)", told)
        assert len(accuracies) == 2, "rank 0 tells of each epoch, and nobody else"
        found.append(float(accuracies[-1]))
    assert found[0] > 0.3, "it has learned: a tenth is right by chance"
    assert found[1] == pytest.approx(found[0], abs=TOLERANCE)


# Stands in for Python: it notes what it is asked for, and what is set.
STUB = """#!/usr/bin/env bash
set -u
printf '%s|' "${@//$'\\n'/ }" >>"$NOTES"
echo "${JUPYTER_PATH:-}|${PYTHONPATH:-}" >>"$NOTES"
case "$*" in
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


def record(folder, *arguments, **environment):
    """Record in a folder; return the exit status, and all that is said."""
    (folder / "wheels").mkdir()
    (folder / "stub").write_text(STUB)
    (folder / "stub").chmod(0o755)
    more = {"PYTHON": folder / "stub", "NOTES": folder / "notes", "TMPDIR": folder}
    done = subprocess.run(
        [SCRIPTS / "record_gpu.sh", *arguments],
        cwd=folder,
        env=os.environ | {k: str(v) for k, v in more.items()} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


@on_linux
@pytest.mark.parametrize("failing", ["nothing", "PIP", "KIT", "RACE"])
def test_a_recording_brings_home_what_there_is_and_says_if_that_is_not_all(
    tmp_path, failing
):
    options = ["--bundle", "--race", "10", "--seconds", "300"]
    asked = [*options, "wheels", "out", "00", "04_loading"]
    status, said = record(tmp_path, *asked, **{failing: "1", "PYTHONPATH": "more"})
    assert status == (failing != "nothing")
    assert ("Not all" in said) == (failing in ("KIT", "RACE"))
    assert (tmp_path / "out" / "log.txt").read_text() == said
    notes = [line.split("|") for line in (tmp_path / "notes").read_text().splitlines()]
    install = next(words for words in notes if "install" in words)
    target = Path(install[install.index("--target") + 1])
    assert {"--no-index", "ipykernel", "nbclient", "wheels"} <= {*install}
    assert not target.parent.exists(), "nothing is left behind"
    if failing == "PIP":
        return
    words = next(words for words in notes if "--into" in words)
    assert words[-1] == f"{target}:{SCRIPTS.parents[1]}:more"
    assert 200 < int(words[words.index("--seconds") + 1]) <= 300
    chapters = [Path(word).name for word in words if word.endswith(".ipynb")]
    assert chapters == ["00_start_here.ipynb", "04_loading.ipynb"]
    with tarfile.open(tmp_path / "out" / "recordings.tar.gz") as bundle:
        names = " ".join(bundle.getnames())
    assert "00_some.ipynb" in names and re.search(r"lenet_race__some-gpu__\S+json", names)


@on_linux
@pytest.mark.timeout(300)
def test_a_chapter_is_recorded_with_a_real_python(tmp_path):
    code = "import kit\n\ndef count():\n    while True:\n        yield 1\n\n"
    cell = nbformat.v4.new_code_cell(f"{code}kit.measure(count)")
    notebook = nbformat.v4.new_notebook(cells=[cell])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, tmp_path / "00_short.ipynb")
    asked = ["--smoke", "-", "out", "00_short.ipynb"]
    status, said = record(tmp_path, *asked, PYTHON=sys.executable)
    assert status == 0, said
    (made,) = (tmp_path / "out").glob("00_short__*.json")
    assert [trial.experiment for trial in recording.read(made).trials] == ["count"]
    cells = json.loads((tmp_path / "out" / "00_short.ipynb").read_text())["cells"]
    assert "items per second" in str(cells[0]["outputs"])
    status, said = record(tmp_path / "wheels", "-", "out")
    assert status == 2 and "name a chapter" in said
