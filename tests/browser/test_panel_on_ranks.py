"""A panel with `on=ranks` in a real JupyterLab: Run and Stop reach all processes."""

import pytest

from browser.lab import BESIDE

SETUP = """
import os, time
import torch.distributed as dist
import kit

def train(*, pause=1):
    "Wait for each other."
    while True:
        time.sleep(0.001 * pause)
        dist.barrier()
        yield 1

ranks = kit.start_ranks(2)
"""
EXPLORE = "kit.explore(train, on=[ranks[:1], ranks], pause=[1, 4], seconds={seconds})"
WHO = "print(ranks.run(os.getpid), ranks.run(dist.get_rank))"
SCRATCH, SHORT, LONG = 1, 2, 3
CELLS = [SETUP, "0", EXPLORE.format(seconds=0.4), EXPLORE.format(seconds=600)]
#: How messages travel makes no difference here: other panels are tried both ways.
pytestmark = pytest.mark.parametrize("lab", [BESIDE], indirect=True, scope="package")


@pytest.fixture(scope="module")
def book(lab):
    lab.write("ranks", CELLS)
    opened = lab.open("ranks")
    yield opened
    opened.run(SCRATCH, "ranks.close()")
    opened.page.close()


def test_run_measures_on_as_many_ranks_as_are_chosen(book):
    shown = book.panel(SHORT)
    for number, ranks in enumerate(("1", "2"), start=1):
        shown.choose("ranks", ranks)
        shown.press("run")
        shown.wait_for_rows(number)
        shown.wait("Ready")
    assert sorted(row[1] for row in shown.rows) == ["1", "2"]
    assert "items per second" in shown.alt


def test_stop_reaches_all_ranks_and_leaves_them_as_they_are(book):
    before = book.run(SCRATCH, WHO)
    assert "[0, 1]" in before
    shown = book.panel(LONG)
    shown.choose("ranks", "2")
    shown.press("run")
    shown.wait("%")
    seconds = shown.time("stop", "Ready")
    print(f"stopped {seconds:.3f} s after the click")
    assert "stopped" in shown.rows[0][-1]
    assert book.run(SCRATCH, WHO) == before
