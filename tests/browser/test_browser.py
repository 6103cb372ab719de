"""A panel works in a real JupyterLab, in a headless Chromium."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import urllib.request

import nbformat
import pytest
from helpers import wait_until
from project import PYTHON

CELLS = [
    """
import time, kit

def train(*, pause=1):
    while True:
        time.sleep(0.001 * pause)
        yield 1
""",
    "kit.explore(train, pause=[1, 2, 4], seconds=0.2)",
    "kit.explore(train, pause=[1, 2, 4], seconds=30)",
]
SETTINGS = {
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
    "@jupyterlab/apputils-extension:themes": {"theme": "JupyterLab Dark"},
}
#: The color of each text in an output, as red, green and blue from 0 to 255.
FIND_COLORS = """() => {
    const texts = [...document.querySelectorAll('.jp-OutputArea :is(td, th, p)')];
    const colors = texts.map(text => getComputedStyle(text).color);
    return colors.map(color => color.match(/[\\d.]+/g).map(Number));
}"""


@pytest.fixture
def lab(tmp_path):
    """The address of a JupyterLab with a notebook; its settings are its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=PYTHON)
    nbformat.write(notebook, tmp_path / "panels.ipynb")
    settings = tmp_path / ".settings"
    settings.mkdir()
    (settings / "overrides.json").write_text(json.dumps(SETTINGS))
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += [f"--port={port}", "--ServerApp.port_retries=0"]
    command += [f"--ServerApp.root_dir={tmp_path}", "--IdentityProvider.token="]
    for name in ("app_settings", "user_settings", "workspaces"):
        command.append(f"--LabApp.{name}_dir={settings}")
    # As `jupyter lab` does: kernels find the programs beside their Python.
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, env=os.environ | {"PATH": path}, **quiet)
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
        opened.goto(f"{lab}/lab/tree/panels.ipynb?reset", timeout=60_000)
        opened.get_by_text("| Idle").wait_for(timeout=60_000)
        press(opened, "Restart the kernel and run all cells")
        press(opened, "Confirm Kernel Restart")
        yield opened
        browser.close()


def press(panel, name):
    panel.get_by_role("button", name=name, exact=True).click()


@pytest.mark.timeout(240)  # for a machine that is much too busy
def test_a_panel_measures_what_is_chosen_draws_it_stops_and_can_be_read(page):
    short, long = (page.locator(".jp-CodeCell").nth(number) for number in (1, 2))
    press(short, "4")
    press(short, "Run")
    short.get_by_text("pause=4").first.wait_for()
    press(short, "Run all")
    short.get_by_role("row", name="pause=2").wait_for()
    assert short.locator("img[alt]").is_visible()
    press(long, "Run")
    long.get_by_text("%").first.wait_for()  # the first of six runs is over
    page.locator("[data-command='notebook:interrupt-kernel']").click()
    long.get_by_text("Stopped; this was measured").wait_for()
    colors = page.evaluate(FIND_COLORS)
    assert len(colors) > 5
    assert all(max(color[:3]) > 128 for color in colors), "dark on a dark ground"
