"""The panel in a real kernel, with the messages that a front end would send."""

import re
import time

import nbformat
import pytest
from front_end import FrontEnd
from helpers import wait_until
from nbclient import NotebookClient
from panels import HTML, VIEW, WHOLE, alt_of, rows_of, text_of

SETUP = """
import os, time, torch, kit

def nap(*, pause=1):
    "Sleep for a while."
    while True:
        time.sleep(0.001 * pause)
        yield 1

def announce():
    "Say when it is measured."
    print("it has its turn", flush=True)
    yield from nap()

def look(*, probe=1):
    look.seen = torch.get_num_threads(), torch.is_grad_enabled()
    while True:
        time.sleep(0.001)
        yield 1
"""
PANEL = "panel = kit.explore(nap, pause=[1, 8], seconds={seconds})\npanel"


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    front_end = FrontEnd(tmp_path_factory.mktemp("kernel"))
    front_end.run(SETUP)
    front_end.run("kit.measure(nap, seconds=0.02)")  # all that is loaded on demand
    yield front_end
    front_end.close()


@pytest.fixture
def show(kernel):
    """Show panels in cells of their own; close them at the end."""
    count = 0

    def show_panel(code=PANEL, *, seconds=0.05, cell=None):
        nonlocal count
        count += 1
        return kernel.show(code.replace("{seconds}", str(seconds)), cell or f"p{count}")

    yield show_panel
    kernel.run("panel.stop()\nos.environ.pop('KIT_BLOCKING', None)")


# Shown and stored


def test_a_button_runs_and_the_static_copy_follows(show):
    panel = show()
    (view,) = [o["data"] for o in panel.outputs if VIEW in o["data"]]
    assert view["text/plain"] == "Panel of nap: pause" and HTML not in view
    assert "<img" not in panel.stored
    panel.press("run")
    panel.wait_for_rows(1)
    wait_until(lambda: "<img" in panel.stored)
    assert alt_of(panel.stored) == panel.alt
    assert rows_of(panel.stored) == panel.history
    assert panel.history[0][2] in text_of(panel.alt)


def test_a_control_changes_what_runs_and_starts_nothing(show):
    panel = show()
    panel.set("knob-pause", index=1)
    assert panel.is_idle and not panel.history
    panel.press("run")
    panel.wait_for_rows(1)
    assert panel.history[0][1] == "8"


def test_static_publishes_a_picture_a_sentence_a_table_and_no_widget(kernel):
    before = set(kernel.widgets)
    kernel.run("os.environ['KIT_STATIC'] = '1'\nos.environ['KIT_SMOKE'] = '1'")
    try:
        request = kernel.start(PANEL.replace("{seconds}", "0.1"), "static")
        wait_until(lambda: kernel.has_ended(request), 30)
        kernel.said(request)
    finally:
        kernel.run("del os.environ['KIT_STATIC'], os.environ['KIT_SMOKE']")
    data = [output["data"] for output in kernel.outputs[request] if "data" in output]
    assert len(data) == 1 and VIEW not in data[0]
    assert set(kernel.widgets) == before
    assert data[0]["text/plain"] == "Panel of nap: pause"
    assert alt_of(data[0][HTML])
    assert [row[0] for row in rows_of(data[0][HTML])] == ["pause=1", "pause=8"]
    sentence = re.sub("<img[^>]*>|<table.*?</table>", "", data[0][HTML])
    assert "pause=8" in text_of(sentence) and "×" in text_of(sentence)


def test_a_notebook_that_was_run_without_a_front_end_holds_what_was_measured(tmp_path):
    code = [SETUP, PANEL.replace("{seconds}", "0.05"), "panel.run(pause=8)"]
    cells = [nbformat.v4.new_code_cell(c) for c in code]
    notebook = nbformat.v4.new_notebook(cells=cells)
    quick = {"kernel_name": "python3", "shutdown_kernel": "immediate"}
    client = NotebookClient(notebook, timeout=60, **quick)
    client.execute(cwd=str(tmp_path))
    outputs = [output["data"] for output in notebook.cells[1].outputs]
    kept = [data[HTML] for data in outputs if HTML in data]
    assert len(kept) == 1 and "pause=8" in alt_of(kept[0])
    assert len(rows_of(kept[0])) == 1
    nbformat.validate(notebook)


# Beside cells


def test_the_kernel_answers_other_cells_and_the_trial_says_so(kernel, show):
    panel = show(seconds=1.0)
    panel.press("run")
    panel.wait("%")
    assert kernel.run("print(6 * 7)") == "42\n"
    assert panel.history == [], "the cell was answered after the run only"
    panel.wait_for_rows(1)
    assert "disturbed" in panel.history[0][-1]
    panel.press("run")
    panel.wait_for_rows(2)
    assert "disturbed" not in panel.history[0][-1], "nothing ran beside this one"


def test_progress_is_there_long_before_the_result(show):
    panel = show(seconds=60)
    panel.press("run")
    panel.wait(r"nap\(pause=1\)")
    assert panel.history == []
    panel.press("stop")
    panel.wait_for_rows(1)


