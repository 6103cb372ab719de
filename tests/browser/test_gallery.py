"""`kit.panel.Gallery` in a real JupyterLab: guess, diagnose, stop, look again."""

import nbformat
import pytest

from browser.lab import BESIDE, wait_until
from browser.test_panel import CONTRASTS, OVERFLOW, THEME

SETUP = """
import time
import torch
from kit.panel import Gallery

works = [1]

def nap():
    "Rest between steps."
    weight = torch.ones(4, 4, requires_grad=True)
    while True:
        (weight @ weight).sum().backward()
        time.sleep(0.004 / works[0])
        yield 1

def other():
    "Multiply a matrix."
    while True:
        torch.ones(32, 32).square().sum()
        yield 1
"""
GALLERY = "Gallery({{'A': nap, 'B': other}}, seconds={seconds})"
SCRATCH, SHORT, LONG = 1, 2, 3
CELLS = [SETUP, "0", GALLERY.format(seconds=0.5), GALLERY.format(seconds=60)]
HARMLESS = ("favicon", "ResizeObserver")
#: How messages travel makes no difference here: `explore` is tried both ways.
pytestmark = pytest.mark.parametrize("lab", [BESIDE], indirect=True, scope="package")


@pytest.fixture(scope="module")
def opened(lab):
    lab.write("gallery", CELLS)
    book = lab.open("gallery")
    yield book
    book.page.close()


@pytest.fixture
def book(opened):
    """The notebook; no error was seen in the browser's console."""
    opened.lab.problems.clear()
    yield opened
    seen = [p for p in opened.lab.problems if not any(word in p for word in HARMLESS)]
    assert not seen


def choose_guess(shown, words):
    """Choose in the list as a reader does who finds it by its label."""
    shown.root.get_by_label("your guess").select_option(label=words)


def test_a_guess_and_its_diagnosis(book):
    shown = book.panel(SHORT)
    assert "Ready" in shown.status and not shown.rows
    shown.choose("loop", "B")
    source = shown.root.get_by_role("region", name="source of loop B")
    assert "def other():" in source.inner_text()
    shown.choose("loop", "A")
    wait_until(lambda: "def nap():" in shown.find("source").inner_text())
    choose_guess(shown, "waiting for data")
    seconds = shown.time("run", "diagnosing A")
    print(f"progress {seconds:.3f} s after the click")
    shown.wait_for_rows(1)
    shown.wait("Ready")
    told = shown.find("summary").get_by_role("status").inner_text()
    assert "You guessed waiting for data; it is Python beside the training." in told
    assert "nap()" in shown.alt
    assert shown.find("picture").locator("img").is_visible()
    assert "step % 100" in shown.find("advice").inner_text()
    assert shown.rows[0][1:4] == [
        "A",
        "waiting for data",
        "Python beside the training",
    ]
    assert "0 of 1 guesses were right" in shown.find("history").inner_text()
    errors = [book.output(n) for n in (0, SCRATCH)]
    assert "ERROR" not in "".join(errors), "the profiler complains of its thread"


def test_stop_ends_a_diagnosis(book):
    shown = book.panel(LONG)
    shown.press("run")
    shown.wait("recording")
    seconds = shown.time("stop", "Ready")
    print(f"stopped {seconds:.3f} s after the click")
    wait_until(lambda: shown.is_idle and len(shown.rows) == 1)
    assert "stopped" in shown.rows[0][3]
    assert shown.alt is None


def test_an_error_of_the_loop_is_shown(book):
    shown = book.panel(LONG)
    book.run(SCRATCH, "works[0] = 0")
    shown.press("run")
    shown.wait("ZeroDivisionError")
    alert = shown.find("status").get_by_role("alert")
    assert "nap()" in alert.inner_text()
    book.run(SCRATCH, "works[0] = 1")


def test_text_can_be_read_in_both_themes_and_nothing_sticks_out(book):
    try:
        for theme in ("JupyterLab Dark", "JupyterLab Light"):
            book.execute("apputils:change-theme", {"theme": theme})
            wait_until(lambda theme=theme: book.page.evaluate(THEME) == theme)
            book.page.wait_for_function(
                "() => document.getAnimations().every(a => a.playState !== 'running')"
            )
            found = book.page.evaluate(CONTRASTS)
            assert len(found) > 40
            weak = {tuple(row[1:]): round(row[0], 2) for row in found if row[0] < 4.5}
            assert not weak, f"{theme}: {weak}"
        for width in (1600, 900):
            book.page.set_viewport_size({"width": width, "height": 1400})
            wait_until(lambda: not book.page.evaluate(OVERFLOW), 5)
    finally:
        book.execute("apputils:change-theme", {"theme": "JupyterLab Light"})
        book.page.set_viewport_size({"width": 1280, "height": 1400})


def test_a_saved_notebook_opened_again_invites(book):
    notebook = book.save()
    assert not notebook.metadata.get("widgets")
    notebook.cells = [notebook.cells[LONG]]
    nbformat.write(notebook, book.lab.root / "again.ipynb")
    again = book.lab.open("again", run=False)
    output = again.cell(0).locator(".jp-Cell-outputArea")
    output.get_by_text("press Diagnose").wait_for(state="visible", timeout=10_000)
    wait_until(lambda: "Loading widget" not in output.inner_text(), 10)
    assert "2 training loops: A, B" in output.inner_text()
    assert "Error displaying widget" not in output.inner_text()
    again.page.close()
    # The page looks for the model before it gives up, and notes that it did.
    problems = book.lab.problems
    problems[:] = [p for p in problems if "widget model not found" not in p]
