"""`python -m kit diagnose`: scripts found and imported, knobs read, reports written."""

import contextlib
import json
import math
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from helpers import children, wait_until
from torch.optim import optimizer

from kit import diagnosis
from kit.__main__ import main
from kit.diagnosis.imports import ImportWatch, restore_imports, watch_import
from kit.diagnosis.scripts import load_experiment, parse_knobs
from kit.experiment import ExperimentError

ROOT = Path(__file__).resolve().parents[1]
TRAIN = """
def train(*, batch_size=64, lr=0.1):
    while True:
        yield batch_size
"""
# One step of SGD; what a script does at import is put before or around it.
STEP = """
import torch
weight = torch.nn.Parameter(torch.ones(2))
sgd = torch.optim.SGD([weight], lr=0.1)
def step():
    sgd.zero_grad()
    weight.sum().backward()
    sgd.step()
def train():
    while True:
        yield 1
"""
HAND_WRITTEN = """
import torch
weight = torch.ones(2, requires_grad=True)
while True:
    gradient, = torch.autograd.grad(weight.sum(), weight)
    weight.data -= 0.1 * gradient
"""


class StandIn:
    """What the command may rely on of a Diagnosis."""

    verdict = None

    def __init__(self, knobs):
        self.knobs = knobs

    def __repr__(self):
        return f"waiting for data: 61 % of a step, {self.knobs}"

    def to_dict(self):
        savings = {"input": [0.61, math.nan, math.inf]}
        return {"verdict": self.verdict, "savings": savings, "knobs": self.knobs}

    def to_html(self):
        return "<!doctype html><title>61 % × 2</title>"


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """A folder of its own; whatever a test changes of the interpreter is given back."""
    monkeypatch.chdir(tmp_path)
    with restore_imports():
        yield


@pytest.fixture
def calls(monkeypatch):
    """Let a stand-in diagnose: it takes one step and notes how it was asked."""
    made = []

    def diagnose(experiment, *, seconds=10.0, on=None, **knobs):
        generator = experiment(**knobs)
        made.append({"seconds": seconds, "knobs": knobs, "first": next(generator)})
        generator.close()
        return StandIn(knobs)

    monkeypatch.setattr(diagnosis, "diagnose", diagnose, raising=False)
    return made


def write(text, name="train.py"):
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def run(capsys, *arguments):
    """Run the command; return its exit status, output and errors."""
    try:
        status = main(["diagnose", *map(str, arguments)])
    except SystemExit as error:  # argparse ends so
        status = error.code
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def refused(target, *words, seconds=20.0):
    """Assert that a target is refused in the kit's manner; return the message."""
    with pytest.raises(ExperimentError) as caught:
        load_experiment(target, seconds=seconds)
    message = str(caught.value)
    missing = [word for word in words if word not in message]
    assert not missing, f"{missing} not in: {message}"
    assert 2 <= len(message.splitlines()) <= 6, message
    return message


def watched_state():
    """All that watching an import may touch."""
    return (
        torch.autograd.backward,
        torch.Tensor.backward,
        dict(optimizer._global_optimizer_pre_hooks),
        signal.getsignal(signal.SIGALRM),
        signal.getitimer(signal.ITIMER_REAL)[1],
    )


# knobs


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x=64", 64),
        ("x=1e-3", 1e-3),
        ("x=-0.5", -0.5),
        ("x=True", True),
        ("x=None", None),
        ("x=resnet", "resnet"),
        ("x='64'", "64"),
        ("x=(0.9, 0.99)", (0.9, 0.99)),
        ("x=[1, 2]", [1, 2]),
        ("x=", ""),
        ("x=b=c", "b=c"),
        ("x=1+1", "1+1"),
        ("x=a b", "a b"),
        ("x=C:\\data", "C:\\data"),
        ("x='C:\\data'", "C:\\data"),
        ("x=__import__('os')", "__import__('os')"),
        ("x=" + "(" * 5000, "(" * 5000),
    ],
)
def test_a_knob_is_a_literal_or_else_a_string(argument, value, recwarn):
    (found,) = parse_knobs([argument]).values()
    assert (found, type(found)) == (value, type(value))
    assert not recwarn.list


