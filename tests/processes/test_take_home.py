"""What a reader takes home runs alone, without the kit: on a CPU here."""

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


def test_the_script_of_chapter_14_sends_as_much_less_as_it_says(tmp_path):
    sent = {}
    for option in ("--hook=none", "--hook=bf16", "--hook=powersgd", "--every=8"):
        done = run("14_send_less", tmp_path, option, "--steps", 8)
        assert done.returncode == 0, done.stderr
        sent[option] = float(re.search(r"([\d.]+) MB", done.stdout)[1])
    plain = sent["--hook=none"]
    assert sent["--hook=bf16"] == pytest.approx(plain / 2, rel=0.01)
    assert sent["--every=8"] == pytest.approx(plain / 8, rel=0.01)
    assert 0 < sent["--hook=powersgd"] < plain / 50
