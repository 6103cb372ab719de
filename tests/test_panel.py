"""The panel on the fake clock: what its controls choose, and what its buttons show."""

import asyncio
import signal

import ipywidgets
import pytest
import torch
from front_end import HTML, VIEW, alt_of, rows_of, text_of
from helpers import JOURNAL, refused

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
        self.buttons = next(x for x in root.children if inside(x)).children
        self.widgets = [*root.children, *self.buttons]

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
        """Press a button twice, as a kernel hears it: in a loop, deaf to interrupts."""

        async def click():
            for _ in range(2):
                self.find(name).click()
                assert all(button.disabled for button in self.buttons)
            await asyncio.sleep(0.3)

        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        asyncio.run(click())
        assert signal.signal(signal.SIGINT, before) == signal.SIG_IGN
        assert not any(button.disabled for button in self.buttons)


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
    def train(*, first=0, knob=None):
        yield from nap()

    shown = show(train, first=[1, 2], knob=values)
    control = shown.find("knob")
    assert (type(control).__name__, control.index) == (kind, 0)
    shown.find("first").index = control.index = 1
    shown.press("Run")
    trial = shown.panel.result
    assert trial.knobs["first"] == 2 and trial.knobs["knob"] is values[1]
    assert trial.outcome == "finished" and JOURNAL[-1] is trial
    assert ": 1,000" in alt_of(shown.page) and "range of 6 runs" in shown.page


def test_one_choice_has_nothing_to_compare(show):
    shown = show(nap)
    assert not any(x.description == "Run all" for x in shown.buttons)
    refused(shown.panel.run_all, "run_all()", "one variant only", "a list")


def test_run_all_compares_in_rounds_as_a_cell_does(show):
    shown = show(nap, pause=[1, 4], unit="ms per step", title="A <title>")
    shown.press("Run all")
    made, cell = shown.panel.result, kit.compare(nap, pause=[1, 4], seconds=1.0)
    assert made.labels == cell.labels and made.ratio.verdict == "slower"
    assert made.ratio.value == pytest.approx(cell.ratio.value)
    assert [len(trial.runs) for trial in made.trials] == [
        len(trial.runs) for trial in cell.trials
    ]
    assert rows_of(shown.page)[1][2] == "0.25" and not shown.page.count("role=")
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
    assert "<b>" not in shown.page and shown.panel.result is None
    error.clear()
    shown.press("Run")
    assert "ZeroDivisionError" not in shown.page and shown.panel.result


#: Two cold starts and a round of both come before the rest of a comparison.
STOPS = [("Run all", 6, "pause=4: 250"), ("Run all", 2, None)]
STOPS += [("Run", 3, "pause=1: 1,000"), ("Run", 1, None)]


@pytest.mark.parametrize(("button", "at", "kept"), STOPS)
def test_an_interrupt_keeps_what_was_measured(show, button, at, kept):
    starts = []

    def train(*, pause=1):
        starts.append(pause)
        if len(starts) == at:
            signal.raise_signal(signal.SIGINT)
        yield from nap(pause=pause)

    shown = show(train, pause=[1, 4])
    shown.press(button)
    assert "Stopped" in shown.page and "KeyboardInterrupt" not in shown.page
    if kept:
        made = shown.panel.result
        trials = made.trials if button == "Run all" else [made]
        assert {trial.outcome for trial in trials} == {"stopped"}
        assert kept in alt_of(shown.page)
    else:
        assert shown.panel.result is None and alt_of(shown.page) is None
    shown.press("Run all")
    assert shown.panel.result.ratio.verdict == "slower"


def test_what_is_pressed_meanwhile_and_a_double_click_start_nothing(show):
    starts = []

    def train():
        starts.append(all(button.disabled for button in shown.buttons))
        shown.find("Run").click()
        yield from nap()

    shown = show(train)
    shown.press("Run")
    assert starts == 6 * [True]
    shown.press("Run")
    assert len(starts) == 12


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
    refused(lambda: kit.explore(nap, pause=[1, 2], predict=3), "explore()", "predict=3")


OVER = "items per second over pause"
PICTURES = [({"pause": [1, 2]}, "Bars"), ({"pause": [4, 1, 2]}, OVER)]
PICTURES += [({"way": ["a", "b"], "pause": [1, 2, 4]}, OVER)]
PICTURES += [({"way": list("abc"), "pause": [1, 2]}, "Bars")]


@pytest.mark.parametrize(("choices", "kind"), PICTURES)
def test_three_numbers_are_a_line_and_other_choices_bars(choices, kind, monkeypatch):
    def train(*, pause=1, way="a"):
        yield from nap(pause=pause)

    monkeypatch.setenv("KIT_QUICK", "1")
    panel = kit.explore(train, **choices, predict=lambda pause: 900 / pause)
    panel.run_all()
    assert alt_of(panel._write()).startswith(kind)
