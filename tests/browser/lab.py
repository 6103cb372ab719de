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

ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update"),
]
SCRIPTS = sysconfig.get_path("scripts")
#: Widget messages on a thread of their own, beside the cells, and after them.
BESIDE, AFTER = "perCommTarget", "disabled"
CONNECTED = """() => {
  const current = window.jupyterapp?.shell?.currentWidget;
  const kernel = current?.sessionContext?.session?.kernel;
  return kernel?.connectionStatus === 'connected' && kernel.status === 'idle';
}"""
SHOWS = "path => window.jupyterapp?.shell?.currentWidget?.context?.path === path"
DISPOSE = "() => { window.jupyterapp.shell.currentWidget.dispose(); }"
#: A page shows one of its notebooks at a time.
SHOWN = ".jp-NotebookPanel:not(.lm-mod-hidden)"
EXECUTE = "([name, options]) => { window.jupyterapp.commands.execute(name, options); }"
PROMPTS = f"""() => [...document.querySelectorAll(
  '{SHOWN} .jp-CodeCell .jp-InputPrompt')].map(prompt => prompt.textContent.trim())"""
SELECT = """index => {
  const book = window.jupyterapp.shell.currentWidget.content;
  book.deselectAll(); book.activeCellIndex = index; book.mode = 'command';
}"""
WRITE = """([index, text]) => { window.jupyterapp.shell.currentWidget.content
  .widgets[index].model.sharedModel.setSource(text); }"""
TELL = """code => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel
  .requestExecute({code, silent: true, store_history: false}).done.then(() => {})"""
SAVE = "() => window.jupyterapp.shell.currentWidget.context.save()"
#: From a click in the page to the first text of the status that fits.
WATCH = """([status, button, pattern]) => {
  window.kitMilliseconds = new Promise(resolve => {
    let start = null;
    const fits = new RegExp(pattern);
    const observer = new MutationObserver(() => {
      if (start !== null && fits.test(status.innerText)) {
        observer.disconnect();
        resolve(performance.now() - start);
      }
    });
    observer.observe(status, {childList: true, subtree: true, characterData: true});
    const note = () => { start = performance.now(); };
    button.addEventListener('click', note, {once: true, capture: true});
    setTimeout(() => resolve(1e9), 15000);
  });
}"""


