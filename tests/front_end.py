"""How a panel is read; its widgets without a screen; a kernel without a notebook."""

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
    found = re.search(r'<img[^>]*\balt="([^"]*)"', markup)
    return html.unescape(found[1]) if found else None


def rows_of(markup):
    """The rows of a table below its head, each as its cells' texts."""
    rows = re.findall(r"<tr>(.*?)</tr>", markup.partition("<tbody>")[2], re.S)
    cells = r"<t[dh][^>]*>(.*?)</t[dh]>"
    return [[text_of(c) for c in re.findall(cells, row, re.S)] for row in rows]


def is_running():
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
        return rows_of(self.html("words").partition("Measured so far")[2])

    @property
    def is_idle(self):
        return self.read("stop", "disabled") and not self.read("run", "disabled")

    def wait(self, pattern, seconds=30):
        wait_until(lambda: re.search(pattern, self.status), seconds)

    def wait_for_rows(self, count):
        wait_until(lambda: self.is_idle and len(self.history) == count, 30)


class Shown(Page):
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
        own = f"kit-{name}"
        return [w for w in self.widgets if own in getattr(w, "_dom_classes", ())][-1]

    def read(self, name, what):
        return getattr(self.find(name), what)

    @property
    def stored(self):
        """What stays when there are no widgets any more."""
        return "".join(data.get(HTML, "") for data in self.outputs)

    def run(self, name="run"):
        self.find(name).click()
        self.end()

    def end(self):
        wait_until(lambda: self.is_idle and not is_running(), 20)


class Kernel:
    """A kernel of a notebook; `said` is what its cells have printed, and errors."""

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
            self.said += content.get("text") or "{ename}: {evalue}".format(**content)
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
        """Run a cell; return what it says."""
        before, request = len(self.said), self.client.execute(code)
        wait_until(lambda: self.has_ended(request), 60)
        return self.said[before:]
