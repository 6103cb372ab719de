"""A real JupyterLab in a headless Chromium, and the panels of its notebooks."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request

import nbformat
import pytest
from front_end import Page
from helpers import wait_until

#: Widget messages on a thread of their own, beside the cells, and after them.
BESIDE, AFTER = "perCommTarget", "disabled"
BOOK = "window.jupyterapp.shell.currentWidget"
READY = f"""() => {BOOK}?.sessionContext?.session?.kernel?.status === 'idle'
  && {BOOK}.sessionContext.session.kernel.connectionStatus === 'connected'"""
HAVE_RUN = """() => [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')]
  .every(prompt => /\\d/.test(prompt.textContent))"""
#: Run code as a cell does; `window.said` is what it has printed so far.
RUN = f"""code => {{
  const future = {BOOK}.sessionContext.session.kernel.requestExecute({{code}});
  window.said = '';
  future.onIOPub = message => {{ window.said += message.content.text || ''; }};
  return future.done.then(() => window.said.trim());
}}"""
EXECUTE = f"""([command, options]) => {{
  {BOOK}.content.deselectAll();
  {BOOK}.content.activeCellIndex = options.cell ?? 0;
  window.jupyterapp.commands.execute(command, options);
}}"""


@contextlib.contextmanager
def launch_chromium():
    """Start the system's Chromium; skip the test where there is none."""
    playwright = pytest.importorskip("playwright.sync_api")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    quiet += ["--no-first-run", "--disable-background-networking"]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=quiet)
        yield browser
        browser.close()


class Lab:
    """One JupyterLab, and notebooks opened in it."""

    def __init__(self, root, browser, mode=BESIDE):
        self.root, self.browser, self.mode, self.problems = root, browser, mode, []

    def __enter__(self):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        self.url, folder = f"http://127.0.0.1:{port}", self.root / ".settings"
        folder.mkdir()
        offline = {"fetchNews": "false", "checkForUpdates": False}
        settings = {
            "notebook-extension:tracker": {"windowingMode": "none"},
            "apputils-extension:notification": offline,
            "apputils-extension:kernels-settings": {"commsOverSubshells": self.mode},
            # Only what a test saves is saved.
            "docmanager-extension:plugin": {"autosave": False},
        }
        own = {f"@jupyterlab/{name}": value for name, value in settings.items()}
        (folder / "overrides.json").write_text(json.dumps(own))
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
        command += [f"--port={port}", "--IdentityProvider.token="]
        command += [f"--ServerApp.root_dir={self.root}", "--ServerApp.port_retries=0"]
        command += ["--ServerApp.disable_check_xsrf=True"]
        command += ["--LabApp.expose_app_in_browser=True"]
        # The settings of whoever runs the tests are left alone.
        for name in ("app_settings", "user_settings", "workspaces"):
            command.append(f"--LabApp.{name}_dir={folder}")
        # As `jupyter lab` does: kernels find the programs beside their Python.
        paths = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        own = os.environ | {"PATH": paths}
        self.process = subprocess.Popen(command, env=own, **quiet)
        wait_until(self._answers, 60)
        return self

    def _answers(self):
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"{self.url}/api/status", timeout=2).read()

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(20)

    def write(self, name, cells):
        """Write a notebook of these cells, given as text."""
        made = [nbformat.v4.new_code_cell(cell) for cell in cells]
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook = nbformat.v4.new_notebook(cells=made, metadata={"kernelspec": kernel})
        nbformat.write(notebook, self.root / f"{name}.ipynb")

    def open(self, name, *, run=True):
        """Open a notebook in a page of its own; run all cells."""
        page, note = self.browser.new_page(), self.problems.append
        page.set_viewport_size({"width": 1280, "height": 1400})
        page.on("console", lambda said: said.type == "error" and note(said.text))
        page.on("pageerror", lambda error: note(str(error)))
        page.goto(f"{self.url}/lab/workspaces/{name}/tree/{name}.ipynb?reset")
        page.wait_for_selector(".jp-Notebook", timeout=60_000)
        page.evaluate("() => { window.jupyterapp.shell.collapseLeft(); }")
        page.wait_for_function(READY, timeout=60_000)
        book = Book(self, page)
        if run:
            book.execute("notebook:run-all-cells")
            page.wait_for_function(HAVE_RUN, timeout=60_000)
        return book


class Book:
    """A notebook on a page; cells are counted from 0."""

    def __init__(self, lab, page):
        self.lab, self.page = lab, page

    def execute(self, command, **options):
        """Execute a command of JupyterLab, some of them for the chosen `cell`."""
        self.page.evaluate(EXECUTE, [command, options])

    def start(self, code):
        """Run code as a cell; `said` is what it has printed so far."""
        self.page.evaluate(f"code => {{ ({RUN})(code); }}", code)

    def run(self, code):
        """Run code as a cell, to its end; return what it printed."""
        return self.page.evaluate(RUN, code)

    @property
    def said(self):
        return self.page.evaluate("() => window.said")

    def panel(self, index):
        return Shown(self.page.locator(".jp-CodeCell").nth(index))


class Shown(Page):
    """A panel on a page."""

    def __init__(self, root):
        self.root = root

    def find(self, name):
        """Find what has this class of its own."""
        return self.root.locator(f".kit-{name}")

    def read(self, name, what):
        found = self.find(name)
        return found.inner_html() if what == "value" else found.is_disabled()

    def press(self, name):
        self.find(name).click()

    def choose(self, knob, text):
        """Press a choice's button."""
        buttons = self.find(f"knob-{knob}").locator("button")
        buttons.filter(has_text=re.compile(rf"^\s*{text}\s*$")).click()

    def time(self, name, pattern):
        """Press a button; return the seconds until the status fits."""
        self.press(name)
        begun = time.monotonic()
        self.wait(pattern)
        return time.monotonic() - begun
