"""A panel without a front end: its widgets and outputs, and how they are read."""

import html
import re
import threading

import ipywidgets as widgets
from helpers import wait_until

VIEW, HTML = "application/vnd.jupyter.widget-view+json", "text/html"
#: Outcomes of a run that nothing has ended or disturbed; warm-up takes longer on a
#: machine that is busy.
WHOLE = ("complete", "not settled")


class Shown:
    """A panel's widgets and outputs, as a front end has them."""

    def __init__(self, panel, monkeypatch):
        self.panel, self.outputs = panel, []
        monkeypatch.setattr("IPython.display.display", self._display)
        panel._ipython_display_()
        views = [data[VIEW] for data in self.outputs if VIEW in data]
        known = widgets.widget._instances
        self.widgets = [w for v in views for w in walk(known[v["model_id"]])]

    def _display(self, data, *, raw=False, display_id=None, **_):
        assert raw, "a bundle of its own making"
        self.outputs.append(dict(data))
        return Handle(self.outputs) if display_id else None

    def find(self, name):
        """The widget with this class of its own."""
        (found,) = [w for w in self.widgets if name in w._dom_classes]
        return found

    def knob(self, name):
        return self.find(f"kit-knob-{name}")

    def html(self, name):
        return self.find(f"kit-{name}").value

    @property
    def status(self):
        return text_of(self.html("status"))

    @property
    def alert(self):
        """What is said about an error, without its traceback; empty without one."""
        found = re.search(
            r'<div role="alert"[^>]*>(.*?)</div>', self.html("status"), re.S
        )
        return text_of(found[1]) if found else ""

    @property
    def alt(self):
        return alt_of(self.html("picture"))

    @property
    def history(self):
        return history_of(self.html("words"))

    @property
    def compared(self):
        return compared_of(self.html("words"))

    @property
    def is_idle(self):
        return self.find("kit-stop").disabled and not self.find("kit-run").disabled

    @property
    def stored(self):
        """What stays when there are no widgets any more."""
        (kept,) = [data[HTML] for data in self.outputs if VIEW not in data]
        return kept

    def press(self, name):
        self.find(f"kit-{name}").click()

    def run(self, name="run"):
        """Press a button and wait for the result."""
        self.press(name)
        wait_until(lambda: self.is_idle, 20)
        wait_until(lambda: "kit panel" not in [t.name for t in threading.enumerate()])


class Handle:
    def __init__(self, outputs):
        self.outputs, self.place = outputs, len(outputs) - 1

    def update(self, data, *, raw=False, **_):
        assert raw
        self.outputs[self.place] = dict(data)


def walk(widget):
    """A widget and all that it holds."""
    yield widget
    for child in getattr(widget, "children", ()):
        yield from walk(child)


def text_of(markup):
    return html.unescape(re.sub(r"<[^>]+>", " ", markup)).strip()


def alt_of(markup):
    """The alt text of the picture, None where there is no picture."""
    found = re.search(r'<img[^>]*\balt="([^"]*)"', markup)
    return html.unescape(found[1]) if found else None


def rows_of(markup):
    """The rows of a table below its head, each as its cells' texts."""
    body = re.search(r"<tbody>(.*)</tbody>", markup, re.S)
    rows = re.findall(r"<tr>(.*?)</tr>", body[1], re.S) if body else []
    cells = r"<t[dh][^>]*>(.*?)</t[dh]>"
    return [[text_of(c) for c in re.findall(cells, row, re.S)] for row in rows]


def history_of(words):
    """The rows of what was measured one by one, below a panel's picture."""
    _, said, table = words.partition("Measured so far")
    return rows_of(table) if said else []


def compared_of(words):
    """The rows of the comparison of all, if that is what is shown."""
    return rows_of(words.partition("Measured so far")[0])