def test_knobs_keep_their_order():
    assert list(parse_knobs(["b=1", "a=2"])) == ["b", "a"]
    assert parse_knobs([]) == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["batch_size"], ["'batch_size'", "name=value"]),
        (["=3"], ["'=3'", "name=value"]),
        (["batch-size=3"], ["'batch-size=3'", "name=value"]),
        (["2x=3"], ["'2x=3'"]),
        (["x=1", "x=2"], ["'x'", "twice", "1", "2"]),
        (["seconds=3"], ["--seconds 3"]),
        (["of=3"], ["'of'", "Rename"]),
        (["amp=false"], ["amp=False"]),
        (["amp=TRUE"], ["amp=True"]),
        (["amp=none"], ["amp=None"]),
    ],
)
def test_what_is_no_knob_is_refused(arguments, words):
    with pytest.raises(ExperimentError) as caught:
        parse_knobs(arguments)
    assert all(word in str(caught.value) for word in words), caught.value
    assert len(str(caught.value).splitlines()) == 2


# scripts that load


def test_a_script_is_imported_as_python_would_run_it(tmp_path):
    write("SIZE = 3", "deep/neighbour.py")
    text = (
        "import sys, neighbour\nPATH, ARGV = sys.path[0], sys.argv[:]\n"
        "NAME = __name__\nif NAME == '__main__': raise SystemExit\n"
        "def train(*, n=neighbour.SIZE):\n"
        "    import neighbour as late\n"
        "    yield late.SIZE\n"
    )
    write(text, "deep/train.py")
    before = sys.path[:], sys.argv[:], dict(sys.modules)
    with restore_imports():
        train = load_experiment("deep/train.py:train")
        module = sys.modules["train"]
        folder = tmp_path / "deep"
        assert (module.PATH, module.NAME) == (str(folder), "train")
        assert module.ARGV == [str(folder / "train.py")]
        assert module.__file__ == str(folder / "train.py")
        assert sys.path[0] == str(folder)
        assert next(train()) == 3
        assert not list(folder.glob("__pycache__/train*"))
    assert (sys.path, sys.argv) == before[:2]
    assert not {"train", "neighbour"} & set(sys.modules)
    assert all(sys.modules[name] is module for name, module in before[2].items())


def test_what_the_script_adds_to_the_path_is_taken_away_too(tmp_path):
    write("", "lib/helping/__init__.py")
    write("", "lib/helping/deeper.py")
    write("import sys; sys.path.append('lib')\nimport helping.deeper\n" + TRAIN)
    with restore_imports():
        load_experiment("train.py:train")
        assert "helping.deeper" in sys.modules
    assert not {"helping", "helping.deeper"} & set(sys.modules)
    assert "lib" not in sys.path


def test_libraries_stay_loaded(monkeypatch, tmp_path):
    write("", "elsewhere/some_library.py")
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    write("import some_library\n" + TRAIN, "here/train.py")
    with restore_imports():
        load_experiment("here/train.py:train")
    assert "some_library" in sys.modules


def test_one_script_after_another_of_the_same_name():
    for folder in ("a", "b"):
        write(f"def train():\n    yield {folder!r}", f"{folder}/train.py")
        with restore_imports():
            assert next(load_experiment(f"{folder}/train.py:train")()) == folder


def test_a_link_is_followed(tmp_path):
    write("import neighbour\n" + TRAIN, "real/train.py")
    write("", "real/neighbour.py")
    Path("link.py").symlink_to("real/train.py")
    assert load_experiment("link.py:train").__module__ == "train"


def test_a_module_of_the_current_folder():
    write("", "package/__init__.py")
    write("N = 5", "package/sizes.py")
    write("from .sizes import N\ndef train():\n    yield N", "package/module.py")
    with restore_imports():
        assert next(load_experiment("package.module:train")()) == 5
    assert not {"package", "package.module"} & set(sys.modules)


@pytest.mark.parametrize("made", ["functools.partial(train, lr=1)", "lambda: train()"])
def test_anything_that_returns_a_generator_serves(made):
    write(f"import functools\n{TRAIN}\nshort = {made}")
    assert next(load_experiment("train.py:short")()) == 64


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_worker_processes_find_what_it_defines(method):
    write("FACTOR = 2", "neighbour.py")
    text = "import neighbour\nclass Doubles:\n"
    text += "    def __getitem__(self, i): return i * neighbour.FACTOR\n"
    write(text + TRAIN)
    load_experiment("train.py:train")
    doubles = sys.modules["train"].Doubles()
    assert pickle.loads(pickle.dumps(doubles))[3] == 6
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(doubles.__getitem__, (4,)) == 8


