"""REAL: the panel in a kernel, with the messages that a front end would send."""

import contextlib
import os
import queue

import pytest
from front_end import Page
from helpers import wait_until
from jupyter_client.manager import start_new_kernel

SETUP = """
import os, time, torch, kit

def nap():
    while True:
        time.sleep(0.001)
        yield 1 / (not torch.is_grad_enabled())

torch.set_grad_enabled(False)
kit.measure(nap, seconds=0.02)  # all that is loaded on demand
"""


class Kernel:
    def __init__(self, folder):
        own = {k: v for k, v in os.environ.items() if not k.startswith("KIT_")}
        started = start_new_kernel(kernel_name="python3", env=own, cwd=str(folder))
        self.manager, self.client = started
        self.folder, self.said, self._idle, self._widgets = folder, "", set(), {}

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def hear(self):
        with contextlib.suppress(queue.Empty):
            while True:
                self._take(self.client.get_iopub_msg(timeout=0))

    def _take(self, message):
        kind, content = message["msg_type"], message["content"]
        if kind == "comm_open":
            self._widgets[content["comm_id"]] = dict(content["data"]["state"])
        elif kind == "comm_msg" and content["data"].get("method") == "update":
            self._widgets[content["comm_id"]] |= content["data"]["state"]
        elif kind in ("error", "stream"):
            self.said += content.get("text") or str(content["traceback"])
        elif kind == "status" and content["execution_state"] == "idle":
            self._idle.add(message["parent_header"].get("msg_id"))

    def find(self, name):
        """Find the newest widget with this class of its own: its id and its state."""
        self.hear()
        classes = {i: w.get("_dom_classes", ()) for i, w in self._widgets.items()}
        found = [i for i, own in classes.items() if f"kit-{name}" in own][-1]
        return found, self._widgets[found]

    def has_ended(self, request):
        self.hear()
        return request in self._idle

    def run(self, code):
        request = self.client.execute(code)
        wait_until(lambda: self.has_ended(request), 30)


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
    panel = Newest(kernel, 0.05)
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
    assert not kernel.said, "printed into another cell"


def test_where_a_button_blocks_progress_is_shown_and_an_interrupt_ends_it(kernel):
    kernel.run("os.environ['KIT_BLOCKING'] = '1'")
    panel = Newest(kernel, 60)
    request = panel.press("run")
    panel.wait("%")
    assert not kernel.has_ended(request), "the handler left the work to a thread"
    kernel.manager.interrupt_kernel()
    panel.wait("Ready", 10)
    kernel.run("del os.environ['KIT_BLOCKING']; print(6 * 7)")
    assert kernel.said == "42\n"
