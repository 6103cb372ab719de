"""A front end without a screen: a kernel, its outputs and its widgets."""

import contextlib
import os
import queue
import re
import threading

from helpers import wait_until
from jupyter_client.manager import start_new_kernel
from panels import HTML, VIEW, alt_of, history_of, text_of


class FrontEnd:
    """A kernel; `run` executes cells, `show` those that end with a panel."""

    def __init__(self, folder):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("KIT_")}
        self.manager, self.client = start_new_kernel(
            kernel_name="python3", env=environment, cwd=str(folder)
        )
        self.folder = folder
        self.widgets, self.outputs, self.numbers = {}, {}, {}
        self._displays, self._idle = {}, set()
        self._ended = threading.Event()
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

    def send(self, kind, content, **metadata):
        """Send a request on the shell channel; return its id."""
        message = self.client.session.msg(kind, content, metadata=metadata)
        self.client.shell_channel.send(message)
        return message["header"]["msg_id"]

    def start(self, code, cell="other"):
        """Start a cell; return the id of the request."""
        content = {"code": code, "silent": False, "store_history": True}
        content |= {"user_expressions": {}, "allow_stdin": False}
        return self.send("execute_request", content, cellId=cell)

    def has_ended(self, request):
        return request in self._idle

    def run(self, code, cell="other"):
        """Run a cell to its end; return what it printed. Its errors are ours."""
        request = self.start(code, cell)
        wait_until(lambda: self.has_ended(request), 30)
        return self.said(request)

    def said(self, request):
        outputs = self.outputs.get(request, [])
        errors = ["\n".join(o["traceback"]) for o in outputs if "traceback" in o]
        assert not errors, errors[0]
        return "".join(output.get("text", "") for output in outputs)

    def show(self, code, cell="panel"):
        """Run a cell that ends with a panel."""
        request = self.start(code, cell)
        wait_until(lambda: self.has_ended(request), 30)
        self.said(request)
        return ShownPanel(self, self.outputs[request])


class ShownPanel:
    """The widgets of a panel, as the kernel has described them."""

    def __init__(self, front_end, outputs):
        self.front_end, self.outputs = front_end, outputs
        (self.root,) = [
            o["data"][VIEW]["model_id"] for o in outputs if VIEW in o["data"]
        ]

    def _walk(self, name):
        yield name
        for child in self.front_end.widgets[name].get("children", []):
            yield from self._walk(child.removeprefix("IPY_MODEL_"))

    def find(self, name):
        """The id of the widget with this class of its own."""
        widgets = self.front_end.widgets
        (found,) = [
            i
            for i in self._walk(self.root)
            if name in widgets[i].get("_dom_classes", ())
        ]
        return found

    def state(self, name):
        return self.front_end.widgets[self.find(f"kit-{name}")]

    @property
    def status(self):
        return text_of(self.state("status")["value"])

    @property
    def alt(self):
        return alt_of(self.state("picture")["value"])

    @property
    def history(self):
        return history_of(self.state("words")["value"])

    @property
    def is_idle(self):
        return self.state("stop")["disabled"] and not self.state("run")["disabled"]

    @property
    def stored(self):
        """What stays when there are no widgets any more."""
        (kept,) = [o["data"] for o in self.outputs if VIEW not in o["data"]]
        return kept[HTML]

    def _tell(self, widget, data):
        content = {"comm_id": widget, "data": data}
        return self.front_end.send("comm_msg", content)

    def press(self, name):
        """Press a button, as a front end tells it."""
        event = {"method": "custom", "content": {"event": "click"}}
        return self._tell(self.find(f"kit-{name}"), event)

    def tell(self, name, **state):
        """Change a widget, as a front end tells it; the root is called panel."""
        change = {"method": "update", "state": state, "buffer_paths": []}
        return self._tell(self.find(f"kit-{name}"), change)

    def set(self, name, **state):
        """Change a widget and wait until the kernel has seen it."""
        request = self.tell(name, **state)
        wait_until(lambda: self.front_end.has_ended(request))

    def wait(self, text):
        wait_until(lambda: re.search(text, self.status), 20)

    def wait_for_rows(self, count):
        wait_until(lambda: self.is_idle and len(self.history) == count, 20)