# scripts that do not


def test_no_such_file():
    write(TRAIN)
    write(TRAIN, "evaluate.py")
    refused("trainn.py:train", "trainn.py", "no such file", "Did you mean train.py?")
    refused("zzzzzzzz.py:train", "Python files there: evaluate.py, train.py.")
    refused("nowhere/train.py:train", "no folder", "nowhere")


def test_no_function_is_named():
    write(f"def helper(): pass\n{TRAIN}")
    refused("train.py", "which function?", "train.py:train")
    refused("train.py:", "which function?", "train.py:train")
    refused("train", "which function?", "path/to/train.py:train")
    refused("train.py:a b", "which function?")
    refused(":train", "which function?")


def test_no_such_function():
    write(f"LR = 0.1\ndef helper(): pass\n{TRAIN}\ndef test():\n    yield 1")
    refused(
        "train.py:trainn",
        "no function 'trainn'",
        "Did you mean train.py:train?",
        "generator functions: train, test",
    )
    refused("train.py:zzz", "no function 'zzz'", "generator functions: train, test")
    write("x = 1", "empty.py")
    refused("empty.py:train", "none yet")


def test_what_is_named_is_no_experiment():
    write(
        f"LR = 0.1\ndef plain():\n    print(1)\n{TRAIN}\nmade = train()\n"
        "def placed(model):\n    yield 1\ndef taken(*, seconds=1):\n    yield 1\n"
    )
    refused("train.py:LR", "LR is 0.1, not a function", "functions: train")
    refused("train.py:plain", "plain has no `yield`")
    refused("train.py:made", "cannot be restarted")
    refused("train.py:placed", "positional parameter model", "*, model=…")
    refused("train.py:taken", "a knob named 'seconds'")


def test_a_folder(tmp_path):
    write(TRAIN, "scripts/train.py")
    refused("scripts:train", "scripts is a folder", "train.py")
    refused("scripts/:train", "is a folder", "train.py")
    refused(f"{tmp_path}/scripts:train", "is a folder", "train.py")


def test_what_is_not_python():
    write(TRAIN, "train.txt")
    write("{}", "train.ipynb")
    refused("train.txt:train", "train.txt is not a Python file", "train.py:train")
    refused("train.ipynb:train", "not a Python file", "%%writefile", "kit.diagnose")
    Path("train.py").write_bytes(b"\x80\x00\xff" * 10)
    refused("train.py:train", "train.py")


def test_no_such_module():
    write(TRAIN)
    refused("trainn:train", "no module of this name", "Did you mean train.py?")
    refused("package.train:train", "no module of this name", "train.py")


def test_a_syntax_error_shows_its_line():
    write("import torch\ndef train(*, n=1)\n    yield n\n")
    message = refused("train.py:train", "train.py, line 2", "def train(*, n=1)", "':'")
    assert "Traceback" not in message
    write("", "package/__init__.py")
    write("x = = 3", "package/broken.py")
    refused("package.broken:train", "broken.py, line 1", "x = = 3")


def test_a_name_that_is_taken():
    write(TRAIN, "json.py")
    refused("json.py:train", "'json'", "my_json.py")
    assert sys.modules["json"] is json


def test_a_script_that_raises_shows_its_own_traceback(capsys, calls):
    write("def use(x):\n    return {}[x]\n", "neighbour.py")
    write("import neighbour\nneighbour.use('lr')\n" + TRAIN)
    refused("train.py:train", "raised KeyError", "neighbour.py, line 2", "'lr'")
    status, out, err = run(capsys, "train.py:train")
    assert (status, out, calls) == (2, "", [])
    assert err.startswith("error: train.py raised KeyError while it was imported")
    files = [Path(f).name for f in re.findall(r'File "(.+?)", line', err)]
    assert files == ["train.py", "neighbour.py"]
    assert err.rstrip().endswith("KeyError: 'lr'")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import no_such_thing", ["ModuleNotFoundError", "train.py, line 1"]),
        ("from .model import Net", ["relative import", "package.train"]),
        ("raise SystemExit(3)", ["ended itself", "sys.exit(3)", "__main__"]),
        (
            "import argparse\np = argparse.ArgumentParser()\n"
            "p.add_argument('data')\np.parse_args()",
            ["ended itself", "train.py, line 4"],
        ),
    ],
)
def test_other_ways_to_fail(text, words):
    write(text + "\n" + TRAIN)
    refused("train.py:train", *words)


