"""The gallery: what it accepts, what it tells, what its buttons and its calls do."""

import functools
import html
import inspect
import os
import re
import subprocess
import sys
import threading
import time

import ipywidgets as widgets
import pytest
import torch
from helpers import (
    THREADS,
    change_everything,
    children,
    reader_state,
    refused,
    wait_until,
)
from panels import HTML, VIEW, Shown, alt_of, rows_of, text_of
from test_panel import Holder, settings

import kit
from kit.diagnosis import Diagnosis
from kit.diagnosis.advice import ADVICE
from kit.diagnosis.diagnosing import diagnose_watched
from kit.experiment import ExperimentError
from kit.panel import Gallery
from kit.panel.findings import CAUSES, NOTHING, Finding
from kit.progress import Progress, Stopped
from kit.trial import JOURNAL

#: Long enough for a sure verdict on a loop that does next to nothing but sleep.
SHORT = 0.3


@pytest.fixture(autouse=True)
def alone(tidy, monkeypatch, tmp_path):
    """No way of showing asked for."""
    monkeypatch.chdir(tmp_path)
    for name in ("KIT_STATIC", "KIT_BLOCKING"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def show(monkeypatch):
    """Show galleries; whatever still runs is stopped at the end."""
    shown = []

    def show_gallery(gallery):
        shown.append(Shown(gallery, monkeypatch))
        return shown[-1]

    yield show_gallery
    for one in shown:
        one.panel.close()
    wait_until(lambda: "kit panel" not in [t.name for t in threading.enumerate()], 20)


def nap():
    """Rest between steps."""
    weight = torch.ones(4, 4, requires_grad=True)
    while True:
        (weight @ weight).sum().backward()
        time.sleep(0.004)
        yield 1


def multiply(*, size=32):
    """Multiply <matrices> & more."""
    weight = torch.ones(size, size, requires_grad=True)
    while True:
        (weight @ weight).sum().backward()
        yield 1


@functools.cache
def diagnosis_of(loop):
    """A sure diagnosis, made once."""
    return kit.diagnose(loop, seconds=SHORT)


def make_gallery(loops=None, *, seconds=SHORT):
    return Gallery(loops or {"A": nap, "B": multiply}, seconds=seconds)


# What it accepts


def test_the_signature_is_loops_and_seconds():
    parameters = inspect.signature(Gallery).parameters
    assert list(parameters) == ["loops", "seconds"]
    assert parameters["seconds"].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize("nothing", [{}, None, [], nap, "A"], ids=repr)
def test_no_loops_by_name_are_refused(nothing):
    refused(lambda: Gallery(nothing), "Gallery()", "by name")


def test_what_is_no_experiment_is_refused():
    def train(*, lr=0.1):
        raise AssertionError("it was called to find out what it is")

    def needs(*, lr):
        yield lr

    refused(lambda: Gallery({"A": nap, "B": 3}), "Gallery()", "3")
    refused(lambda: Gallery({"A": train}), "Gallery()", "train", "yield n")
    refused(lambda: Gallery({"A": nap()}), "Gallery()", "nap")
    refused(lambda: Gallery({"A": needs}), "Gallery()", "needs", "lr")


@pytest.mark.parametrize("seconds", [0, -1, True, None, "2", float("nan")])
def test_a_time_that_is_none_is_refused(seconds):
    said = f"seconds={seconds!r}"
    refused(lambda: Gallery({"A": nap}, seconds=seconds), "Gallery()", said)


def test_run_refuses_what_is_not_there():
    gallery = make_gallery()
    refused(lambda: gallery.run("C"), "Gallery.run", "name='C'", "'A', 'B'")
    refused(lambda: gallery.run(nap), "Gallery.run", "name=", "'A', 'B'")
    told = ("Gallery.run", "guess='loader'", "'input'", "'nothing'")
    refused(lambda: gallery.run("A", guess="loader"), *told)
    assert gallery.diagnoses == {}


def test_the_repr_is_constant(smoke):
    gallery = make_gallery()
    assert repr(gallery) == "Gallery of 2 loops: A, B"
    gallery.run("A")
    gallery.close()
    assert repr(gallery) == "Gallery of 2 loops: A, B"
    assert repr(make_gallery({"mine": nap})) == "Gallery of 1 loop: mine"


def test_every_verdict_can_be_guessed():
    assert set(CAUSES) == {*ADVICE, NOTHING}
    assert len(set(CAUSES.values())) == len(CAUSES)


# From code


def test_run_returns_the_diagnosis_that_a_cell_gets():
    gallery = make_gallery()
    found = gallery.run("A", guess="python")
    assert isinstance(found, Diagnosis)
    assert found.verdict == "python" and found.call == "nap()"
    assert gallery.diagnoses == {"A": found}
    cell = diagnosis_of(nap)
    assert (cell.verdict, cell.call) == (found.verdict, found.call)
    assert list(cell.shares) == list(found.shares)


def test_a_diagnosis_is_not_recorded(smoke):
    before = len(JOURNAL)
    make_gallery().run("A")
    assert len(JOURNAL) == before


def test_knobs_are_at_their_defaults(smoke):
    assert make_gallery().run("B").call == "multiply(size=32)"


def test_run_waits_until_it_is_stopped_and_says_so():
    gallery = make_gallery(seconds=60)
    threading.Timer(0.5, gallery.stop).start()
    begun = time.monotonic()
    with pytest.raises(ExperimentError) as caught:
        gallery.run("A", guess="input")
    assert time.monotonic() - begun < 20
    assert "stopped" in str(caught.value) and "A" in str(caught.value)
    assert gallery.diagnoses == {}
    assert rows_of(gallery.results.history())[0][3] == "stopped"


def test_half_a_diagnosis_is_none():
    from kit.experiment import resolve

    progress = Progress("diagnosing")
    progress.report = lambda find: progress.stop()  # while causes are left out
    with pytest.raises(Stopped):
        diagnose_watched(resolve(nap), {}, progress, 2.0)
    assert progress.fraction > 0


# Guesses


@pytest.mark.parametrize(
    ("guess", "verdict", "right"),
    [
        ("input", "input", True),
        ("input", "threads", False),
        (None, "input", None),
        ("compute", "compute", True),
        (NOTHING, "compute", True),
        (NOTHING, "input", False),
        ("input", "compute", False),
        ("input", None, None),
        (NOTHING, None, None),
    ],
)
def test_a_guess_is_right_where_it_is_the_verdict(guess, verdict, right):
    finding = Finding("A", guess, verdict)
    assert finding.is_right is right
    assert finding.mark == {True: "✓", False: "✗", None: ""}[right]
    sentence = finding.sentence()
    assert (CAUSES[guess] in sentence) if guess else ("guess" not in sentence)
    assert (CAUSES[verdict] in sentence) if verdict else ("no sure cause" in sentence)


def test_a_failed_diagnosis_judges_no_guess():
    finding = Finding("A", "input", failure="stopped")
    assert finding.is_right is None and finding.found == "stopped"


def test_the_history_says_how_many_guesses_were_right(show):
    gallery = make_gallery()
    for guess in ("python", "input", None):
        gallery.results.add("A", guess, diagnosis_of(nap))
    shown = show(gallery)
    rows = shown.history
    assert [row[0] for row in rows] == ["3", "2", "1"]
    guesses = ["no guess", CAUSES["input"], CAUSES["python"]]
    assert [row[2] for row in rows] == guesses
    assert {row[3] for row in rows} == {CAUSES["python"]}
    assert all("%" in row[4] for row in rows)
    assert [row[5] for row in rows] == ["", "✗", "✓"]
    assert "1 of 2 guesses were right" in text_of(shown.html("history"))


def test_a_long_history_is_cut(smoke):
    findings = make_gallery().results
    for _ in range(15):
        findings.stop("A", None)
    rows = rows_of(findings.history())
    assert [row[0] for row in rows] == [str(n) for n in range(15, 3, -1)]
    assert "3 earlier" in text_of(findings.history())


# Controls


def test_before_a_run_there_are_loops_guesses_and_code(show):
    shown = show(make_gallery())
    loop, guess = shown.knob("loop"), shown.find("kit-guess")
    assert isinstance(loop, widgets.ToggleButtons) and loop.value == "A"
    assert [value for _, value in loop.options] == ["A", "B"]
    names = [name for name, _ in guess.options]
    assert names == ["no guess", *CAUSES.values()] and guess.value == ""
    assert guess.description == "your guess"
    assert code_of(shown.html("source")) == inspect.getsource(nap)
    assert "Ready" in shown.status and shown.is_idle
    assert shown.alt is None and not shown.history
    assert not shown.html("summary") and not shown.html("advice")


@pytest.fixture
def done(show):
    """A gallery of which both loops were diagnosed, A being chosen."""
    gallery = make_gallery()
    gallery.results.add("A", "python", diagnosis_of(nap))
    gallery.results.add("B", None, diagnosis_of(multiply))
    return show(gallery)


def test_the_button_diagnoses_the_chosen_loop_with_the_guess(show):
    shown = show(make_gallery())
    shown.knob("loop").value = "A"
    shown.find("kit-guess").value = "input"
    shown.press("run")
    wait_until(lambda: "diagnosing A" in shown.status)
    assert not shown.is_idle
    shown.find("kit-guess").value = "python"  # too late
    wait_until(lambda: shown.is_idle and shown.history, 20)
    wait_until(lambda: "Ready" in shown.status)
    found = shown.panel.diagnoses["A"]
    assert found.verdict == "python"
    told = text_of(shown.html("summary"))
    assert f"✗ You guessed {CAUSES['input']}; it is {CAUSES['python']}." in told
    assert 'role="status"' in shown.html("summary")
    assert shown.alt and found.headline() in shown.alt
    advice = text_of(shown.html("advice"))
    assert found.advice.sentence in advice and found.advice.code in advice
    assert shown.history[0][1:4] == ["A", CAUSES["input"], CAUSES["python"]]
    assert shown.find("kit-progress").value == 0


def test_choosing_a_loop_shows_its_code_and_what_was_found(done):
    first = [done.html(name) for name in ("source", "summary", "picture", "advice")]
    done.find("kit-guess").value = "sync"
    done.knob("loop").value = "B"
    assert code_of(done.html("source")) == inspect.getsource(multiply)
    assert "multiply(size=32)" in done.alt
    assert done.html("picture") != first[2]
    assert done.find("kit-guess").value == "", "it was a guess about another loop"
    assert len(done.history) == 2, "choosing starts nothing"
    done.knob("loop").value = "A"
    names = ("source", "summary", "picture", "advice")
    assert [done.html(name) for name in names] == first


def test_two_clicks_are_one_diagnosis(show, smoke):
    shown = show(make_gallery())
    shown.press("run")
    shown.press("run")
    wait_until(lambda: shown.is_idle and shown.history, 20)
    time.sleep(0.1)
    assert len(shown.history) == 1


def test_where_updates_need_it_the_button_itself_diagnoses(show, smoke, monkeypatch):
    monkeypatch.setenv("KIT_BLOCKING", "1")
    shown = show(make_gallery())
    shown.press("run")
    assert shown.is_idle and shown.alt and len(shown.history) == 1


@pytest.mark.parametrize("phases", [["recording"], ["recording", "warming up"]])
def test_stop_ends_a_diagnosis_and_keeps_an_earlier_one(show, phases):
    gallery = make_gallery(seconds=6)
    gallery.results.add("A", None, diagnosis_of(nap))
    shown = show(gallery)
    shown.press("run")
    for phase in phases:
        wait_until(lambda phase=phase: phase in shown.status, 20)
    begun = time.monotonic()
    shown.press("stop")
    wait_until(lambda: shown.is_idle and len(shown.history) == 2)
    print(f"stopped after {time.monotonic() - begun:.2f} s")
    assert shown.history[0][3] == "stopped" and shown.history[0][5] == ""
    assert shown.alt, "nothing better was found"
    assert not children()


def test_a_diagnosis_waits_for_another_measurement(show, smoke):
    shown = show(make_gallery())
    with Holder("measuring train(lr=0.1)"):
        shown.press("run")
        wait_until(lambda: "waiting" in shown.status)
        assert "train(lr=0.1)" in shown.status and not shown.history
    wait_until(lambda: shown.is_idle and shown.history, 20)
    assert "A" in shown.panel.diagnoses


def test_a_waiting_diagnosis_can_be_stopped(show, smoke):
    shown = show(make_gallery())
    with Holder("measuring train(lr=0.1)"):
        shown.press("run")
        wait_until(lambda: "waiting" in shown.status)
        shown.press("stop")
        wait_until(lambda: shown.is_idle and shown.history)
    assert shown.history[0][3] == "stopped"


def test_closing_puts_the_controls_out_of_service(show):
    shown = show(make_gallery(seconds=60))
    shown.press("run")
    wait_until(lambda: "diagnosing A" in shown.status)
    shown.panel.close()
    wait_until(lambda: "kit panel" not in [t.name for t in threading.enumerate()], 20)
    assert shown.find("kit-run").disabled and shown.find("kit-stop").disabled
    assert "run its cell again" in shown.status


# The code that is shown


def code_of(markup):
    return html.unescape(re.sub(r"</?pre[^>]*>", "", markup))


def test_the_code_is_escaped_and_can_be_scrolled_by_keyboard(show):
    shown = show(make_gallery({"<B>": multiply}))
    source = shown.html("source")
    assert "<matrices>" not in source and "&lt;matrices&gt; &amp; more" in source
    assert code_of(source) == inspect.getsource(multiply)
    assert 'tabindex="0"' in source
    assert 'aria-label="source of loop &lt;B&gt;"' in source


def test_of_a_partial_the_function_is_shown(show):
    shown = show(make_gallery({"B": functools.partial(multiply, size=8)}))
    assert code_of(shown.html("source")) == inspect.getsource(multiply)


def test_code_that_cannot_be_read_is_no_error(show):
    scope = {}
    exec("def train():\n    while True:\n        yield 1", scope)
    shown = show(make_gallery({"A": scope["train"]}))
    assert "code of train cannot be read" in shown.html("source")


# Failing


def fails(*, works=[True]):  # noqa: B006 (one list for all calls)
    """Work for a while."""
    for step in range(10**9):
        if step > 3 and not works[0]:
            raise ZeroDivisionError("<b>no</b> & never")
        time.sleep(0.002)
        yield 1


@pytest.fixture
def works():
    """What tells `fails` whether to work; it does, at the end."""
    flag = inspect.signature(fails).parameters["works"].default
    yield flag
    flag[0] = True


def test_an_error_of_the_loop_is_shown_and_clears_the_old_result(show, smoke, works):
    gallery = make_gallery({"A": fails})
    shown = show(gallery)
    shown.run()
    assert shown.alt
    works[0] = False
    shown.run()
    assert shown.alt is None and not shown.html("summary")
    assert "fails(" in shown.alert and "<b>no</b> & never" in shown.alert
    assert "ZeroDivisionError" in text_of(shown.html("status"))
    assert "<b>no" not in shown.html("status") + shown.html("history")
    assert "ZeroDivisionError" in shown.history[0][3]
    assert gallery.diagnoses == {}
    with pytest.raises(ExperimentError, match="ZeroDivisionError"):
        gallery.run("A")
    works[0] = True
    shown.run()
    assert shown.alt and not shown.alert


# The caller's state


@pytest.mark.parametrize("way", ["button", "code"])
def test_a_diagnosis_sees_the_callers_state_and_leaves_it(show, smoke, way):
    seen = []

    def look():
        seen.append((settings(reader_state()), threading.get_ident()))
        while True:
            torch.ones(4, 4).sum()
            time.sleep(0.002)
            yield 1

    change_everything()
    gallery = make_gallery({"A": look})
    shown = show(gallery)
    before = reader_state()
    shown.run() if way == "button" else gallery.run("A")
    assert "A" in gallery.diagnoses and reader_state() == before
    assert seen[0][0] == settings(before)
    assert {thread == threading.get_ident() for _, thread in seen} == {way == "code"}


def test_threads_are_as_many_as_before(show, smoke):
    def crowd():
        torch.set_num_threads(4)
        yield from multiply()

    shown = show(make_gallery({"A": crowd}))
    shown.run()
    assert not shown.alert and torch.get_num_threads() == THREADS
    assert not torch.autograd._profiler_enabled()


# Stored


def test_static_invites_and_gives_nothing_away(monkeypatch, smoke):
    monkeypatch.setenv("KIT_STATIC", "1")
    started = []

    def train():
        started.append(True)
        yield from nap()

    gallery = make_gallery({"A": train, "B": nap})
    (data,) = Shown(gallery, monkeypatch).outputs
    assert not started and VIEW not in data
    assert data["text/plain"] == "Gallery of 2 loops: A, B"
    assert "A, B" in data[HTML] and "press Diagnose" in data[HTML]
    gallery.run("A", guess="python")
    assert Shown(gallery, monkeypatch).outputs == [data]


def test_a_stored_notebook_keeps_the_invitation_and_the_history(done):
    (view,) = [data for data in done.outputs if VIEW in data]
    assert view["text/plain"] == repr(done.panel) and HTML not in view
    assert "press Diagnose" in done.stored
    assert rows_of(done.stored) == done.history
    assert alt_of(done.stored) is None
    # Its class is hidden by a style that lives in the widget, so it comes back with
    # a stored notebook.
    name = re.search(r'class="([\w-]+)"', done.stored)[1]
    styles = "".join(w.value for w in done.widgets if isinstance(w, widgets.HTML))
    hides = rf"\.{name}\s*{{\s*display:\s*none"
    assert re.search(hides, styles) and not re.search(hides, done.stored)


def test_from_code_there_are_no_widgets_and_no_noise():
    """The profiler's first use is in another thread than the one of the cells."""
    code = """
import sys, time
from kit.panel import Gallery
def train():
    while True:
        time.sleep(0.001); yield 1
gallery = Gallery({"A": train})
gallery.start("A", "python")
gallery.driver.join()
assert "A" in gallery.diagnoses, gallery.results.error
assert not {"ipywidgets", "matplotlib"} & set(sys.modules)
"""
    environment = os.environ | {"KIT_SMOKE": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, timeout=90, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_button_has_the_threads_of_when_the_gallery_was_made():
    seen = []

    def look():
        while True:
            seen.append(torch.get_num_threads())
            time.sleep(0.002)
            yield 1

    torch.set_num_threads(2)
    gallery = Gallery({"A": look}, seconds=SHORT)
    torch.set_num_threads(1)
    gallery.start("A", None)
    wait_until(lambda: gallery.diagnoses, 30)
    assert seen[0] == 2
    assert torch.get_num_threads() == 1
