"""The panel on the fake clock: what its controls choose, and what its buttons show."""

import asyncio
import signal

import ipywidgets
import pytest
import torch
from front_end import HTML, VIEW, alt_of, rows_of, text_of
from helpers import refused

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
        self.panel, self.pages = panel, []
        monkeypatch.setattr("IPython.display.display", self._display)
        panel._ipython_display_()
        root = ipywidgets.widget._instances[self.pages.pop()[VIEW]["model_id"]]
        self.widgets = [*root.children, *(b for x in root.children for b in inside(x))]

    def _display(self, data, *, raw):
        self.pages.append(data)

    @property
    def page(self):
        (output,) = (x for x in self.widgets if isinstance(x, ipywidgets.Output))
        pages = self.pages or [output["data"] for output in output.outputs]
        return pages[-1][HTML] if pages else ""

    def find(self, name):
        return next(x for x in self.widgets if getattr(x, "description", "") == name)

    def press(self, name):
        """Press a button as a kernel does: in a loop, and where interrupts wait."""

        async def click():
            self.find(name).click()
            assert self.find(name).disabled
            await asyncio.sleep(0.3)

        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        asyncio.run(click())
        assert signal.signal(signal.SIGINT, before) == signal.SIG_IGN
        assert not self.find(name).disabled


def inside(widget):
    return getattr(widget, "children", ())


@pytest.fixture
def show(monkeypatch):
    def show_panel(*asked, seconds=0.5, **choices):
        return Shown(kit.explore(*asked, seconds=seconds, **choices), monkeypatch)

    return show_panel


CONTROLS = [([1, 2, 4], "ToggleButtons"), (range(1, 33), "SelectionSlider")]
CONTROLS += [([torch.tensor([1, 2]), torch.tensor([3])], "ToggleButtons")]
CONTROLS += [(["a" * 30, "b" * 30], "Dropdown")]


@pytest.mark.parametrize(("values", "kind"), CONTROLS)
def test_run_measures_what_is_chosen_on_the_control_that_suits_it(show, values, kind):
    def train(*, knob=values[1]):
        yield from nap()

    shown = show(train, knob=values)
    control = shown.find("knob")
    assert (type(control).__name__, control.index) == (kind, 1), "not at the default"
    control.index = 0
    shown.press("Run")
    (trial,) = shown.panel.trials
    assert trial.knobs["knob"] is values[0] and trial.outcome == "finished"
    assert ": 1,000" in alt_of(shown.page) and "range of 6 runs" in shown.page


def test_code_may_choose_too_and_only_what_can_be_chosen():
    panel = kit.explore({"a": nap, "b": nap}, pause=[1, 2])
    trial = panel.run(experiment="b", pause=2)
    assert (trial.experiment, trial.knobs) == ("b", {"pause": 2})
    refused(lambda: panel.run(pause=3), "pause=3", "1, 2", "explore(pause=")
    refused(kit.explore(nap).run_all, "one variant only", "a list")
    assert panel.trials == [trial] and panel.comparison is None


def test_run_all_compares_in_rounds_as_a_cell_does(show):
    shown = show(nap, pause=[1, 4], unit="ms per step", title="A <title>")
    shown.press("Run all")
    made, cell = shown.panel.comparison, kit.compare(nap, pause=[1, 4], seconds=1.0)
    assert made.labels == cell.labels and made.ratio.verdict == "slower"
    assert made.ratio.value == pytest.approx(cell.ratio.value)
    assert [len(trial.runs) for trial in made.trials] == [
        len(trial.runs) for trial in cell.trials
    ]
    assert shown.panel.trials == made.trials and rows_of(shown.page)[1][2] == "0.25"
    assert "Bars, ms per step. A <title>." in alt_of(shown.page)


