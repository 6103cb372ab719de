"""How a panel is read; its widgets without a screen; a kernel without a notebook."""

import contextlib
import html
import os
import queue
import re

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