def test_a_neighbour_with_a_syntax_error_is_named():
    write("x = = 3", "neighbour.py")
    write("import neighbour\n" + TRAIN)
    message = refused("train.py:train", "SyntaxError", "train.py, line 1")
    assert "neighbour.py" in message


# training at import


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("while True: sgd.step()", ["calls optimizer.step()", "train.py, line 12"]),
        ("while True: step()", ["calls backward()", "train.py, line 7"]),
        (
            "try:\n    step()\nexcept Exception:\n    while True: pass",
            ["calls backward()"],
        ),
        ("try: sgd.step()\nexcept: pass", ["calls optimizer.step()"]),
        ("torch.autograd.backward(weight.sum())", ["calls backward()"]),
    ],
)
def test_a_script_that_trains_at_import_is_told_how_to_be_written(text, words):
    write(STEP + text)
    before = watched_state()
    message = refused("train.py:train", "train.py trains", *words)
    assert "def train(*, batch_size=64):" in message
    assert "yield len(batch)" in message
    assert 'if __name__ == "__main__":' in message
    assert watched_state() == before


def test_its_example_is_python():
    write(STEP + "step()")
    lines = refused("train.py:train").splitlines()[2:]
    compile("\n".join(line[4:] for line in lines), "example", "exec")


def test_a_neighbour_that_trains_at_import():
    write(STEP + "step()", "trainer.py")
    write("import trainer\n" + TRAIN)
    refused("train.py:train", "calls backward()", "trainer.py, line 7")


@pytest.mark.parametrize(
    "text",
    [
        HAND_WRITTEN,
        "while True: pass",
        "import time\ntime.sleep(60)",
        "while True:\n    try: 1 / 0\n    except Exception: pass",
    ],
)
def test_an_import_that_does_not_end_is_ended(text):
    write(text + "\n" + TRAIN)
    before, begun = watched_state(), time.monotonic()
    refused("train.py:train", "after 0.3 s of import", "train.py, line", seconds=0.3)
    assert time.monotonic() - begun < 5
    assert watched_state() == before


def test_an_import_that_swallows_the_interruption_is_interrupted_again(monkeypatch):
    monkeypatch.setattr("kit.diagnosis.imports._SECONDS_BETWEEN", 0.2)
    text = "count = 0\nwhile count < 2:\n    try:\n        while True: pass\n"
    write(text + "    except BaseException: count += 1\n" + TRAIN)
    refused("train.py:train", "after 0.2 s of import", seconds=0.2)


def test_libraries_may_take_their_time(monkeypatch, tmp_path):
    write("import time; time.sleep(0.5)", "elsewhere/slow_library.py")
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    write("import slow_library\n" + TRAIN, "here/train.py")
    assert next(load_experiment("here/train.py:train", seconds=0.2)()) == 64


def test_a_script_may_train_once_it_is_imported():
    write(STEP.replace("yield 1", "step(); yield 1"))
    with restore_imports():
        train = load_experiment("train.py:train", seconds=0.2)
        begun = time.monotonic()
        generator = train()
        while time.monotonic() - begun < 0.3:
            assert next(generator) == 1


def test_a_kept_reference_trains_afterwards():
    write("from torch.autograd import backward\n" + STEP)
    load_experiment("train.py:train")
    module = sys.modules["train"]
    module.backward(module.weight.sum())
    assert module.weight.grad.tolist() == [1, 1]


def test_what_others_had_registered_stays():
    handle = optimizer.register_optimizer_step_pre_hook(lambda *_: None)
    kept = signal.signal(signal.SIGALRM, lambda *_: None)
    timer = signal.setitimer(signal.ITIMER_REAL, 50, 7)
    try:
        before = watched_state()
        with watch_import(ImportWatch(Path.cwd()), 20):
            assert watched_state() != before
        assert watched_state() == before
        assert 40 < signal.getitimer(signal.ITIMER_REAL)[0] <= 50
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, kept)
        handle.remove()


def test_off_the_main_thread_training_is_seen_all_the_same():
    write(STEP + "step()")
    told = []

    def load():
        with contextlib.suppress(ExperimentError):
            load_experiment("train.py:train")
            told.append("loaded")
        told.append("refused")

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    assert told == ["refused"]


