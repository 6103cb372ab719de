"""The panel works in a real kernel, with the messages that a front end would send."""

import pytest
from front_end import Kernel, Page

SETUP = """
import os, time, torch, kit

def nap():
    while True:
        time.sleep(0.001)
        yield 1 / (not torch.is_grad_enabled())

torch.set_grad_enabled(False)
kit.measure(nap, seconds=0.02)  # all that is loaded on demand
"""


class Newest(Page):
    def __init__(self, kernel, seconds):
        self.kernel = kernel
        kernel.run(f"panel = kit.explore(nap, seconds={seconds})\npanel")

    def read(self, name, what):
        return self.kernel.find(name)[1][what]

    def press(self, name):
        click = {"method": "custom", "content": {"event": "click"}}
        content = {"comm_id": self.kernel.find(name)[0], "data": click}
        message = self.kernel.client.session.msg("comm_msg", content)
        self.kernel.client.shell_channel.send(message)
        return message["header"]["msg_id"]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    started = Kernel(tmp_path_factory.mktemp("kernel"))
    started.run(SETUP)
    yield started
    started.close()


def test_what_is_pressed_while_a_cell_runs_is_heard_after_it(kernel):
    kernel.run("torch.set_grad_enabled(True)")
    count = "print(len(get_ipython().events.callbacks['pre_run_cell']))"
    panel, listeners = Newest(kernel, 0.05), kernel.run(count)
    wait = "while not os.path.exists('seen'): time.sleep(0.01)"
    kernel.client.execute(f"{wait}\ntorch.set_grad_enabled(False)")
    panel.press("run")
    (kernel.folder / "seen").touch()
    panel.wait_for_rows(1)
    panel.wait("Ready")  # an error, had it run with the settings of an earlier cell
    assert "disturbed" not in panel.history[0][-1]
    kernel.run("torch.set_grad_enabled(True)")
    panel.press("run")
    panel.wait("ZeroDivisionError")
    kernel.run("torch.set_grad_enabled(False)")
    assert kernel.run(count) == listeners, "it listens to cells after its run"
    assert kernel.said == 2 * listeners, "printed into another cell"


def test_where_a_button_blocks_progress_is_shown_and_an_interrupt_ends_it(kernel):
    kernel.run("os.environ['KIT_BLOCKING'] = '1'")
    panel = Newest(kernel, 60)
    request = panel.press("run")
    panel.wait("%")
    assert not kernel.has_ended(request), "the handler left the work to a thread"
    kernel.manager.interrupt_kernel()
    panel.wait("Ready", 10)
    kernel.run("del os.environ['KIT_BLOCKING']; print(6 * 7)")
    assert kernel.said.endswith("\n42\n")
