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


def test_the_compiled_loop_of_chapter_08_learns_and_says_what_compiling_took(tmp_path):
    done = run("08_train_fast", tmp_path, "--steps", 200, "--plain")
    losses = [float(loss) for loss in re.findall(r"mean loss (\S+)", done.stdout)]
    assert len(losses) == 2
    assert losses[1] < losses[0]
    assert re.search(r"first step: [\d.]+ s", done.stdout)
