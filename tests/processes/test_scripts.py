"""The scripts work, and your own script or trainer is diagnosed as it is."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv

import nbformat
import pytest
import recording
import yaml
from botocore import session, validate
from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob
from project import PYTHON, ROOT, TUTORIALS

SCRIPTS = TUTORIALS / "scripts"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
SMALL = ["--epochs=2", "--images=3000", "--batch-size=32", "--learning-rate=0.05"]
#: Sums of halves are rounded otherwise, and training makes that grow.
TOLERANCE = 0.02


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


@pytest.mark.skipif(sys.platform != "linux", reason="is for Linux")
@pytest.mark.timeout(300)
def test_a_chapter_is_recorded_with_a_real_python(tmp_path):
    code = "import kit\n\ndef count():\n    while True:\n        yield 1\n\n"
    cell = nbformat.v4.new_code_cell(f"{code}kit.measure(count)")
    notebook = nbformat.v4.new_notebook(cells=[cell], metadata=PYTHON)
    nbformat.write(notebook, tmp_path / "00_short.ipynb")
    asked = ["--quick", "--bundle", "-", "out", "00_short.ipynb"]
    environment = os.environ | {"PYTHON": sys.executable, "TMPDIR": str(tmp_path)}
    command = [SCRIPTS / "record_gpu.sh", *asked]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    # Not Python's tarfile: its `filter` came in the middle of 3.11.
    subprocess.run(["tar", "-xzf", "out/recordings.tar.gz"], cwd=tmp_path, check=True)
    (made,) = tmp_path.glob("00_short__*.json")
    assert [trial.experiment for trial in recording.read(made).trials] == ["count"]
    cells = json.loads((tmp_path / "00_short.ipynb").read_text())["cells"]
    assert "items/s" in str(cells[0]["outputs"])


LOOP = """import torch, logging, sys
made = torch.optim.SGD([there := torch.ones(9, requires_grad=True)])
logging.getLogger().addHandler(logging.StreamHandler(sys.stdout))
logging.warning("begun")
open("starts", "a").write("1")
print("hi")
for step in range(40): there.sum().backward(), made.step()
"""


def test_a_readers_script_is_diagnosed_as_it_is(tmp_path):
    (tmp_path / "train.py").write_text(LOOP)
    words = ["--script", "train.py", "--optimizer-steps-per-step=2", "--", "-x", "1"]
    command = [sys.executable, "-m", "kit", "diagnose", *words]
    where = {"cwd": tmp_path, "env": os.environ | {"KIT_QUICK": "1"}, "text": True}
    out = subprocess.check_output(command, **where)
    assert out.count("hi\n") == 1, "what it prints is heard once"
    assert out.count("begun\n") == 1, "and so is what it logs"
    assert (tmp_path / "starts").read_text() == "1"
    assert "train.py -x 1" in out and "backward" in out


#: A script whose every step meets an error of PyTorch's, which looks for its place on
#: the C stack, and what becomes of the script at some step.
FAILING = """import sys, torch
there = torch.ones(9, requires_grad=True)
made = torch.optim.SGD([there])
for step in range(100_000):
    for fails in (torch.stack, torch.linalg.cholesky, torch.empty):
        try:
            fails({torch.stack: [], torch.empty: 10**15}.get(fails, -torch.eye(2)))
        except RuntimeError:
            pass
    there.sum().backward()
    made.step()
    if step == LAST:
        END
"""
ENDS = {
    "the kit ends it": (10**6, "pass", 0, "own code"),
    "it ends early": (900, "break", 0, "own code"),
    "it raises": (5, "torch.stack([])", 1, "stack expects"),
    "it exits": (5, "sys.exit(3)", 1, "exit status 3"),
    "it is interrupted": (5, "raise KeyboardInterrupt", 130, "interrupted"),
}


@pytest.mark.parametrize("last, end, status, said", ENDS.values(), ids=ENDS)
def test_errors_of_pytorch_reach_a_scripts_own_except(
    tmp_path, last, end, status, said
):
    text = FAILING.replace("LAST", str(last)).replace("END", end)
    (tmp_path / "train.py").write_text(text)
    words = ["--script", "train.py", "--seconds=3"]
    command = [sys.executable, "-m", "kit", "diagnose", *words]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == status, found.stderr[-2000:]
    assert said in found.stdout + found.stderr


def run_apart(folder, package, *words):
    """Return what Python says to these words where there is one more package."""
    venv.create(apart := folder / "apart")
    here = os.pathsep.join([sysconfig.get_path("purelib"), str(ROOT)])
    where = {"cwd": folder, "env": os.environ | {"PYTHONPATH": here}}
    python = str(apart / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", package]
    subprocess.run(install, check=True, **where)
    return subprocess.check_output([python, *words], text=True, **where)


#: What others train with, by the package that has it; the kit does not need it.
TRAINERS = {
    "transformers[torch]": """import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
