"""A real JupyterLab in a headless Chromium; skipped where there is none."""

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import nbformat
import pytest

ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update"),
]
CONNECTED = """() => {
  const current = window.jupyterapp?.shell?.currentWidget;
  const kernel = current?.sessionContext?.session?.kernel;
  return kernel && kernel.connectionStatus === 'connected' && kernel.status === 'idle';
}"""
RUN_ALL = "() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }"
PROMPTS = """() => [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')]
  .map(prompt => prompt.textContent.trim())"""


def find_browser():
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="session")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api")
    path = find_browser()
    if path is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


class Lab:
    """One JupyterLab, and notebooks opened in it."""

    def __init__(self, root, browser, settings):
        self.root, self.browser = root, browser
        self.port = free_port()
        self.settings = settings
        self.problems = []

    def start(self):
        folder = self.root / ".settings"
        folder.mkdir()
        (folder / "overrides.json").write_text(json.dumps(self.settings))
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"),
                *(f"--port={self.port}", "--ip=127.0.0.1"),
                *("--ServerApp.port_retries=0", "--IdentityProvider.token="),
                "--ServerApp.disable_check_xsrf=True",
                f"--ServerApp.root_dir={self.root}",
                f"--LabApp.app_settings_dir={folder}",
                f"--LabApp.workspaces_dir={folder}",
                "--LabApp.expose_app_in_browser=True",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.url}/api/status", timeout=2).close()
                return
            assert time.monotonic() < deadline, "JupyterLab did not answer"
            time.sleep(0.2)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def open(self, name, *cells, width=1280):
        """Write a notebook of these cells, open it, run all cells; return the page."""
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells]
        )
        notebook.metadata["kernelspec"] = {
            "name": "python3",
            "display_name": "Python 3",
            "language": "python",
        }
        nbformat.write(notebook, self.root / f"{name}.ipynb")
        page = self.browser.new_page(viewport={"width": width, "height": 1400})
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.problems.append(str(error)[:300]))
        page.goto(f"{self.url}/lab/workspaces/{name}/tree/{name}.ipynb?reset")
        page.wait_for_selector(".jp-Notebook", timeout=60_000)
        page.wait_for_function(CONNECTED, timeout=60_000)
        page.evaluate("() => { window.jupyterapp.shell.collapseLeft(); }")
        page.evaluate(RUN_ALL)
        page.wait_for_timeout(300)
        wait_until(lambda: all("*" not in p for p in page.evaluate(PROMPTS)))
        return page

    def _note(self, message):
        if message.type == "error":
            self.problems.append(message.text[:300])


def wait_until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@pytest.fixture(scope="module", params=["perCommTarget", "disabled"])
def lab(request, chromium, tmp_path_factory):
    """JupyterLab, with widget messages on a thread of their own, and without."""
    settings = {
        "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
        "@jupyterlab/apputils-extension:notification": {
            "fetchNews": "false",
            "checkForUpdates": False,
        },
        "@jupyterlab/apputils-extension:kernels-settings": {
            "commsOverSubshells": request.param
        },
    }
    made = Lab(tmp_path_factory.mktemp("lab"), chromium, settings)
    made.start()
    yield made
    made.stop()
