"""Chapter 17's faults: each is caused, ends in time, and leaves no process behind.

With FAULTS=tutorials/scripts/faults.json they also fill the chapter's table.
"""

import json
import os
import re
import resource
import time
from datetime import date
from pathlib import Path

import pytest
import torch
from clusters import Cluster, Training, find_gaps
from project import TUTORIALS

SCRIPT = f"{TUTORIALS}/scripts/train_ddp.py --folder={{}} --images=8192 --epochs=60"
FULL = resource.RLIMIT_FSIZE, (65536, 65536)  # no file may be larger: a full disk
FAULTS = {  # what is done, and after how many seconds it is over
    "a process is killed": (lambda c: c.find_worker(1).kill(), 30),
    "a process is stopped": (lambda c: c.find_worker(1).suspend(), 70),
    "the disk is full": (lambda c: resource.prlimit(c.find_worker(0).pid, *FULL), 30),
    "the second machine is lost": (lambda c: c.kill(1), 45),
    "the machine with the store is lost": (lambda c: c.kill(0), 90),
}


@pytest.mark.nightly
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_costs_what_the_chapter_says(name):
    cluster = Cluster((TUTORIALS / "scripts" / "two_machines.sh").read_text())
    words = f"{SCRIPT} --batch-size=64 --save-every=20 --timeout=10"
    training = Training(cluster, 0, script=words)
    training.wait_for(70)
    begun, (strike, limit) = time.time(), FAULTS[name]
    strike(cluster)
    while not (gaps := find_gaps(training.read())) and time.time() < begun + limit:
        if training.agents[1].poll() is not None and name.endswith("store is lost"):
            break
    said = "".join(log.read_text() for log in sorted(training.folder.glob("*.log")))
    cluster.close()
    assert bool(gaps) != name.endswith("store is lost"), said[-2000:]
    assert not cluster.find(0) + cluster.find(1), "something is left"
    error = re.search(r"\b(\w*(?:Error|Exception)\b.{,60})", said)
    seconds, lost, ranks = gaps[0] if gaps else (time.time() - begun, "all", 0)
    row = {"in the log": error and error[1], "seconds": round(seconds, 1)}
    if path := os.environ.get("FAULTS"):
        stored = json.loads(Path(path).read_text()) if Path(path).exists() else {}
        made = {
            "date": str(date.today()),
            "torch": torch.__version__,
            "on": cluster.kind,
        }
        rows = stored.get("faults", {}) | {name: row | {"lost": lost, "ranks": ranks}}
        Path(path).write_text(json.dumps(made | {"faults": rows}, indent=1) + "\n")
