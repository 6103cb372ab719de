"""What a reader takes home runs alone, without the kit: on a CPU here."""

import json
import os
import re
import subprocess
import sys

import pytest
from project import TUTORIALS

SCRIPTS = {path.stem: path for path in sorted((TUTORIALS / "take_home").glob("*.py"))}
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"}
TWO_PROCESSES = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def run(name, folder, *words):
    """Run a script in an empty folder: under torchrun if that is what it asks for."""
    script = SCRIPTS[name]
    launcher = TWO_PROCESSES if "torchrun" in script.read_text() else []
    command = [sys.executable, *launcher, str(script), *map(str, words)]
    variables = os.environ | LOOPBACK | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True
    )


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name[:2] != "00"])
def test_a_script_to_take_home_runs_alone(name, tmp_path):
    assert not re.search(r"^\s*(import|from) kit\b", SCRIPTS[name].read_text(), re.M)
    done = run(name, tmp_path, "--steps", 4)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_a_profile_has_a_table_the_labels_and_a_trace(tmp_path):
    done = run("02_profile_some_steps", tmp_path, "--steps", 12)
    assert "# of Calls" in done.stdout
    for label in ("load", "forward", "backward", "update"):
        assert re.search(rf"^{label}: [\d.]+ ms per step$", done.stdout, re.M)
    trace = json.loads((tmp_path / "runs" / "step12.json").read_text())
    names = [event["name"] for event in trace["traceEvents"]]
    assert names.count("forward") == 3
