"""Panels work in a real JupyterLab, in a headless Chromium."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import urllib.request
from pathlib import Path

import nbformat
import pytest
from helpers import wait_until
from project import PYTHON

LOOK = Path(__file__).parent / "look.js"
CELLS = [
    """
import time, kit

def train(*, pause=1):
    while True:
        time.sleep(0.001 * pause)
        yield 1 / (pause != 3)
""",
    "predict = lambda pause: 900 / pause\n"
    "kit.explore(train, pause=[1, 2, 3], seconds=0.2, predict=predict)",
    "kit.explore(train, pause=range(4, 36), seconds=2)",
]
SETTINGS = {
    "notebook-extension:tracker": {"windowingMode": "none"},
    "apputils-extension:notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
    },
}


@pytest.fixture
def lab(tmp_path):
    """The address of a JupyterLab with a notebook; its settings are its own."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=PYTHON)
    nbformat.write(notebook, tmp_path / "panels.ipynb")
    (folder := tmp_path / ".settings").mkdir()
    overrides = {f"@jupyterlab/{name}": value for name, value in SETTINGS.items()}
    (folder / "overrides.json").write_text(json.dumps(overrides))
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += [f"--port={port}", "--ServerApp.port_retries=0"]
    command += [f"--ServerApp.root_dir={tmp_path}", "--IdentityProvider.token="]
    command += ["--LabApp.expose_app_in_browser=True"]
    for name in ("app_settings", "user_settings", "workspaces"):
        command.append(f"--LabApp.{name}_dir={folder}")
    # As `jupyter lab` does: kernels find the programs beside their Python.
    paths = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    own = {name: x for name, x in os.environ.items() if not name.startswith("KIT_")}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, env=own | {"PATH": paths}, **quiet)
    url = f"http://127.0.0.1:{port}"

    def answers():
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"{url}/api/status", timeout=2).read()

    try:
        wait_until(answers, 60)
        yield url
    finally:
        server.terminate()
        server.wait(20)


@pytest.fixture
def page(lab):
    """The notebook in a window of 900 pixels, all cells run."""
    playwright = pytest.importorskip("playwright.sync_api")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=quiet)
        opened = browser.new_page(viewport={"width": 900, "height": 1600})
        opened.set_default_timeout(30_000)
        opened.add_init_script(path=LOOK)
        opened.goto(f"{lab}/lab/tree/panels.ipynb?reset", timeout=60_000)
        opened.wait_for_function("window.look.isReady()", timeout=60_000)
        opened.evaluate("() => window.jupyterapp.shell.collapseLeft()")
        execute(opened, "notebook:run-all-cells")
        yield opened
        browser.close()


def execute(page, command, **options):
    page.evaluate("asked => { look.execute(asked); }", [command, options])


def press(panel, name):
    panel.get_by_role("button", name=name, exact=True).click()


@pytest.mark.timeout(240)  # for a machine that is much too busy
def test_two_panels_run_are_interrupted_fail_and_can_be_read(page):
    first, second = (page.locator(".jp-CodeCell").nth(n) for n in (1, 2))
    first.locator("img[alt*='Predicted']").wait_for()
    press(first, "Run")
    first.get_by_text("range of 6 runs").wait_for()
    press(second, "Run all")
    second.get_by_text("%").first.wait_for()
    assert second.get_by_role("button", name="Run", exact=True).is_disabled()
    page.locator("[data-command='notebook:interrupt-kernel']").click()
    second.get_by_text("Stopped;").wait_for()
    press(second, "Run")
    second.get_by_text("range of 6 runs").wait_for()
    press(first, "3")
    press(first, "Run")
    first.get_by_text("ZeroDivisionError").first.wait_for()
    assert not first.get_by_text("yield 1 / (pause != 3)").last.is_visible(), "folded"
    press(first, "2")
    press(first, "Run")
    first.get_by_text("range of 6 runs").wait_for()
    assert not first.get_by_text("ZeroDivisionError").count()
    assert not page.get_by_text("KeyboardInterrupt").count()
    theme = "JupyterLab Dark"
    execute(page, "apputils:change-theme", theme=theme)
    page.wait_for_function("theme => look.hasTheme(theme)", arg=theme)
    found = page.evaluate("look.contrasts()")
    assert len(found) > 10 and not [row for row in found if row[1] < 4.5]
    assert not page.evaluate("look.overflow()")
