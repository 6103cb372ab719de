"""`python -m kit diagnose`: a script is imported, its knobs read, a report written."""

import subprocess
import sys
from pathlib import Path

import pytest

from kit import diagnosis
from kit.__main__ import load_experiment, main, parse_knob
from kit.experiment import ExperimentError

ROOT = Path(__file__).resolve().parents[1]
TRAIN = """
def train(*, batch_size=64, lr=0.1):
    while True:
        yield batch_size
"""


class StandIn:
    """What the command may rely on of a Diagnosis."""

    def __init__(self, knobs):
        self.knobs = knobs

    def __repr__(self):
        return f"waiting for data: 61 % of a step, {self.knobs}"

    def to_html(self):
        return "<!doctype html><title>61 % × 2</title>"


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """A folder of its own; what an import changes is given back."""
    monkeypatch.chdir(tmp_path)
    path = sys.path[:]
    for name in ("train", "quick", "neighbour", "package", "package.module"):
        sys.modules.pop(name, None)
    yield
    sys.path[:] = path


@pytest.fixture
def calls(monkeypatch):
    """Let a stand-in diagnose: it takes one step and notes how it was asked."""
    made = []

    def diagnose(experiment, *, seconds, **knobs):
        made.append({"seconds": seconds, "first": next(experiment(**knobs)), **knobs})
        return StandIn(knobs)

    monkeypatch.setattr(diagnosis, "diagnose", diagnose)
    return made


def write(text, name="train.py"):
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("64", 64),
        ("1e-3", 1e-3),
        ("True", True),
        ("None", None),
        ("resnet", "resnet"),
        ("'64'", "64"),
        ("(0.9, 0.99)", (0.9, 0.99)),
        ("", ""),
        ("b=c", "b=c"),
        ("__import__('os')", "__import__('os')"),
    ],
)
def test_a_knob_is_a_literal_or_else_a_string(text, value):
    name, found = parse_knob(f"x={text}")
    assert (name, found, type(found)) == ("x", value, type(value))


def test_a_script_is_imported_as_python_would_run_it():
    write("SIZE = 3", "deep/neighbour.py")
    write("import neighbour\ndef train():\n    yield neighbour.SIZE", "deep/train.py")
    assert next(load_experiment("deep/train.py", "train")()) == 3
    assert sys.modules["train"].__name__ == "train", "worker processes find it"


def test_a_module_of_the_current_folder():
    write("N = 5", "package/sizes.py")
    write("from .sizes import N\ndef train():\n    yield N", "package/module.py")
    assert next(load_experiment("package.module", "train")()) == 5


def test_a_script_that_trains_while_it_is_imported_is_named(capsys):
    write("import time\ntime.sleep(0.4)" + TRAIN)
    load_experiment("train.py", "train", seconds=0.1)
    said = capsys.readouterr().err
    assert "train.py is still being imported after 0.1 s" in said
    assert "train while it is imported" in said and "yield" in said
    assert 'if __name__ == "__main__":' in said and said.count("\n") <= 6
    write("import time\ntime.sleep(0.1)" + TRAIN, "quick.py")
    load_experiment("quick.py", "train")
    assert not capsys.readouterr().err


def test_an_error_of_the_script_is_shown_as_python_shows_it():
    write("import no_such_thing" + TRAIN)
    done = subprocess.run(
        [sys.executable, "-m", "kit", "diagnose", "train.py:train"],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert 'train.py", line 1, in <module>' in done.stderr
    assert "No module named 'no_such_thing'" in done.stderr


def test_the_report_is_printed(capsys, calls):
    write(TRAIN)
    assert main(["diagnose", "train.py:train", "batch_size=8", "lr=0.5"]) == 0
    out, err = capsys.readouterr()
    said = "waiting for data: 61 % of a step, {'batch_size': 8, 'lr': 0.5}\n"
    assert (out, err) == (said, "")
    assert calls == [{"seconds": 20.0, "first": 8, "batch_size": 8, "lr": 0.5}]


def test_a_page_is_written(capsys, calls, tmp_path):
    write(TRAIN)
    words = ["diagnose", "train.py:train", "lr=1", "--seconds", "5", "--html", "a.html"]
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines()[1] == str(tmp_path / "a.html")
    assert Path("a.html").read_text("utf-8") == StandIn({}).to_html()
    assert calls[0]["seconds"] == 5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train.py:train", "batch_size"], "'batch_size' is not written name=value"),
        (["train.py:train", "--lr=1"], "--lr=1"),
        (["train.py:train", "--seconds", "five"], "five"),
        (["train.py"], "which function of it? train.py:train"),
        (["absent.py:train"], "there is no file absent.py here"),
        ([], "target"),
    ],
)
def test_bad_arguments_end_with_2(capsys, calls, words, said):
    write(TRAIN)
    with pytest.raises(SystemExit) as caught:
        main(["diagnose", *words])
    assert caught.value.code == 2 and not calls
    assert said in capsys.readouterr().err


def test_what_cannot_be_measured_ends_with_1(capsys, monkeypatch):
    def fail(*_, **__):
        raise ExperimentError("train ended after 1 step.\nPut `while True:` around it.")

    monkeypatch.setattr(diagnosis, "diagnose", fail)
    write(TRAIN)
    assert main(["diagnose", "train.py:train"]) == 1
    out, err = capsys.readouterr()
    assert not out and err.startswith("error: train ended after 1 step.\nPut")


def test_a_function_that_the_script_does_not_have_is_named(capsys, calls):
    write(TRAIN)
    assert main(["diagnose", "train.py:absent"]) == 1
    assert "train.py has no absent" in capsys.readouterr().err and not calls


def test_a_name_that_the_kit_uses_is_no_knob(capsys, calls):
    write("def train(*, n=1):\n    yield n")
    assert main(["diagnose", "train.py:train", "seconds=3"]) == 0
    assert calls[0]["seconds"] == 3


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
