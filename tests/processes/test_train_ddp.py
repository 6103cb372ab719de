"""`tutorials/scripts/train_ddp.py` under torchrun and alone: the same training."""

import os
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tutorials" / "scripts" / "train_ddp.py"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
SMALL = ["--epochs=2", "--images=3000", "--batch-size=32", "--learning-rate=0.05"]
MARK = "KIT_TEST_MARK"
#: Sums of halves are rounded otherwise, and training makes that grow.
TOLERANCE = 0.02
#: Against hanging; the training takes a few seconds.
LIMIT = 150


def run(*arguments):
    """Run Python; return the finished process, when none that it started is left."""
    mark = uuid.uuid4().hex
    more = {MARK: mark, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    if sys.platform != "linux":
        del more["GLOO_SOCKET_IFNAME"]  # other systems name it otherwise
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(
        command, env=os.environ | more, capture_output=True, text=True, timeout=LIMIT
    )
    deadline = time.monotonic() + 10
    while left := list(marked(mark)):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    return done


def marked(mark):
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                yield process
        except psutil.Error:
            pass  # it has ended, or belongs to somebody else


def accuracies(done):
    assert done.returncode == 0, done.stderr
    return [float(x) for x in re.findall(r"accuracy ([\d.]+)", done.stdout)]


@pytest.mark.timeout(2 * LIMIT)
def test_two_processes_reach_the_accuracy_of_one():
    alone = accuracies(run(SCRIPT, *SMALL))
    both = accuracies(run(*TORCHRUN, SCRIPT, *SMALL))
    assert len(alone) == len(both) == 2  # rank 0 tells of each epoch, nobody else
    assert alone[-1] > 0.3  # it has learned: a tenth is right by chance
    assert both == pytest.approx(alone, abs=TOLERANCE)


@pytest.mark.nightly
@pytest.mark.timeout(2 * LIMIT)
def test_a_failure_ends_all_processes_and_is_told_by_the_exit_code():
    done = run(*TORCHRUN, SCRIPT, *SMALL, "--batch-size=1")
    assert done.returncode == 1
    assert "batch_size should be a positive integer" in done.stderr
    assert run(SCRIPT, "--epochs=none").returncode == 2


def test_the_script_says_how_to_start_it():
    told = SCRIPT.read_text("utf-8").partition('"""')[2].partition('"""')[0]
    for words in ("--standalone --nproc-per-node=2", "--nnodes=2"):
        assert words in told
    for option in ("--rdzv-id", "--rdzv-backend=c10d", "--rdzv-endpoint"):
        assert option in told
    assert len(SCRIPT.read_text("utf-8").splitlines()) <= 120