@pytest.mark.usefixtures("tidy")
def test_processes_that_an_import_started_are_ended():
    text = "import multiprocessing, time\n"
    text += "context = multiprocessing.get_context('fork')\n"
    text += "process = context.Process(target=time.sleep, args=(60,))\n"
    write(text + "process.start()\nprocess.join()\n")
    refused("train.py:train", "after 0.3 s of import", seconds=0.3)
    wait_until(lambda: not children())


LOADED = """
import torch
from torch.utils.data import DataLoader
def loop(loader):
    for batch in loader:
        torch.ones(1, requires_grad=True).sum().backward()
"""


@pytest.mark.usefixtures("tidy")
def test_workers_of_a_loader_end_in_good_order():
    """Where a worker is killed, PyTorch raises in the middle of something else."""
    write(LOADED + "loop(DataLoader(range(9), num_workers=1))")
    with restore_imports():
        message = refused("train.py:train", "calls backward()")
    wait_until(lambda: not children(), 3)
    assert "killed" not in message


# the command


def test_the_report_is_printed(capsys, calls):
    write(TRAIN)
    status, out, err = run(capsys, "train.py:train", "batch_size=8", "lr=0.5")
    assert (status, err) == (0, "")
    assert out == "waiting for data: 61 % of a step, {'batch_size': 8, 'lr': 0.5}\n"
    assert calls == [
        {"seconds": 10.0, "knobs": {"batch_size": 8, "lr": 0.5}, "first": 8}
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        "train.py:train batch_size=8 lr=1 --seconds 5",
        "--seconds 5 train.py:train batch_size=8 lr=1",
        "train.py:train --seconds 5 batch_size=8 lr=1",
        "train.py:train batch_size=8 --seconds=5 lr=1",
        "--json train.py:train batch_size=8 --seconds 5 lr=1",
        "train.py:train --json batch_size=8 --seconds 5 lr=1 --html a.html",
    ],
)
def test_options_and_knobs_come_in_any_order(capsys, calls, arguments):
    write(TRAIN)
    status, out, _ = run(capsys, *arguments.split())
    assert status == 0
    assert "'batch_size': 8" in out or '"batch_size": 8' in out
    assert calls == [{"seconds": 5, "knobs": {"batch_size": 8, "lr": 1}, "first": 8}]


def test_json_is_all_that_stdout_gets(capfd, calls):
    noise = "import os, sys\nold = sys.stdout\nprint('imported')\n"
    loop = "        print('a step'); old.write('old'); os.system('echo child')\n"
    write(noise + TRAIN.replace("        yield", loop + "        yield"))
    status = main(["diagnose", "train.py:train", "--json"])
    print("as before")
    out, err = capfd.readouterr()
    assert status == 0
    assert out.endswith("\nas before\n")
    assert json.loads(out.removesuffix("as before\n")) == {
        "verdict": None,
        "savings": {"input": [0.61, None, None]},
        "knobs": {},
    }
    assert all(word in err for word in ("imported", "a step", "old", "child"))


def test_a_page_is_written_whole(capsys, calls, tmp_path):
    write(TRAIN)
    write("older", "report.html")
    status, out, err = run(capsys, "train.py:train", "--html", "report.html")
    assert (status, err) == (0, "")
    assert out.splitlines()[0].startswith("waiting for data")
    assert out.splitlines()[1] == str(tmp_path / "report.html")
    assert Path("report.html").read_text("utf-8") == StandIn({}).to_html()
    assert not list(tmp_path.glob(".*"))


def test_a_page_beside_json(capsys, calls, tmp_path):
    write("import os; os.mkdir('x'); os.chdir('x')\n" + TRAIN)
    status, out, err = run(capsys, "train.py:train", "--json", "--html", "a.html")
    os.chdir(tmp_path)
    assert status == 0
    assert json.loads(out)["verdict"] is None
    assert err == f"{tmp_path / 'a.html'}\n"
    assert Path("a.html").is_file()


@pytest.mark.parametrize("page", ["nowhere/a.html", "folder", "train.py/a.html"])
def test_a_page_that_cannot_be_written_is_refused_first(capsys, calls, page):
    write(TRAIN)
    Path("folder").mkdir()
    status, out, err = run(capsys, "train.py:train", "--html", page)
    assert (status, out, calls) == (2, "", [])
    assert err.startswith(f"error: --html {page}: ")
    assert "Traceback" not in err


