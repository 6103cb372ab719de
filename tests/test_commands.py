"""From a shell: `python -m kit machine`, and `diagnose` of a function or a script."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import kit
from kit import diagnosis
from kit.__main__ import main
from kit.errors import ExperimentError

TRAIN = "def train(*, batch_size=64, lr=0.1):\n    yield batch_size\n"


@pytest.fixture(autouse=True)
def alone(own_folder, monkeypatch):
    """What is imported comes back as it was."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "train", raising=False)
    yield
    sys.modules.pop("train", None)


def run(capsys, *words):
    """Return the exit status, and what was printed and complained about."""
    try:
        status = main(words)
    except SystemExit as ended:
        status = ended.code
    printed = capsys.readouterr()
    return status, printed.out, printed.err


@pytest.fixture
def asked(monkeypatch):
    """How `diagnose` was asked: a real one takes seconds, and is tested elsewhere."""
    made = []

    def diagnose(experiment, *, seconds, try_compile, **knobs):
        if seconds == 13:
            raise ExperimentError("train ended after 1 step.")
        made.append({"seconds": seconds, "first": next(experiment(**knobs)), **knobs})
        return SimpleNamespace(to_html=lambda: "<title>61 % × 2</title>")

    monkeypatch.setattr(diagnosis, "diagnose", diagnose)
    Path("train.py").write_text(TRAIN)
    return made


def test_a_machine_is_printed(capsys):
    status, out, _ = run(capsys, "machine")
    assert status == 0 and kit.this_machine().name in out


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 1e-3), ("'64'", "64"), ("b=c", "b=c"), ("(0.9, 1)", (0.9, 1))],
)
def test_a_knob_is_a_literal_or_else_a_string(capsys, asked, text, value):
    words = ["train.py:train", f"lr={text}", "batch_size=8", "--html", "a.html"]
    status, out, err = run(capsys, "diagnose", *words)
    assert (status, err) == (0, "")
    assert asked == [{"seconds": 60.0, "first": 8, "batch_size": 8, "lr": value}]
    assert Path("a.html").read_text("utf-8") == "<title>61 % × 2</title>"
    assert str(Path("a.html").resolve()) in out


#: What was asked for wrongly, what the answer has to name, and the exit status.
WRONG = [
    ("dance", "dance", 2),
    ("diagnose train.py:train lr", "'lr'", 2),
    ("diagnose train.py:train --seconds five", "five", 2),
    ("diagnose train.py:train --seed 3", "--seed", 2),
    ("diagnose train.py", "train.py:train", 2),
    ("diagnose absent.py:train", "absent.py", 2),
    ("diagnose --script train.py --seed 3", "`--`", 2),
    ("diagnose train.py:absent", "absent", 1),
    ("diagnose train.py:train seconds=13", "train ended after 1 step.", 1),
]


@pytest.mark.parametrize(("words", "named", "status"), WRONG)
def test_wrong_words_end_with_2_other_errors_with_1(
    capsys, asked, words, named, status
):
    found, _, err = run(capsys, *words.split())
    assert found == status and named in err and not asked


# A script as it is; how it is driven is tested with the diagnosis


def diagnose_script(capsys, body, *options):
    """Diagnose a script with this body; return exit status and what was said."""
    Path("train.py").write_text(HEAD + body)
    before = sys.argv, [*sys.path], os.getcwd(), sys.modules["__main__"]
    found = run(capsys, "diagnose", "--script", "train.py", *options, "--", "--lr=0.1")
    assert (sys.argv, [*sys.path], os.getcwd(), sys.modules["__main__"]) == before
    return found


HEAD = """
import sys
import torch
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), float(sys.argv[1].partition("=")[2]))
def step():
    net(torch.ones(2, 3)).sum().backward()
    optimizer.step()
"""


def test_a_script_is_diagnosed_as_it_is_with_its_arguments(capsys, quick):
    body = "while True:\n    step()\n"
    status, out, _ = diagnose_script(capsys, body, "--html", "report.html")
    assert status == 0 and "train.py --lr=0.1" in out and "forward" in out
    assert "train.py --lr=0.1" in Path("report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("body", "said"), [("print('hi')", "optimizer.step()"), ("sys.exit(3)", "status 3")]
)
def test_why_a_script_cannot_be_diagnosed_is_said(capsys, quick, body, said):
    status, _, err = diagnose_script(capsys, body)
    assert status == 1 and said in err


def test_an_error_of_the_script_itself_comes_as_it_is(capsys, quick):
    with pytest.raises(ZeroDivisionError):
        diagnose_script(capsys, "1 / 0")
