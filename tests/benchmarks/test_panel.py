"""The panel against a cell, and how soon it answers: `make bench`."""

import math
import statistics
import time

import pytest
from browser.lab import AFTER, BESIDE, Lab, launch_chromium
from front_end import FrontEnd
from helpers import wait_until

import kit
from kit.stats import SAME

REPEATS, SECONDS = 8, 1.0
SETUP = """
import time, torch, kit
from torch.utils.data import DataLoader

class Photos:
    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        return torch.rand(64, 64).sort().values

def multiply(*, size=512):
    "Multiply matrices."
    a, b = torch.rand(size, size), torch.rand(size, size)
    while True:
        a @ b
        yield 1

def load(*, num_workers=2):
    "Let workers make batches."
    while True:
        for batch in DataLoader(Photos(), batch_size=32, num_workers=num_workers):
            yield len(batch)
"""
CASES = {
    "matrices on 1 thread": (1, "multiply, size=[512, 256]"),
    "matrices on 2 threads": (2, "multiply, size=[512, 256]"),
    "a loader with 2 workers": (1, "load, num_workers=[2, 1]"),
}
CLICKS = 5
STEP_SECONDS = 0.2
NOTEBOOK = f"""
{SETUP}
def train(*, pause=1):
    "Take one long step after the other."
    while True:
        time.sleep({STEP_SECONDS} * pause)
        yield 1

panel = kit.explore(train, pause=[1, 2], seconds=60)
panel
"""


@pytest.fixture(autouse=True, scope="module")
def conditions():
    print(f"\n{kit.this_machine()}\n")


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    front_end = FrontEnd(tmp_path_factory.mktemp("kernel"))
    front_end.run(SETUP)
    yield front_end
    front_end.close()


@pytest.mark.parametrize("case", CASES)
def test_panel_and_cell_agree_within_2_percent(kernel, case):
    threads, what = CASES[case]
    kernel.run(f"torch.set_num_threads({threads})")
    made = f"panel = kit.explore({what}, seconds={SECONDS})\npanel"
    panel, experiment = kernel.show(made), what.split(",")[0]

    def in_cell():
        code = f"print(kit.measure({experiment}, seconds={SECONDS}).items_per_second)"
        request = kernel.start(code)
        time.sleep(SECONDS)
        wait_until(lambda: time.sleep(0.2) or kernel.has_ended(request), 60)
        return float(kernel.said(request))

    def in_panel():
        count = int(kernel.run("print(len(panel.trials))"))
        panel.press("run")
        time.sleep(SECONDS)  # to look again and again would take a core away
        wait_until(lambda: time.sleep(0.2) or panel.is_idle, 60)
        assert int(kernel.run("print(len(panel.trials))")) == count + 1
        return float(kernel.run("print(panel.trials[-1].items_per_second)"))

    in_cell(), in_panel()  # what is loaded, and allocated, for the first time
    logs = []
    for repeat in range(REPEATS):
        if repeat % 2:
            cell, own = in_cell(), in_panel()
        else:
            own, cell = in_panel(), in_cell()
        logs.append(math.log(own / cell))
    ratio = math.exp(statistics.median(logs))
    ratios = ", ".join(f"{math.exp(log):.3f}" for log in sorted(logs))
    print(f"{case}: panel over cell {ratio:.4f}, median of {ratios}")
    assert 1 / SAME <= ratio <= SAME


@pytest.mark.parametrize("mode", [BESIDE, AFTER])
def test_progress_within_300_ms_and_stop_within_a_step_and_300_ms(
    mode, tmp_path_factory
):
    progress, stop = [], []
    with (
        launch_chromium() as chromium,
        Lab(tmp_path_factory.mktemp("lab"), chromium, mode) as lab,
    ):
        lab.write("bench", [NOTEBOOK])
        panel = lab.open("bench").panel(0)
        for click in range(CLICKS):
            progress.append(panel.time("run", r"train\("))
            panel.wait("%")
            stop.append(panel.time("stop", "Ready"))
            panel.wait_for_rows(click + 1)
        assert not lab.problems
    for name, times in (("progress", progress), ("stop", stop)):
        print(f"{mode}: {name} after", ", ".join(f"{1000 * t:.0f} ms" for t in times))
    assert max(progress) <= 0.3
    assert max(stop) <= STEP_SECONDS + 0.3
