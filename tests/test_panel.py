"""The panel on the fake clock: what its controls choose, and what its buttons show."""

import asyncio
import signal
import threading

import ipywidgets
import pytest
from front_end import HTML, VIEW, alt_of, rows_of, text_of
from helpers import JOURNAL

import kit.clock


@pytest.fixture(autouse=True)
def alone(clock, monkeypatch):
    monkeypatch.delenv("KIT_STATIC", raising=False)


def nap(*, pause=1):
    """Take a <b>nap</b>."""
    while True:
        kit.clock.CLOCK.work(0.001 * pause)
        yield 1


class Shown:
    """A panel's widgets without a screen; `page` is what its output shows."""

    def __init__(self, panel, monkeypatch):
        self.panel = panel
        self.pages = []
        monkeypatch.setattr("IPython.display.display", self._display)
        panel._ipython_display_()
        root = ipywidgets.widget._instances[self.pages.pop()[VIEW]["model_id"]]
        self.widgets = [*root.children]
        for box in root.children:
            self.widgets += getattr(box, "children", ())
        self.buttons = [x for x in self.widgets if isinstance(x, ipywidgets.Button)]

    def _display(self, data, *, raw):
        self.pages.append(data)

    @property
    def page(self):
        (output,) = (x for x in self.widgets if isinstance(x, ipywidgets.Output))
        pages = self.pages or [output["data"] for output in output.outputs]
        return pages[-1][HTML]

    def find(self, name):
        return next(x for x in self.widgets if getattr(x, "description", "") == name)

    def press(self, name):
        """Press a button twice, as a kernel hears it: in a loop, deaf to interrupts."""

        async def click():
            for _ in range(2):
                self.find(name).click()
                assert all(button.disabled for button in self.buttons)
            await asyncio.sleep(0.3)

        threads = threading.active_count()
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        asyncio.run(click())
        assert signal.signal(signal.SIGINT, before) == signal.SIG_IGN
        assert not any(button.disabled for button in self.buttons)
        assert threading.active_count() == threads


@pytest.fixture
def show(monkeypatch):
    def show_panel(*asked, **choices):
        return Shown(kit.explore(*asked, seconds=0.5, **choices), monkeypatch)

    return show_panel


@pytest.mark.parametrize("values", [[1, 2, 4], range(1, 33), ["a" * 30, "b" * 30]])
def test_run_measures_what_is_chosen(show, values):
    def train(*, first=0, knob=None):
        yield from nap()

    shown = show(train, first=[1, 2], knob=values)
    shown.find("first").index = 1
    shown.find("knob").index = 1
    shown.press("Run")
    trial = shown.panel.result
    assert trial.knobs == {"first": 2, "knob": values[1]}
    assert trial.outcome == "finished"
    assert any(each is trial for each in JOURNAL)
    assert ": 1,000" in alt_of(shown.page)


def test_run_all_compares_in_rounds_as_a_cell_does(show):
    shown = show(nap, pause=[1, 4], unit="ms per step", title="A <title>")
    shown.press("Run all")
    made = shown.panel.result
    cell = kit.compare(nap, pause=[1, 4], seconds=1.0)
    assert made.labels == cell.labels and made.ratio.verdict == "slower"
    assert made.ratio.value == pytest.approx(cell.ratio.value)
    assert len(made.baseline.runs) == len(cell.baseline.runs)
    assert rows_of(shown.page)[1][2] == "0.25"
    assert "ms per step. A <title>." in alt_of(shown.page)


def test_an_error_is_shown_with_its_notes_and_the_panel_works_again(show):
    errors = [ZeroDivisionError("<b>no</b>")]

    def train():
        if errors:
            raise errors.pop()
        yield from nap()

    shown = show(train)
    shown.press("Run")
    said, _, folded = shown.page.partition("<details>")
    assert "ZeroDivisionError: <b>no</b>\nin train(), set-up" in text_of(said)
    assert "raise errors.pop()" in folded
    assert "<b>" not in shown.page and shown.panel.result is None
    shown.press("Run")
    assert "ZeroDivisionError" not in shown.page and shown.panel.result


@pytest.mark.parametrize(
    ("button", "start", "kept"),
    [
        ("Run all", 6, "pause=4: 250"),  # after two cold starts and a round
        ("Run all", 2, None),
        ("Run", 3, "pause=1: 1,000"),
        ("Run", 1, None),
    ],
)
def test_an_interrupt_keeps_what_was_measured(show, button, start, kept):
    starts = []

    def train(*, pause=1):
        starts.append(pause)
        if len(starts) == start:
            signal.raise_signal(signal.SIGINT)
        yield from nap(pause=pause)

    shown = show(train, pause=[1, 4])
    shown.press(button)
    assert "Stopped" in shown.page and "KeyboardInterrupt" not in shown.page
    if kept:
        assert kept in alt_of(shown.page)
        made = shown.panel.result
        assert getattr(made, "baseline", made).outcome == "stopped"
    else:
        assert shown.panel.result is None and alt_of(shown.page) is None


@pytest.mark.parametrize("quick", ["0", "1"])
def test_a_stored_notebook_has_picture_and_table_and_no_widget(monkeypatch, quick):
    monkeypatch.setenv("KIT_STATIC", "1")
    monkeypatch.setenv("KIT_QUICK", quick)
    pages = []
    monkeypatch.setattr("IPython.display.display", lambda x, raw: pages.append(x))
    kit.explore(nap, pause=range(1, 9), seconds=0.5)._ipython_display_()
    (page,) = pages
    assert VIEW not in page and "over pause" in alt_of(page[HTML])
    labels = [row[0] for row in rows_of(page[HTML])]
    assert labels == [f"pause={n}" for n in range(1, 7)], "the first six"


def test_the_prediction_is_there_first_and_stays_with_what_was_measured(show):
    def predict(pause, experiment):
        return {"a": 900, "b": 800}[experiment] / pause

    shown = show({"a": nap, "b": nap}, pause=[1, 2, 4], predict=predict)
    assert "Predicted" in alt_of(shown.page) and "400" in alt_of(shown.page)
    shown.press("Run")
    assert "a, pause=1: 1,000. Predicted: a, pause=1: 900" in alt_of(shown.page)
    shown.press("Run all")
    assert "predicted, b: 1: 800; 2: 400; 4: 200" in alt_of(shown.page)