def test_a_folder_without_permission_is_refused_first(capsys, calls, monkeypatch):
    def forbidden(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", forbidden)
    write(TRAIN)
    status, out, err = run(capsys, "train.py:train", "--html", "a.html")
    assert (status, out, calls) == (2, "", [])
    assert "cannot be written (Permission denied)" in err
    assert "Traceback" not in err


def test_a_page_that_fails_at_the_end_leaves_the_older_one(
    capsys, calls, monkeypatch, tmp_path
):
    def full(*_):
        raise OSError(28, "No space left on device")

    write(TRAIN)
    write("older", "a.html")
    monkeypatch.setattr("os.replace", full)
    status, out, err = run(capsys, "train.py:train", "--html", "a.html")
    assert status == 1
    assert out.startswith("waiting for data")  # what was measured is not lost
    assert "No space left" in err
    assert Path("a.html").read_text() == "older"
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train.py:train", "batch=3"], ["no knob 'batch'", "batch_size, lr"]),
        (["train.py:train", "batch_size"], ["'batch_size' is not a knob"]),
        (["train.py:train", "lr=1", "--json", "lr=2"], ["'lr' is given twice"]),
        (["train.py"], ["which function?", "train.py:train"]),
        (["trainn.py:train"], ["Did you mean train.py?"]),
        (["train.py:train", "--lr=1"], ["no such option: --lr=1", "name=value"]),
        (["train.py:train", "--sceonds", "1"], ["no such option: --sceonds"]),
        (["train.py:train", "--seconds", "0"], ["positive"]),
        (["train.py:train", "--seconds", "nan"], ["positive"]),
        (["train.py:train", "--seconds", "five"], ["five is not a positive number"]),
        ([], ["target"]),
    ],
)
def test_bad_arguments_end_with_2(capsys, calls, arguments, words):
    write(TRAIN)
    status, out, err = run(capsys, *arguments)
    assert (status, out, calls) == (2, "", [])
    assert all(word in err for word in words), err
    assert "Traceback" not in err


def test_other_commands_take_no_extra_words(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["machine", "batch_size=3"])
    assert caught.value.code == 2
    assert "unrecognized arguments: batch_size=3" in capsys.readouterr().err


def test_what_cannot_be_measured_ends_with_1(capsys, calls, monkeypatch):
    def fail(*_, **__):
        raise ExperimentError("train ended after 1 step.\nPut `while True:` around it.")

    monkeypatch.setattr(diagnosis, "diagnose", fail, raising=False)
    write(TRAIN)
    status, out, err = run(capsys, "train.py:train")
    assert (status, out) == (1, "")
    assert err.startswith("error: train ended after 1 step.\nPut")
    assert "Traceback" not in err


def test_a_script_that_raises_while_it_is_measured(capsys, monkeypatch):
    from kit import measure

    monkeypatch.setattr(
        diagnosis, "diagnose", lambda e, **k: measure(e, **k), raising=False
    )
    write("def train(*, n=3):\n    yield 1\n    [][n]\n")
    status, out, err = run(capsys, "train.py:train", "n=4")
    assert (status, out) == (1, "")
    assert err.startswith("error: train(n=4) raised IndexError")
    assert [Path(f).name for f in re.findall(r'File "(.+?)"', err)] == ["train.py"]
    assert "[][n]" in err


@pytest.mark.parametrize("when", ["import", "measuring"])
def test_an_interrupt_ends_with_130_and_one_line(capsys, monkeypatch, when):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(diagnosis, "diagnose", interrupt, raising=False)
    write("raise KeyboardInterrupt\n" * (when == "import") + TRAIN)
    status, out, err = run(capsys, "train.py:train")
    assert (status, out) == (130, "")
    assert err == "interrupted: there is no diagnosis\n"


def test_the_interpreter_is_as_before(capsys, calls):
    write(TRAIN)
    before = sys.path[:], sys.argv[:], os.getcwd()
    for target in ("train.py:train", "train.py:nothing"):
        run(capsys, target)
        assert (sys.path, sys.argv, os.getcwd()) == before
        assert "train" not in sys.modules


def test_help_has_an_example():
    done = subprocess.run(
        [sys.executable, "-m", "kit", "diagnose", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "python -m kit diagnose train.py:train batch_size=64" in done.stdout
    assert "yield len(batch)" in done.stdout