def test_an_error_is_shown_with_its_notes_and_the_panel_works_again(show):
    error = [ZeroDivisionError("<b>no</b>")]

    def train():
        for items in nap():
            if error:
                raise error[0]
            yield items

    shown = show(train)
    shown.press("Run")
    said, _, folded = shown.page.partition("<details>")
    assert "ZeroDivisionError: <b>no</b>\nin train(), set-up" in text_of(said)
    assert 'role="alert"' in said.replace("'", '"') and "raise error[0]" in folded
    assert "<b>" not in shown.page and shown.panel.trials == []
    error.clear()
    shown.press("Run")
    assert "ZeroDivisionError" not in shown.page and len(shown.panel.trials) == 1


def test_an_interrupt_keeps_what_was_measured(show):
    starts = []

    def train(*, pause=1):
        starts.append(pause)
        if len(starts) == 6:  # two cold starts, a round of both, and one more
            signal.raise_signal(signal.SIGINT)
        yield from nap(pause=pause)

    shown = show(train, pause=[1, 4])
    shown.press("Run all")
    made = shown.panel.comparison
    assert [trial.outcome for trial in made.trials] == ["stopped"] * 2
    assert made.ratio.value == pytest.approx(0.25) and "pause=4: 250" in shown.page
    assert "Stopped" in shown.page and "KeyboardInterrupt" not in shown.page
    shown.press("Run all")
    assert shown.panel.comparison.ratio.verdict == "slower"


@pytest.mark.parametrize("quick", ["0", "1"])
def test_a_stored_notebook_has_picture_and_table_and_no_widget(monkeypatch, quick):
    monkeypatch.setenv("KIT_STATIC", "1")
    monkeypatch.setenv("KIT_QUICK", quick)
    pages = []
    monkeypatch.setattr("IPython.display.display", lambda x, raw: pages.append(x))
    kit.explore(nap, pause=range(1, 9), seconds=0.5)._ipython_display_()
    (page,) = pages
    assert page["text/plain"] == "Panel of nap: pause" and VIEW not in page
    assert "over pause" in alt_of(page[HTML]) and "first 6 of 8" in text_of(page[HTML])
    assert [row[0] for row in rows_of(page[HTML])] == [
        f"pause={n}" for n in range(1, 7)
    ]


def test_the_prediction_is_there_first_and_stays_beside_what_was_measured(show):
    def predict(pause, experiment):
        return {"a": 900, "b": 800}[experiment] / pause

    shown = show({"a": nap, "b": nap}, pause=[1, 2, 4], predict=predict)
    assert "Predicted" in alt_of(shown.page) and "400" in alt_of(shown.page)
    shown.press("Run")
    assert "a, pause=1: 1,000. Predicted: a, pause=1: 900" in alt_of(shown.page)
    shown.press("Run all")
    assert "predicted, b: 1: 800; 2: 400; 4: 200" in alt_of(shown.page)
    wrong = (3, lambda pause: {}[pause], lambda pause: 1 / (2 - pause))
    for model in wrong:
        refused(lambda m=model: kit.explore(nap, pause=[1, 2], predict=m), "explore()")


PICTURES = [({"pause": [1, 2]}, "Bars"), ({"pause": [1, 4, 2]}, "Bars")]
PICTURES += [({"pause": [4, 2, 1]}, "items per second over pause")]
PICTURES += [({"way": ["a", "b"], "pause": [1, 2, 4]}, "items per second over pause")]
PICTURES += [({"way": list("abcd"), "pause": [1, 2, 4]}, "Bars")]


@pytest.mark.parametrize(("choices", "kind"), PICTURES)
def test_ordered_numbers_are_a_line_and_other_choices_bars(choices, kind, monkeypatch):
    def train(*, pause=1, way="a"):
        yield from nap(pause=pause)

    monkeypatch.setenv("KIT_QUICK", "1")
    panel = kit.explore(train, **choices, predict=lambda pause: 900 / pause)
    panel.run_all()
    assert alt_of(panel._write()).startswith(kind)