def test_the_run_sees_the_state_after_the_latest_cell(kernel, show):
    panel = show("panel = kit.explore(look, seconds=0.05)\npanel")
    change = "torch.set_num_threads({}); torch.set_grad_enabled({})"
    for count, (threads, grad) in enumerate([(1, False), (2, True), (1, True)], 1):
        kernel.run(change.format(threads, grad))
        kernel.run("torch.manual_seed(7); random_before = torch.get_rng_state()")
        panel.press("run")
        panel.wait_for_rows(count)
        seen = kernel.run("print(look.seen, torch.get_num_threads())")
        assert seen == f"({threads}, {grad}) {threads}\n"
        same = "print(torch.equal(random_before, torch.get_rng_state()))"
        assert kernel.run(same) == "True\n"
    kernel.run(change.format(2, True))


def test_a_run_from_a_cell_is_not_disturbed_by_its_own_cell(kernel, show):
    panel = show()
    outcome = kernel.run("trial = panel.run(pause=8); print(trial.outcome)")
    assert outcome.strip() in WHOLE
    wait_until(lambda: len(panel.history) == 1)
    assert "disturbed" not in panel.history[0][-1] and "pause=8" in panel.alt


def test_buttons_pressed_while_a_cell_runs_are_heard_after_it(kernel, show):
    panel = show()
    request = kernel.start("while not os.path.exists('seen'): time.sleep(0.01)")
    panel.tell("knob-pause", index=1)
    panel.press("run")
    assert not panel.history
    (kernel.folder / "seen").touch()
    wait_until(lambda: kernel.has_ended(request))
    panel.wait_for_rows(1)
    assert panel.history[0][1] == "8", "it shows one value and measures another"
    assert "disturbed" not in panel.history[0][-1]


def test_a_measuring_cell_waits_for_the_run(kernel, show):
    panel = show(seconds=3.0)
    panel.press("run")
    panel.wait("%")
    request = kernel.start("kit.measure(nap, seconds=0.05); print(len(panel.trials))")
    wait_until(lambda: kernel.has_ended(request), 20)
    assert kernel.said(request) == "1\n", "it measured beside the panel"
    panel.wait_for_rows(1)


def test_failures_in_the_thread_print_nothing(kernel, show):
    code = """
def train(*, lr=1):
    while True:
        time.sleep(0.001)
        yield 1 / (lr - 1)
panel = kit.explore(train, lr=[1, 2], seconds=0.05)
panel"""
    panel = show(code)
    count = len(panel.outputs)
    panel.press("run")
    panel.wait("ZeroDivisionError")
    wait_until(lambda: panel.is_idle)
    kernel.run("pass")
    assert len(panel.outputs) == count
    said = [o for outputs in kernel.outputs.values() for o in outputs if "text" in o]
    assert not [o["text"] for o in said if "ZeroDivisionError" in o["text"]]


# Ended


def test_another_cell_with_the_same_code_ends_nothing(kernel, show):
    first = show(seconds=3.0, cell="one")
    first.press("run")
    first.wait("%")
    show(cell="two")
    assert not first.is_idle
    first.wait_for_rows(1)
    assert "stopped" not in first.history[0][-1]


def test_when_the_last_view_goes_the_run_ends(kernel, show):
    panel = show(seconds=60)
    panel.set("panel", _view_count=2)
    panel.press("run")
    panel.wait("%")
    panel.set("panel", _view_count=1)
    assert not panel.is_idle
    panel.set("panel", _view_count=0)
    wait_until(lambda: kernel.run("print(len(panel.trials))") == "1\n")
    assert kernel.run("print(panel.trials[0].outcome)") == "stopped\n"


# Where updates from other threads do not arrive


def test_blocking_mode_measures_in_the_handler_and_shows_progress(kernel, show):
    kernel.run("os.environ['KIT_BLOCKING'] = '1'")
    panel = show(seconds=1.0)
    request = panel.press("run")
    panel.wait("%")
    assert not kernel.has_ended(request), "the handler left the work to a thread"
    wait_until(lambda: panel.state("progress")["value"] > 0)
    wait_until(lambda: kernel.has_ended(request))
    assert panel.is_idle and len(panel.history) == 1 and panel.alt
    assert panel.history[0][2] in panel.alt


def test_blocking_mode_is_ended_by_an_interrupt(kernel, show):
    kernel.run("os.environ['KIT_BLOCKING'] = '1'")
    panel = show(seconds=60)
    request = panel.press("run")
    panel.wait("%")
    begun = time.monotonic()
    kernel.manager.interrupt_kernel()
    wait_until(lambda: kernel.has_ended(request))
    print(f"ended after {time.monotonic() - begun:.2f} s")
    assert time.monotonic() - begun < 4
    wait_until(lambda: panel.is_idle and "Ready" in panel.status)
    assert kernel.run("print(kit.measure(nap, seconds=0.02).outcome)").strip() in WHOLE
    again = show()
    again.press("run")
    again.wait_for_rows(1)