@contextlib.contextmanager
def launch_chromium():
    """Start the system's Chromium; skip the test where there is none."""
    playwright = pytest.importorskip("playwright.sync_api")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_until(condition, seconds=30.0):
    """Wait for a condition; the limit is for a machine that is much too busy."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.03)


class Lab:
    """One JupyterLab, and notebooks opened in it."""

    def __init__(self, root, browser, mode=BESIDE):
        self.root, self.browser, self.mode = root, browser, mode
        self.port, self.problems = free_port(), []

    def __enter__(self):
        folder = self.root / ".settings"
        folder.mkdir()
        settings = {
            "notebook-extension:tracker": {"windowingMode": "none"},
            "apputils-extension:notification": {
                "fetchNews": "false",
                "checkForUpdates": False,
            },
            "apputils-extension:kernels-settings": {"commsOverSubshells": self.mode},
            # Only what a test saves is saved.
            "docmanager-extension:plugin": {"autosave": False},
        }
        overrides = {f"@jupyterlab/{name}": value for name, value in settings.items()}
        (folder / "overrides.json").write_text(json.dumps(overrides))
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"),
                *(f"--port={self.port}", "--ip=127.0.0.1"),
                *("--ServerApp.port_retries=0", "--IdentityProvider.token="),
                "--ServerApp.disable_check_xsrf=True",
                f"--ServerApp.root_dir={self.root}",
                f"--LabApp.app_settings_dir={folder}",
                f"--LabApp.workspaces_dir={folder}",
                # The settings of whoever runs the tests are left alone.
                f"--LabApp.user_settings_dir={folder / 'user'}",
                "--LabApp.expose_app_in_browser=True",
            ],
            # As `jupyter lab` does: kernels find the programs beside their Python.
            env={**os.environ, "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.url}/api/status", timeout=2).close()
                return self
            assert time.monotonic() < deadline, "JupyterLab did not answer"
            time.sleep(0.2)

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def write(self, name, cells):
        """Write a notebook of these cells, given as text."""
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells]
        )
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook.metadata["kernelspec"] = kernel
        nbformat.write(notebook, self.root / f"{name}.ipynb")

    def open(self, name, *, run=True):
        """Open a notebook in a page of its own; run all cells."""
        page = self.browser.new_page(viewport={"width": 1280, "height": 1400})
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.problems.append(str(error)[:300]))
        page.goto(f"{self.url}/lab/workspaces/{name}/tree/{name}.ipynb?reset")
        page.wait_for_selector(".jp-Notebook", timeout=60_000)
        page.evaluate("() => { window.jupyterapp.shell.collapseLeft(); }")
        return self._wait(Book(self, page, name), run)

    @contextlib.contextmanager
    def opened_beside(self, book, name):
        """Open a notebook in the page of another one, for a while; run all cells."""
        book.execute("docmanager:open", {"path": f"{name}.ipynb"})
        try:
            yield self._wait(Book(self, book.page, name), True)
        finally:
            book.page.evaluate(DISPOSE)
            book.page.wait_for_function(SHOWS, arg=f"{book.name}.ipynb")
            # Its widgets say that they are gone when there is nobody left to tell.
            self.problems[:] = [p for p in self.problems if "Cannot send" not in p]

    def _wait(self, book, run):
        path = f"{book.name}.ipynb"
        book.page.wait_for_function(SHOWS, arg=path, timeout=60_000)
        book.page.wait_for_function(CONNECTED, timeout=60_000)
        if run:
            book.execute("notebook:run-all-cells")
            wait_until(lambda: book.prompts[-1].strip("[]:").isdigit())
        return book

    def _note(self, message):
        if message.type == "error":
            self.problems.append(message.text[:300])


class Book:
    """A notebook on a page; cells are counted from 0."""

    def __init__(self, lab, page, name):
        self.lab, self.page, self.name = lab, page, name

    @property
    def file(self):
        return self.lab.root / f"{self.name}.ipynb"

    @property
    def prompts(self):
        return self.page.evaluate(PROMPTS)

    def execute(self, command, options=None):
        """Execute a command of JupyterLab."""
        self.page.evaluate(EXECUTE, [command, options or {}])

    def cell(self, index):
        return self.page.locator(f"{SHOWN} .jp-CodeCell").nth(index)

    def panel(self, index):
        return Shown(self, index)

    def select(self, index):
        self.page.evaluate(SELECT, index)

    def start(self, index, code=None):
        """Start a cell, with this code."""
        if code is not None:
            self.page.evaluate(WRITE, [index, code])
        self.select(index)
        self.execute("notebook:run-cell")

    def run(self, index, code=None):
        """Run a cell to its end; return the text of its output."""
        before = self.prompts[index]
        self.start(index, code)
        wait_until(lambda: self.prompts[index] not in (before, "[*]:"))
        return self.output(index)

    def output(self, index):
        found = self.cell(index).locator(".jp-OutputArea-output").all_inner_texts()
        return "\n".join(found).strip()

    def tell(self, code):
        """Run code in the kernel that belongs to no cell, after the running cell."""
        self.page.evaluate(TELL, code)

    def save(self):
        """Save the notebook; return it as it then is on the disk."""
        self.page.evaluate(SAVE)
        return nbformat.read(self.file, 4)


class Shown:
    """A panel in the output of a cell."""

    def __init__(self, book, index):
        self.book, self.page = book, book.page
        self.root = book.cell(index).locator(".kit-panel")

    def find(self, name):
        """Find what has this class of its own."""
        return self.root.locator(f".kit-{name}")

    @property
    def status(self):
        return self.find("status").inner_text()

    @property
    def alt(self):
        picture = self.find("picture").locator("img")
        return picture.get_attribute("alt") if picture.count() else None

    @property
    def rows(self):
        """The history, as the texts of each row's cells."""
        found = self.find("words").locator("tbody tr").all()
        return [row.locator("th, td").all_inner_texts() for row in found]

    @property
    def is_idle(self):
        return self.find("stop").is_disabled() and self.find("run").is_enabled()

    def choose(self, knob, text):
        """Press a choice's button."""
        buttons = self.find(f"knob-{knob}").locator("button")
        buttons.filter(has_text=re.compile(rf"^\s*{re.escape(text)}\s*$")).click()

    def press(self, name):
        self.find(name).click()

    def time(self, name, pattern):
        """Press a button; return seconds until the status fits, seen in the page."""
        status, button = self.find("status"), self.find(name)
        handles = [status.element_handle(), button.element_handle(), pattern]
        self.page.evaluate(WATCH, handles)
        button.click()
        return self.page.evaluate("() => window.kitMilliseconds") / 1000

    def wait(self, pattern, seconds=30.0):
        wait_until(lambda: re.search(pattern, self.status), seconds)

    def wait_for_rows(self, count, seconds=30.0):
        wait_until(lambda: self.is_idle and len(self.rows) == count, seconds)
