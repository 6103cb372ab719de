"""`kit.explore` in a real JupyterLab, with and without subshells."""

import pytest
from conftest import wait_until

TRAIN = """
import time, kit

def train(*, pause=1):
    while True:
        time.sleep(0.001 * pause)
        yield 1

panel = kit.explore(train, pause=[1, 2, 4], seconds={seconds})
panel
"""
NO_PROBLEM = ("favicon", "ResizeObserver")


def status(page, number=0):
    return page.locator(".kit-status").nth(number).inner_text()


def press(page, name, number=0):
    page.locator(f".kit-{name}").nth(number).click()


def wait_for(page, text, number=0, seconds=30.0):
    wait_until(lambda: text in status(page, number), seconds)


@pytest.fixture
def page(lab, request):
    lab.problems.clear()
    pages = []

    def open_page(*cells, **more):
        pages.append(lab.open(request.node.name.partition("[")[0], *cells, **more))
        return pages[-1]

    yield open_page
    for opened in pages:
        opened.close()
    problems = [p for p in lab.problems if not any(word in p for word in NO_PROBLEM)]
    assert not problems


def test_renders_runs_and_shows_the_result(page):
    shown = page(TRAIN.format(seconds=0.5))
    assert shown.locator(".kit-panel").count() == 1
    assert "Ready" in status(shown)
    press(shown, "run")
    wait_until(lambda: "measuring" in status(shown), 2.0)
    wait_for(shown, "Ready")
    assert shown.locator(".kit-picture img").get_attribute("alt")
    assert "pause" in shown.locator(".kit-picture img").get_attribute("alt")
    assert shown.locator(".kit-history tbody tr").count() == 1


def test_a_knob_changes_what_runs(page):
    shown = page(TRAIN.format(seconds=0.3))
    shown.locator(".kit-knob-pause button", has_text="4").click()
    press(shown, "run")
    wait_for(shown, "Ready")
    assert shown.locator(".kit-history tbody tr").first.inner_text().split()[1] == "4"


def test_stop_ends_within_a_step(page):
    shown = page(TRAIN.format(seconds=60))
    press(shown, "run")
    wait_for(shown, "measuring")
    press(shown, "stop")
    wait_until(lambda: "Ready" in status(shown), 5.0)
    assert "stopped" in shown.locator(".kit-history").inner_text()


def test_another_cell_runs_meanwhile_and_the_trial_says_so(page):
    shown = page(TRAIN.format(seconds=3), "answer = 6 * 7\nprint(answer)")
    press(shown, "run")
    wait_for(shown, "measuring")
    shown.locator(".jp-CodeCell").nth(1).locator(".jp-InputArea-editor").click()
    shown.keyboard.press("Shift+Enter")
    wait_until(lambda: "42" in shown.locator(".jp-CodeCell").nth(1).inner_text(), 2.5)
    wait_for(shown, "Ready")
    assert "disturbed" in shown.locator(".kit-history").inner_text()


def test_two_panels_queue(page):
    again = "other = kit.explore(train, pause=[1, 2], seconds=0.3)\nother"
    shown = page(TRAIN.format(seconds=2), again)
    press(shown, "run", 0)
    wait_for(shown, "measuring", 0)
    press(shown, "run", 1)
    wait_for(shown, "waiting", 1, 2.0)
    wait_for(shown, "Ready", 0)
    wait_for(shown, "Ready", 1)
    assert shown.locator(".kit-history tbody tr").count() == 2


def test_a_failing_experiment_says_so_and_clears_the_old_result(page):
    shown = page(
        TRAIN.format(seconds=0.3).replace(
            "time.sleep(0.001 * pause)", "time.sleep(0.001 * pause / works[0])"
        ),
        "works = [1]",
        "pass",
    )
    press(shown, "run")
    wait_for(shown, "Ready")
    shown.locator(".jp-CodeCell").nth(2).locator(".cm-content").fill("works[0] = 0")
    shown.keyboard.press("Shift+Enter")
    press(shown, "run")
    wait_for(shown, "ZeroDivisionError")
    assert shown.locator(".kit-picture img").count() == 0


def test_the_keyboard_alone_suffices(page):
    shown = page(TRAIN.format(seconds=0.3))
    shown.locator(".kit-knob-pause button").first.focus()
    for _ in range(10):
        shown.keyboard.press("Tab")
        if shown.evaluate("document.activeElement.classList.contains('kit-run')"):
            break
    shown.keyboard.press("Enter")
    wait_until(lambda: shown.locator(".kit-history tbody tr").count() == 1)
