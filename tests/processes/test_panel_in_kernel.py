"""The panel in a real kernel, with the messages that a front end would send.

JupyterLab asks for a subshell, a thread beside the cells' own, unless it is told not to
(`commsOverSubshells`). ipykernel 7.4 takes it from the second press on.
"""

import pytest
from front_end import Kernel
from helpers import wait_until

SETUP = """
import threading, time, torch, kit

def nap(*, pause=1):
    open("begun", "a").close()
    assert not torch.is_grad_enabled(), "these are not the settings of cells"
    while True:
        time.sleep(0.001 * pause)
        yield 1

torch.set_grad_enabled(False)  # holds in this thread
threads = []

def note_thread(button):
    threads.append(threading.current_thread().name)
"""
NOTE = "panel._buttons[0].on_click(note_thread)"


class Buttons(Kernel):
    """A kernel whose newest panel is pressed; it remembers what it has heard."""

    def __init__(self, folder):
        super().__init__(folder)
        self.heard = []

    def _take(self, message):
        super()._take(message)
        self.heard.append(message)

    def start_subshell(self):
        client = self.client
        client.control_channel.send(client.session.msg("create_subshell_request"))
        return client.get_control_msg(timeout=20)["content"]["subshell_id"]

    def find(self, name):
        """Find the newest button of this name: its id and its state."""
        self.hear()
        widgets = self._widgets.items()
        return [found for found in widgets if found[1].get("description") == name][-1]

    def press(self, name, subshell):
        click = {"method": "custom", "content": {"event": "click"}}
        content = {"comm_id": self.find(name)[0], "data": click}
        message = self.client.session.msg("comm_msg", content)
        message["header"]["subshell_id"] = subshell
        self.client.shell_channel.send(message)
        return message["header"]["msg_id"]

    def read(self, request):
        """What a press has shown, where its panel has asked for that."""
        self.hear()
        states = [x["content"].get("data", {}).get("state", {}) for x in self.heard]
        assert {"msg_id": request} in states
        shown = [x for x in self.heard if x["msg_type"] == "display_data"]
        own = [x for x in shown if x["parent_header"]["msg_id"] == request]
        return "".join(x["content"]["data"].get("text/html", "") for x in own)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    started = Buttons(tmp_path_factory.mktemp("kernel"))
    assert not started.run(SETUP)
    yield started
    started.close()


@pytest.mark.parametrize("is_beside", [True, False], ids=["subshell", "main thread"])
def test_an_interrupt_ends_what_a_button_has_started(kernel, is_beside):
    subshell = kernel.start_subshell() if is_beside else None
    begun = kernel.folder / "begun"
    kernel.run("threads.clear()\npanel = kit.explore(nap, seconds=60)\npanel")
    kernel.run(NOTE)
    for _ in range(2):
        begun.unlink(missing_ok=True)
        request = kernel.press("Run", subshell)
        kernel.press("Run", subshell)  # a double click
        wait_until(begun.exists, 30)
        wait_until(lambda: kernel.find("Run")[1]["disabled"])
        assert not kernel.has_ended(request), "a page hears until then what is its own"
        kernel.manager.interrupt_kernel()
        wait_until(lambda: kernel.has_ended(request), 20)  # noqa: B023
        assert "Stopped" in kernel.read(request)
        wait_until(lambda: not kernel.find("Run")[1]["disabled"])
        kernel.manager.interrupt_kernel()  # nothing runs: it must live on
        assert kernel.run("print(6 * 7)") == "42\n"
    has_been_beside = "subshell" in kernel.run("print(threads)")
    assert has_been_beside == is_beside, "it tests what it says"


def test_a_button_shows_in_its_panel_what_has_come_of_it(kernel):
    subshell = kernel.start_subshell()
    kernel.run("panel = kit.explore(nap, pause=[1, 4], seconds=0.2)\npanel")
    for _ in range(2):
        request = kernel.press("Run all", subshell)
        wait_until(lambda: kernel.has_ended(request), 30)  # noqa: B023
        page = kernel.read(request)
        assert "slower" in page and "<img" in page
        wait_until(lambda: not kernel.find("Run all")[1]["disabled"])
    assert kernel.run("print(panel.result.ratio.verdict)") == "slower\n"
