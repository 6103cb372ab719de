"""Panels work in a real JupyterLab, in a headless Chromium."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import urllib.request
from pathlib import Path

import nbformat
import psutil
import pytest
from front_end import Page
from helpers import wait_until
from project import PYTHON

#: Widget messages on a thread of their own, beside the cells, and after them.
BESIDE, AFTER = "perCommTarget", "disabled"
LOOK = Path(__file__).parent / "look.js"


class Lab:
    def __init__(self, root, browser, mode):
        self.root, self.browser = root, browser
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        self.url, folder = f"http://127.0.0.1:{port}", root / ".settings"
        folder.mkdir()
        offline = {"fetchNews": "false", "checkForUpdates": False}
        settings = {
            "notebook-extension:tracker": {"windowingMode": "none"},
            "apputils-extension:notification": offline,
            "apputils-extension:kernels-settings": {"commsOverSubshells": mode},
            # Only what a test saves is saved.
            "docmanager-extension:plugin": {"autosave": False},
        }
        own = {f"@jupyterlab/{name}": value for name, value in settings.items()}
        (folder / "overrides.json").write_text(json.dumps(own))
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
        command += [f"--port={port}", "--ServerApp.port_retries=0"]
        command += [f"--ServerApp.root_dir={root}", "--IdentityProvider.token="]
        command += ["--LabApp.expose_app_in_browser=True"]
        # The settings of whoever runs the tests are left alone.
        for name in ("app_settings", "user_settings", "workspaces"):
            command.append(f"--LabApp.{name}_dir={folder}")
        # As `jupyter lab` does: kernels find the programs beside their Python.
        paths = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        own = os.environ | {"PATH": paths}
        self.process = subprocess.Popen(command, env=own, **quiet)

    def answers(self):
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"{self.url}/api/status", timeout=2).read()

    def close(self):
        self.process.terminate()
        self.process.wait(20)

    def open(self, name, *, run=True):
        page = self.browser.new_page()
        page.add_init_script(path=LOOK)
        page.set_viewport_size({"width": 1280, "height": 1400})
        page.goto(f"{self.url}/lab/workspaces/{name}/tree/{name}.ipynb?reset")
        page.wait_for_selector(".jp-Notebook", timeout=60_000)
        page.evaluate("() => { window.jupyterapp.shell.collapseLeft(); }")
        page.wait_for_function("look.isReady()", timeout=60_000)
        book = Book(self, page)
        if run:
            book.execute("notebook:run-all-cells")
            page.wait_for_function("look.haveRun()", timeout=60_000)
        return book


class Book:
    def __init__(self, lab, page):
        self.lab, self.page = lab, page

    def execute(self, command, **options):
        self.page.evaluate("asked => look.execute(asked)", [command, options])

    def run(self, code):
        return self.page.evaluate("code => look.run(code)", code)

    def panel(self, index):
        return Shown(self.page.locator(".jp-CodeCell").nth(index))


class Shown(Page):
    def __init__(self, root):
        self.root = root

    def find(self, name):
        return self.root.locator(f".kit-{name}")

    def read(self, name, what):
        found = self.find(name)
        return found.inner_html() if what == "value" else found.is_disabled()

    def press(self, name):
        self.find(name).click()

    def choose(self, knob, text):
        buttons = self.find(f"knob-{knob}").locator("button")
        buttons.filter(has_text=re.compile(rf"^\s*{text}\s*$")).click()


SETUP = """
import os, time
from multiprocessing import resource_tracker
import kit
import torch.distributed as dist
from torch.utils.data import DataLoader

def train(*, pause=1):
    while True:
        time.sleep(0.001 * pause)
        yield 1 / (pause != 3)

held = [True]
def hold(*, pause=1):
    while True:
        yield 1
        while held:
            time.sleep(0.01)
        time.sleep(0.001 * pause)

def load(*, num_workers=2):
    for batch in DataLoader(range(10**9), batch_size=8, num_workers=num_workers):
        dist.barrier()
        yield len(batch)

