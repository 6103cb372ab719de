"""Front ends without a screen: how a panel is read, its widgets here or in a kernel."""

import contextlib
import html
import os
import queue
import re
import threading
from types import SimpleNamespace

import ipywidgets
from helpers import wait_until
from jupyter_client.manager import start_new_kernel

VIEW, HTML = "application/vnd.jupyter.widget-view+json", "text/html"


def text_of(markup):
    return html.unescape(re.sub(r"<[^>]+>", " ", markup)).strip()


def alt_of(markup):
    """The alt text of the picture, None where there is no picture."""
    found = re.search(r'<img[^>]*\balt="([^"]*)"', markup)
    return html.unescape(found[1]) if found else None


def rows_of(markup):
    """The rows of a table below its head, each as its cells' texts."""
    rows = re.findall(r"<tr>(.*?)</tr>", markup.partition("<tbody>")[2], re.S)
    cells = r"<t[dh][^>]*>(.*?)</t[dh]>"
    return [[text_of(c) for c in re.findall(cells, row, re.S)] for row in rows]


def is_running():
    """Whether a panel measures in the background."""
    return "kit panel" in [thread.name for thread in threading.enumerate()]


class Page:
    """A panel as it is read: `read` finds the value of a part, or if it is disabled."""

    def html(self, name):
        return self.read(name, "value")

    @property
    def status(self):
        return text_of(self.html("status"))

    @property
    def alt(self):
        return alt_of(self.html("picture"))

    @property
    def history(self):
        """The rows of what was measured one by one, the newest first."""
        return rows_of(self.html("words").partition("Measured so far")[2])

    @property
    def is_idle(self):
        return self.read("stop", "disabled") and not self.read("run", "disabled")

    def wait(self, pattern, seconds=30):
        wait_until(lambda: re.search(pattern, self.status), seconds)

    def wait_for_rows(self, count):
        wait_until(lambda: self.is_idle and len(self.history) == count, 30)


class Shown(Page):
    """A panel's widgets and outputs, as a front end has them."""

    def __init__(self, panel, monkeypatch):
        self.panel, self.outputs = panel, []
        monkeypatch.setattr("IPython.display.display", self._display)
        panel._ipython_display_()
        self.widgets = [*ipywidgets.widget._instances.values()]

    def _display(self, data, *, raw=False, display_id=None, **_):
        assert raw, "a bundle of its own making"
        place = len(self.outputs)
        self.outputs.append(dict(data))

        def update(data, raw):
            self.outputs[place] = data

        return SimpleNamespace(update=update) if display_id else None

    def find(self, name):
        """The newest widget with this class of its own."""
        own = f"kit-{name}"
        return [w for w in self.widgets if own in getattr(w, "_dom_classes", ())][-1]

    def read(self, name, what):
        return getattr(self.find(name), what)

    @property
    def stored(self):
        """What stays when there are no widgets any more."""
        return "".join(data.get(HTML, "") for data in self.outputs)

    def run(self, name="run"):
        """Press a button and wait for the result."""
        self.find(name).click()
        self.end()

    def end(self):
        """Wait until nothing runs."""
        wait_until(lambda: self.is_idle and not is_running(), 20)


class FrontEnd:
    """A kernel; `run` executes cells, `show` those that end with a panel."""

    def __init__(self, folder):
        own = {k: v for k, v in os.environ.items() if not k.startswith("KIT_")}
        started = start_new_kernel(kernel_name="python3", env=own, cwd=str(folder))
        self.manager, self.client = started
        self.folder, self.numbers, self.outputs, self.widgets = folder, {}, {}, {}
        self._displays, self._idle, self._ended = {}, set(), threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def close(self):
        self._ended.set()
        self._reader.join(5)
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def _read(self):
        while not self._ended.is_set():
            with contextlib.suppress(queue.Empty):
                self._take(self.client.get_iopub_msg(timeout=0.1))

    def _take(self, message):
        kind, content = message["msg_type"], message["content"]
        parent = message["parent_header"].get("msg_id")
        if kind == "comm_open":
            self.widgets[content["comm_id"]] = dict(content["data"]["state"])
        elif kind == "comm_msg" and content["data"].get("method") == "update":
            self.widgets[content["comm_id"]] |= content["data"]["state"]
        elif kind == "execute_input":
            self.numbers[parent] = content["execution_count"]
        elif kind in ("display_data", "execute_result", "error", "stream"):
            self.outputs.setdefault(parent, []).append(content)
            name = content.get("transient", {}).get("display_id")
            self._displays.setdefault(name, []).append(content)
        elif kind == "update_display_data":
            for shown in self._displays[content["transient"]["display_id"]]:
                shown["data"] = content["data"]
        elif kind == "status" and content["execution_state"] == "idle":
            self._idle.add(parent)

    def send(self, kind, content):
        """Send a request on the shell channel; return its id."""
        message = self.client.session.msg(kind, content)
        self.client.shell_channel.send(message)
        return message["header"]["msg_id"]

    def start(self, code):
        """Start a cell; return the id of the request."""
        content = {"code": code, "silent": False, "store_history": True}
        content |= {"user_expressions": {}, "allow_stdin": False}
        return self.send("execute_request", content)

    def has_ended(self, request):
        return request in self._idle

    def run(self, code):
        """Run a cell to its end; return what it printed. Its errors are ours."""
        request = self.start(code)
        wait_until(lambda: self.has_ended(request), 30)
        return self.said(request)

    def said(self, request):
        outputs = self.outputs.get(request, [])
        errors = ["\n".join(o["traceback"]) for o in outputs if "traceback" in o]
        assert not errors, errors[0]
        return "".join(output.get("text", "") for output in outputs)

    def show(self, code):
        """Run a cell that ends with a panel."""
        self.run(code)
        return ShownPanel(self)


class ShownPanel(Page):
    """The widgets of the newest panel, as the kernel has described them."""

    def __init__(self, front_end):
        self.front_end, self._known = front_end, [*front_end.widgets]
        self.outputs = [*front_end.outputs.values()][-1]

    def _find(self, name):
        """The id of the newest widget with this class of its own."""
        every, own = self.front_end.widgets, f"kit-{name}"
        return [i for i in self._known if own in every[i].get("_dom_classes", ())][-1]

    def read(self, name, what):
        return self.front_end.widgets[self._find(name)][what]

    @property
    def stored(self):
        """What stays when there are no widgets any more."""
        return "".join(output["data"].get(HTML, "") for output in self.outputs)

    def press(self, name):
        """Press a button, as a front end tells it."""
        return self._tell(name, {"method": "custom", "content": {"event": "click"}})

    def change(self, name, **state):
        """Change a widget, as a front end tells it."""
        said = {"method": "update", "state": state, "buffer_paths": []}
        return self._tell(name, said)

    def _tell(self, name, data):
        content = {"comm_id": self._find(name), "data": data}
        return self.front_end.send("comm_msg", content)
