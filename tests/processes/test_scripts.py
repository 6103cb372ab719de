"""The scripts of chapters work, and a reader's own script is diagnosed as it is."""

import json
import os
import re
import shutil
import subprocess
import sys

import nbformat
import pytest
from clusters import Cluster, Training
from project import TUTORIALS

import kit

SCRIPTS = TUTORIALS / "scripts"
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"}
TWO_PROCESSES = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
TRAIN = [str(SCRIPTS / "train_ddp.py"), "--images=1024", "--batch-size=64"]


def run(*words, **environment):
    command = [sys.executable, *map(str, words)]
    variables = os.environ | LOOPBACK | {"OMP_NUM_THREADS": "1"} | environment
    return subprocess.run(command, env=variables, capture_output=True, text=True)


def train(folder, *how):
    saving = ["--epochs=2", "--save-every=16", f"--folder={folder}"]
    done = run(*how, *TRAIN, *saving)
    assert done.returncode == 0, done.stderr
    lines = (folder / "journal.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.timeout(240)
def test_a_training_resumes_with_more_ranks_as_if_it_had_not_stopped(tmp_path):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    whole.mkdir()
    expected = train(whole)[16:]
    shutil.copytree(whole / "step-00000016", resumed / "step-00000016")
    steps = train(resumed, *TWO_PROCESSES)
    assert [step["step"] for step in steps] == list(range(16, 32))
    assert {step["ranks"] for step in steps} == {2}
    losses = [step["loss"] for step in expected]
    assert [step["loss"] for step in steps] == pytest.approx(losses, rel=0.02)


#: Runs a script as Python would, from a seed; what follows are its arguments.
SEEDED = "import runpy, sys, torch; torch.manual_seed(0); del sys.argv[0]; "
SEEDED += "runpy.run_path(sys.argv[0], run_name='__main__')"


def test_the_fast_script_of_chapter_00_trains_as_the_slow_one(tmp_path, quick):
    book = nbformat.read(TUTORIALS / "00_start_here.ipynb", as_version=4)
    written = [cell.source for cell in book.cells if cell.id == "script"]
    slow = tmp_path / "slow.py"
    slow.write_text(written[0].partition("\n")[2])
    losses = []
    for script in (slow, TUTORIALS / "take_home" / "00_train_photos.py"):
        done = run("-c", SEEDED, script, kit.data.photos(128), 16, 2)
        assert done.returncode == 0, done.stderr
        by_epoch = re.findall(r"epoch (\d).*loss ([\d.]+)", done.stdout)
        losses.append([float(loss) for loss in dict(by_epoch).values()])
    assert "photos a second" in done.stdout
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert len(losses[1]) == 2


def test_the_sweep_of_chapter_14_trains_by_every_method(tmp_path):
    into = tmp_path / "sweep.json"
    words = ["--rates", "0.1", "--into", into]
    done = run(SCRIPTS / "sweep_sending.py", *words, KIT_QUICK="1", KIT_SMOKE="1")
    assert done.returncode == 0, done.stderr
    assert list_methods(into) == list_methods(TUTORIALS / "sending_sweep.json")


def list_methods(path):
    return {each["method"] for each in json.loads(path.read_text())["runs"]}


@pytest.mark.nightly
def test_the_training_of_chapter_17_survives_faults_and_leaves_no_process():
    cluster = Cluster((SCRIPTS / "two_machines.sh").read_text())
    training = Training(cluster, steps=60)
    training.wait_for(25)
    training.kill_process(1)
    rows = training.finish()
    cluster.close()
    assert not cluster.find(0) + cluster.find(1)
    assert {row["step"] for row in rows} == {*range(60)}
    (fault,) = training.faults
    assert fault["ranks"] == 2
    assert 0 < fault["steps repeated"] == len(rows) - 60
    times = [
        fault[key] for key in ("harmed", "noticed", "started", "imported", "again")
    ]
    assert times == sorted(times)
    assert training.draw().alt
    assert len(training.table()) == 1


#: Every step meets errors of PyTorch, which looks for its place on the C stack.
FAILING = """import torch
print("begun")
weight = torch.ones(9, requires_grad=True)
optimizer = torch.optim.SGD([weight])
step = 0
while True:
    step += 1
    try:
        torch.stack([])
    except RuntimeError:
        pass
    weight.sum().backward()
    optimizer.step()
    if step == 5:
        {}
"""


@pytest.mark.parametrize(
    ("end", "status", "report"),
    [
        ("pass", 0, "backward"),
        ("torch.stack([])", 1, "stack expects"),
        ("raise KeyboardInterrupt", 130, "interrupted"),
    ],
)
def test_a_readers_script_is_diagnosed_as_it_is_and_ends_as_it_would(
    tmp_path, end, status, report
):
    script = tmp_path / "train.py"
    script.write_text(FAILING.format(end))
    done = run("-m", "kit", "diagnose", "--seconds=3", "--script", script)
    assert done.returncode == status, done.stderr
    assert done.stdout.count("begun") == 1
    assert report in done.stdout + done.stderr