ranks = kit.start_ranks(2)
resource_tracker.ensure_running()
kit.measure(train, seconds=0.02)
"""
#: A panel for each test, in cells of their own.
PANELS = {
    "loads": "load, num_workers=[1, 2], on=[ranks[:1], ranks], seconds=600",
    "beside": "hold, pause=[1, 2], seconds=0.2",
    "plain": "train, pause=[1, 2, 3], seconds=0.2",
    "keys": "train, pause=[1, 2, 4, 8, 16, 32, 64, 128], seconds=0.2",
    "ended": "train, pause=[1, 2], seconds=60",
}
CODES = [f"{name} = kit.explore({what})\n{name}" for name, what in PANELS.items()]
#: For a machine that is much too busy.
pytestmark = pytest.mark.timeout(240)
MODES = [BESIDE, pytest.param(AFTER, marks=pytest.mark.nightly)]


@pytest.fixture(scope="module", params=MODES)
def opened(request, tmp_path_factory):
    """One JupyterLab, and in it one notebook with all panels, open in a page."""
    playwright = pytest.importorskip("playwright.sync_api")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    quiet += ["--no-first-run", "--disable-background-networking"]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=quiet)
        lab = Lab(tmp_path_factory.mktemp("lab"), browser, request.param)
        with contextlib.closing(lab):
            wait_until(lab.answers, 60)
            made = [nbformat.v4.new_code_cell(cell) for cell in [SETUP, *CODES]]
            notebook = nbformat.v4.new_notebook(cells=made, metadata=PYTHON)
            nbformat.write(notebook, lab.root / "panels.ipynb")
            book = lab.open("panels")
            book.kernel = psutil.Process(int(book.run("print(os.getpid())")))
            book.panels = {name: book.panel(n) for n, name in enumerate(PANELS, 1)}
            yield book
        browser.close()


@pytest.fixture
def book(opened):
    yield opened
    opened.run(f"for panel in ({', '.join(PANELS)}): panel.stop()")


def test_run_measures_what_is_chosen_and_stop_ends_it_on_all_ranks(book):
    shown, who = book.panels["loads"], "print(ranks.run(os.getpid))"
    before, ranks = len(book.kernel.children(recursive=True)), book.run(who)
    assert "Ready" in shown.status and shown.alt is None and not shown.history
    shown.choose("num_workers", "1")
    shown.choose("ranks", "2")
    shown.press("run")
    shown.wait("num_workers=1.*%")
    assert len(book.kernel.children(recursive=True)) == before + 2, "a worker each"
    shown.press("stop")
    shown.wait_for_rows(1)
    (row,) = shown.history
    value, _, _ = row[3].partition(" [")
    assert row[1:3] == ["2", "1"] and "stopped" in row[-1] and value in shown.alt
    assert shown.find("picture").locator("img").is_visible()
    wait_until(lambda: len(book.kernel.children(recursive=True)) == before)
    assert book.run(who) == ranks, "the same processes as before"


def test_other_cells_run_meanwhile_and_the_trial_says_so(book):
    shown = book.panels["beside"]
    shown.press("run")
    shown.wait("so far")
    assert book.run("print(6 * 7)") == "42"
    assert not shown.history, "the cell was answered after the run only"
    book.run("held.clear()")
    shown.wait_for_rows(1)
    assert "disturbed" in shown.history[0][-1]


def test_the_keyboard_alone_suffices_and_one_sees_where_it_is(book):
    shown, keyboard, reached = book.panels["keys"], book.page.keyboard, {}
    book.panels["plain"].find("clear").focus()  # the last control before this panel
    while "kit-clear" not in reached:
        keyboard.press("Tab")
        name, width = book.page.evaluate("look.focused()")
        if name not in reached:  # a slider's number takes the focus too
            reached[name] = width
            keyboard.press("ArrowRight" if "knob" in name else "Shift")
    assert list(reached) == ["kit-knob-pause", "kit-run", "kit-run-all", "kit-clear"]
    assert min(reached.values()) >= 2, "pixels around what has the focus"
    for count, pressed in enumerate(("Enter", "Space"), start=1):
        shown.find("run").focus()
        keyboard.press(pressed)
        shown.wait_for_rows(count)
    assert shown.history[0][1] == "2"


@pytest.mark.parametrize("command", ["run-cell", "clear-cell-output"])
def test_running_its_cell_again_or_clearing_its_output_ends_a_run(book, command):
    book.run("old = ended")
    book.panels["ended"].press("run")
    book.panels["ended"].wait("%")
    book.execute(f"notebook:{command}", cell=len(PANELS))
    ask = "print([t.outcome for t in old.trials])"
    wait_until(lambda: book.run(ask) == "['stopped']")


def test_a_saved_notebook_shows_what_was_measured_to_who_has_not_run_it(book):
    book.run("plain.run(pause=2)")
    book.page.evaluate("look.book().context.save()")
    notebook = nbformat.read(book.lab.root / "panels.ipynb", 4)
    notebook.cells = [x for x in notebook.cells if x.source.startswith("plain")]
    assert book.panels["plain"].history[0][2] in str(notebook.cells[0].outputs)
    nbformat.write(notebook, book.lab.root / "stored.ipynb")
    page = book.lab.open("stored", run=False).page
    output = page.locator(".jp-Cell-outputArea")
    output.locator("img").wait_for(state="visible", timeout=10_000)
    wait_until(lambda: "Loading widget" not in output.inner_text())
    assert output.locator("table").is_visible()
    assert "Error displaying widget" not in output.inner_text()
    page.close()


def test_all_can_be_read_in_both_themes_and_nothing_sticks_out(book):
    shown, failed, running = (book.panels[x] for x in ("keys", "plain", "loads"))
    book.run("keys.run()")
    failed.choose("pause", "3")
    failed.press("run")
    failed.wait("ZeroDivisionError")
    running.press("run")
    running.wait("%")
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        book.execute("apputils:change-theme", theme=theme)
        book.page.wait_for_function("theme => look.hasTheme(theme)", arg=theme)
        found = book.page.evaluate("look.contrasts()")
        assert len(found) > 50 and not [row for row in found if row[1] < 4.5], theme
    for width in (1600, 900):
        book.page.set_viewport_size({"width": width, "height": 1400})
        wait_until(lambda: not book.page.evaluate("look.overflow()"), 5)
        controls = [shown.find(name).bounding_box() for name in ("knob-pause", "stop")]
        picture = shown.find("picture").locator("img").bounding_box()
        assert max(box["x"] + box["width"] for box in controls) <= picture["x"]
        assert controls[0]["y"] < picture["y"] + picture["height"]
