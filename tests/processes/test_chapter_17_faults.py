"""Each fault of chapter 17 can be caused, ends in time, and leaves no process."""

import re
import time
from resource import RLIMIT_FSIZE, prlimit

import pytest
from clusters import Buttons, Cluster, Training, find_gaps
from project import TUTORIALS

SCRIPT = f"{TUTORIALS}/scripts/train_ddp.py --folder={{}} --images=8192 --epochs=60"
SCRIPT += " --batch-size=64 --save-every=20 --timeout=10"
FULL = RLIMIT_FSIZE, (65536, 65536)  # no file may be larger: a full disk
FAULTS = {  # what is done, and for how many seconds we watch
    "a process is killed": (lambda t: press(t, "Kill a process"), 40),
    "a process is stopped": (lambda t: t.cluster.find_worker(1).suspend(), 80),
    "the disk is full": (lambda t: prlimit(t.cluster.find_worker(0).pid, *FULL), 40),
    "the second machine is lost": (lambda t: press(t, "Lose machine two"), 60),
    "the machine with the store is lost": (lambda t: t.cluster.kill(0), 40),
    "another job has the port": (lambda t: t.begin(0).wait(60), 5),
}


def press(training, word):
    """Press a button of chapter 17."""
    buttons = Buttons(training.cluster).children[0].children
    next(b for b in buttons if b.description == word).click()


@pytest.mark.nightly
@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_of_chapter_17_happens_and_leaves_no_process(name):
    cluster = Cluster((TUTORIALS / "scripts" / "two_machines.sh").read_text())
    training, (strike, limit) = Training(cluster, 0, script=SCRIPT), FAULTS[name]
    training.wait_for(70)
    begun, breaks = time.time(), not name.endswith(("store is lost", "has the port"))
    strike(training)
    while not (gaps := find_gaps(training.read())) and time.time() < begun + limit:
        time.sleep(0.2)
    said = "".join(log.read_text() for log in sorted(training.folder.glob("*.log")))
    cluster.close()
    assert bool(gaps) == breaks, said[-2000:]
    assert name != "another job has the port" or "EADDRINUSE" in said
    assert not cluster.find(0) + cluster.find(1), "something is left"
    errors = re.findall(r"\b(\w*Error: )(?:\[\S+\] )?(\w[^\[\n]{4,40})", said)
    seconds, lost, ranks = gaps[0] if gaps else (limit, "all", 0)
    print(name, round(seconds, 1), lost, ranks, "".join(*errors[:1] or "-"), sep=" · ")
