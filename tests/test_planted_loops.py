"""The six loops of chapter 02 are diagnosed in earnest, and get their verdict.

A wrong verdict is red, unless a longer look takes it back: other programs may have
disturbed the first. "Cannot tell" is printed. How often the verdict is right, over many
more loops, is judged by `make bench`.
"""

import importlib
import sys
from pathlib import Path

import pytest
import torch

import kit

ROOT = Path(__file__).resolve().parents[1]
LETTERS = "ABCDEF"
#: The second is how long the benchmark looks.
SECONDS = (3.0, 8.0)

pytestmark = pytest.mark.usefixtures("tidy")


@pytest.fixture(scope="module")
def planted():
    """Each of the benchmark's loops with its cause."""
    sys.path.insert(0, str(ROOT / "tests" / "benchmarks"))
    try:
        rows = importlib.import_module("planted").make_planted()
        loops = sys.modules["planted.parts"].slow_loops.LOOPS
    finally:
        sys.path.pop(0)
    causes = {row.loop: row.cause for row in rows}
    return {letter: (loop, causes[loop]) for letter, loop in loops.items()}


def test_all_loops_of_the_chapter_are_here(planted):
    assert "".join(planted) == LETTERS


@pytest.mark.timeout(240)
@pytest.mark.parametrize("letter", LETTERS)
def test_no_loop_gets_a_wrong_verdict(letter, planted, capsys):
    loop, cause = planted[letter]
    torch.set_num_threads(kit.this_machine().cores)  # as the chapter does
    found = []
    for seconds in SECONDS:
        diagnosis = kit.diagnose(loop, seconds=seconds)
        found.append(diagnosis.verdict)
        with capsys.disabled():
            print(f"\n{letter}, {cause}: {diagnosis.verdict} ({diagnosis.reason})")
        if diagnosis.verdict in (cause, None):
            return
    raise AssertionError(f"{letter} suffers from {cause}; diagnosed: {found}")
