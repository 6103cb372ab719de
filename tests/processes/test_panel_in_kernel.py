"""REAL: the panel in a kernel, with the messages that a front end would send."""

import pytest
from front_end import HTML, VIEW, FrontEnd, alt_of, rows_of
from helpers import wait_until

SETUP = """
import os, time, torch, kit

def nap(*, pause=1):
    while True:
        time.sleep(0.001 * pause)
        nap.seen = torch.is_grad_enabled()
        yield 1 / (pause != 5)

kit.measure(nap, seconds=0.02)  # all that is loaded on demand
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    front_end = FrontEnd(tmp_path_factory.mktemp("kernel"))
    front_end.run(SETUP)
    yield front_end
    front_end.close()


def show(kernel, seconds):
    made = f"panel = kit.explore(nap, pause=[1, 5, 8], seconds={seconds})"
    return kernel.show(f"{made}\npanel")


def test_what_is_pressed_while_a_cell_runs_is_heard_after_it_and_stored(kernel):
    panel = show(kernel, 0.05)
    (view,) = [o["data"] for o in panel.outputs if VIEW in o["data"]]
    assert view["text/plain"] == "Panel of nap: pause" and HTML not in view
    wait = "while not os.path.exists('seen'): time.sleep(0.01)"
    kernel.start(f"{wait}\ntorch.set_grad_enabled(False)")
    panel.change("knob-pause", index=2)
    panel.press("run")
    (kernel.folder / "seen").touch()
    panel.wait_for_rows(1)
    (row,) = panel.history
    assert row[1] == "8" and "disturbed" not in row[-1]
    seen = kernel.run("print(nap.seen); _ = torch.set_grad_enabled(True)")
    assert seen == "False\n", "it ran with the settings of an earlier cell"
    wait_until(lambda: rows_of(panel.stored) == panel.history)
    assert alt_of(panel.stored) == panel.alt and row[2] in panel.alt
    panel.change("knob-pause", index=1)
    panel.press("run")
    panel.wait("ZeroDivisionError")
    said = [o for outputs in kernel.outputs.values() for o in outputs if "text" in o]
    assert "ZeroDivisionError" not in str(said), "printed into another cell"


def test_where_a_button_blocks_progress_is_shown_and_an_interrupt_ends_it(kernel):
    kernel.run("os.environ['KIT_BLOCKING'] = '1'")
    panel = show(kernel, 60)
    request = panel.press("run")
    panel.wait("%")
    assert not kernel.has_ended(request), "the handler left the work to a thread"
    kernel.manager.interrupt_kernel()
    panel.wait("Ready", 10)
    assert kernel.run("del os.environ['KIT_BLOCKING']; print(7)") == "7\n"