net = GPT2LMHeadModel(GPT2Config(vocab_size=99, n_embd=64, n_layer=2, n_head=2))
text = [{"input_ids": (x := torch.randint(99, (32,))), "labels": x}] * 4000
how = TrainingArguments(use_cpu=True, report_to=[], gradient_accumulation_steps=2)
Trainer(net, how, train_dataset=text).train()""",
    "lightning": """from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
Trainer(max_epochs=999, logger=False, enable_checkpointing=False).fit(BoringModel())""",
}


@pytest.mark.nightly
@pytest.mark.parametrize("package", TRAINERS)
def test_a_trainer_of_others_is_diagnosed_as_it_is(package, tmp_path):
    (tmp_path / "train.py").write_text(TRAINERS[package])
    words = ["-m", "kit", "diagnose", "--seconds=6", "--script", "train.py"]
    out = run_apart(tmp_path, package, *words)
    for phase in ("forward", "backward", "optimizer"):
        assert re.search(rf"{phase} +[1-9]\d*\.\d%", out), out


#: What the appendix on trainers leaves to the reader.
READERS = {
    "transformers[torch]": """
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments
model = GPT2LMHeadModel(GPT2Config(vocab_size=99, n_embd=64, n_layer=2, n_head=2))
data = [{"input_ids": (x := torch.randint(99, (32,))), "labels": x}] * 100_000
args = TrainingArguments(use_cpu=True, report_to=[])
""",
    "lightning": """
from lightning.pytorch.demos.boring_classes import BoringModel
model = BoringModel()
""",
}


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("package", READERS)
def test_a_callback_of_the_appendix_makes_a_trainer_measurable(package, tmp_path):
    """The code is what the appendix shows: readers copy it."""
    book = nbformat.read(TUTORIALS / "more" / "00_trainers.ipynb", as_version=4)
    recipe = next(cell.source for cell in book.cells if cell.id == "recipe")
    text = "\n".join(cell.source for cell in book.cells)
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    (block,) = [each for each in blocks if package.partition("[")[0] in each]
    lines = ["import queue, threading, torch, kit", recipe, READERS[package], block]
    lines.append("print(kit.measure(train, seconds=2.0))")
    (tmp_path / "measured.py").write_text("\n".join(lines))
    out = run_apart(tmp_path, package, "measured.py")
    assert re.search(r"\d items/s", out), out


def test_a_cluster_takes_the_files_of_chapter_17():
    subprocess.run(["bash", "-n", SCRIPTS / "train.sbatch"], check=True)
    job, asked = ((SCRIPTS / n).read_text() for n in ("trainjob.yaml", "batch.json"))
    assert TrainerV1alpha1TrainJob.from_dict(yaml.safe_load(job)).spec.trainer
    batch = session.get_session().get_service_model("batch")
    shape = batch.operation_model("RegisterJobDefinition").input_shape
    validate.validate_parameters(json.loads(asked), shape)


ENDLESS = """import os, signal, time, torch
made = torch.optim.SGD([there := torch.ones(9, requires_grad=True)])
begun = time.monotonic()
while True:
    there.sum().backward(), made.step(), time.sleep(0.001)
    if time.monotonic() - begun > 8:
        os.kill(os.getpid(), signal.SIGINT)
"""


def test_an_interrupted_diagnosis_says_what_is_known_in_six_lines(tmp_path):
    (tmp_path / "train.py").write_text(ENDLESS)
    command = [sys.executable, "-m", "kit", "diagnose", "--script", "train.py"]
    environment = {k: v for k, v in os.environ.items() if k != "KIT_QUICK"}
    where = {"cwd": tmp_path, "env": environment, "text": True, "capture_output": True}
    ended = subprocess.run(command, **where)
    assert ended.returncode == 130
    assert "Traceback" not in ended.stderr and "interrupted: " in ended.stderr
    assert 1 <= len(ended.stdout.splitlines()) < 6
    assert "train.py, " in ended.stdout
