"""A script is diagnosed as it is: it runs once, trains as ever, and is ended."""

import signal
import sys
from pathlib import Path

import pytest
from experiments import untouched

from kit.__main__ import main
from kit.diagnosis.script import Script

pytestmark = pytest.mark.usefixtures("quick")

#: Each step of `made[n]` adds n to a file. The module `width` is the script's own.
HEAD = """
import sys, torch, width
nets = [torch.nn.Linear(width.N, 1) for _ in range(2)]
made = [torch.optim.SGD(net.parameters(), 0.1) for net in nets]
def step(n=0):
    with open("steps", "a") as file:
        file.write(str(n))
    nets[n](torch.ones(2, width.N)).sum().backward()
    made[n].step()
"""
FOREVER = """
try:
    while True:
        {}
finally:
    open("end", "w")
"""


def write_script(body):
    folder = Path("its")
    folder.mkdir()
    (folder / "width.py").write_text("N = 3")
    (folder / "train.py").write_text(HEAD + body)
    return folder / "train.py"


def find_left():
    """Return what a script may leave behind in this process."""
    handler = signal.getsignal(signal.SIGINT)
    return sys.argv, [*sys.path], Path.cwd(), sys.modules["__main__"], handler


@pytest.mark.parametrize(("most", "each"), [(1, "01"), (2, "0101")])
def test_a_script_runs_step_by_step_and_leaves_nothing(most, each):
    path = write_script(FOREVER.format("step(); step(1)"))
    before = find_left()
    run = Script(path, ["--lr", "1"], most)()
    for _ in range(3):  # by now it is known which optimizer steps last
        next(run)
    assert sys.argv == [str(path), "--lr", "1"]
    done = Path("steps").read_text()
    next(run)
    assert Path("steps").read_text() == done + each
    assert not Path("end").exists()
    run.close()
    assert Path("end").exists()
    assert find_left() == before


def test_an_optimizer_that_seldom_steps_ends_no_step():
    path = write_script(
        "n = 0\n" + FOREVER.format("n += 1; step(); n == 5 and step(1)")
    )
    run = Script(path)()
    for _ in range(40):
        next(run)
    run.close()
    steps = Path("steps").read_text()
    assert steps.count("1") == 1
    assert steps.count("0") <= 46, "it is known soon"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (FOREVER.format("step()"), "backward"),
        ("while True:\n try: step()\n except: pass", "keeps running when stopped"),
        ("try:\n while True: step()\nfinally: print(best)", "'best' is not defined"),
        ("try:\n while True: step()\nexcept: sys.exit(4)", "exit status 4"),
    ],
)
def test_the_answer_comes_however_the_script_takes_its_end(capsys, body, said):
    path = write_script(body)
    assert main(["diagnose", "--script", str(path)]) == 0
    report = capsys.readouterr().out
    assert "forward" in report
    assert said in report


def test_a_script_without_a_step_is_refused_with_a_reason(capsys):
    path = write_script("print('hi')")
    assert main(["diagnose", "--script", str(path)]) == 1
    assert "without calling optimizer.step()" in capsys.readouterr().err


def test_an_error_of_the_script_itself_comes_as_it_is():
    path = write_script("1 / 0")
    with untouched(), pytest.raises(ZeroDivisionError):
        main(["diagnose", "--script", str(path)])


def test_a_report_is_not_filled_by_the_path_of_a_folder():
    words = ["/far/away/photos", "--lr", "1"]
    assert Script(Path("train.py"), words).__name__ == "train.py photos --lr 1"
