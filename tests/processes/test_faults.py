"""Chapter 17's faults: each is caused, ends in time, leaves nothing, prints its row."""

import re
import resource
import time

import pytest
from clusters import Cluster, Training, find_gaps
from project import TUTORIALS

SCRIPT = f"{TUTORIALS}/scripts/train_ddp.py --folder={{}} --images=8192 --epochs=60"
SCRIPT += " --batch-size=64 --save-every=20 --timeout=10"
FULL = resource.RLIMIT_FSIZE, (65536, 65536)  # no file may be larger: a full disk
FAULTS = {  # what is done, and for how many seconds we watch
    "a process is killed": (lambda c: c.find_worker(1).kill(), 40),
    "a process is stopped": (lambda c: c.find_worker(1).suspend(), 80),
    "the disk is full": (lambda c: resource.prlimit(c.find_worker(0).pid, *FULL), 40),
    "the second machine is lost": (lambda c: c.kill(1), 60),
    "the machine with the store is lost": (lambda c: c.kill(0), 40),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_costs_what_the_chapter_says(name):
    cluster = Cluster((TUTORIALS / "scripts" / "two_machines.sh").read_text())
    training, (strike, limit) = Training(cluster, 0, script=SCRIPT), FAULTS[name]
    training.wait_for(70)
    begun, goes_on = time.time(), not name.endswith("store is lost")
    strike(cluster)
    while not (gaps := find_gaps(training.read())) and time.time() < begun + limit:
        time.sleep(0.2)
    said = "".join(log.read_text() for log in sorted(training.folder.glob("*.log")))
    cluster.close()
    assert bool(gaps) == goes_on, said[-2000:]
    assert not cluster.find(0) + cluster.find(1), "something is left"
    errors = re.findall(r"\b(\w*Error: )(?:\[\S+\] )?(\w[^\[\n]{4,40})", said)
    seconds, lost, ranks = gaps[0] if gaps else (limit, "all", 0)
    print(name, round(seconds, 1), lost, ranks, "".join(*errors[:1]), sep=" · ")
