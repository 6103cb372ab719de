"""`kit.explore` in a real JupyterLab: widget messages beside the cells, and after."""

import contextlib
import time

import nbformat
import psutil
import pytest

from browser.lab import BESIDE, wait_until

SETUP = """
import os, pathlib, time
import torch, kit
from torch.utils.data import DataLoader

pathlib.Path("{name}.pid").write_text(str(os.getpid()))
works = [1]

class Items:
    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        return index

def train(*, pause=1):
    "Sleep for a while."
    while True:
        time.sleep(0.001 * pause / works[0])
        yield 1

def announce():
    "Say when it is measured."
    print("it has its turn", flush=True)
    yield from train()

def load(*, num_workers=2):
    "Let workers load."
    while True:
        for batch in DataLoader(Items(), batch_size=8, num_workers=num_workers):
            time.sleep(0.001)
            yield len(batch)

kit.measure(train, seconds=0.02)
"""
EXPLORE = "{name} = kit.explore({what})\n{name}"
#: A notebook's cells: one that is changed at will, then a panel for each test.
#: Those that are looked at meanwhile last long enough for a machine that is busy.
PANELS = {
    "plain": "train, pause=[1, 2, 4], seconds=2",
    "knobs": "train, pause=[1, 2, 4], seconds=0.2",
    "workers": "load, num_workers=[1, 2], seconds=60",
    "beside": "train, pause=[1, 2], seconds=4",
    "first": "train, pause=[1, 2], seconds=5",
    "second": "train, pause=[1, 8], seconds=0.2",
    "waits": "train, pause=[1, 2], seconds=0.2",
    "fails": "train, pause=[1, 2], seconds=0.2",
    "keys": "train, pause=[1, 2, 4, 8, 16, 32, 64, 128], seconds=0.2",
    "again": "train, pause=[1, 2], seconds=60",
    "cleared": "train, pause=[1, 2], seconds=60",
    "fresh": "train, pause=[1, 2], seconds=0.2",
    "restart": "load, num_workers=[1, 2], seconds=60",
}
SCRATCH, FIRST = 1, 2
CELLS = {name: FIRST + number for number, name in enumerate(PANELS)}
#: For what has nothing to do with how messages travel.
ONCE = pytest.mark.parametrize("lab", [BESIDE], indirect=True)
HARMLESS = ("favicon", "ResizeObserver")


def cells(name, panels, setup=SETUP):
    made = [EXPLORE.format(name=n, what=what) for n, what in panels.items()]
    return [setup.replace("{name}", name), "0", *made]


@pytest.fixture(scope="module")
def opened(lab):
    """One notebook with all panels, open in a page."""
    lab.write("panels", cells("panels", PANELS))
    book = lab.open("panels")
    yield book
    book.page.close()


@pytest.fixture
def book(opened):
    """The notebook; afterwards nothing runs, and no console error was seen."""
    opened.lab.problems.clear()
    yield opened
    opened.tell(f"[p.stop() for p in ({', '.join(PANELS)},)]; works[0] = 1")
    seen = [p for p in opened.lab.problems if not any(word in p for word in HARMLESS)]
    assert not seen


@pytest.fixture
def panel(book):
    return lambda name: book.panel(CELLS[name])


def kernel_children(book):
    """The processes that the kernel has started, without Python's shared helper."""
    pid = int((book.lab.root / f"{book.name}.pid").read_text())
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "resource_tracker" not in " ".join(child.cmdline()):
                found.append(child)
    return found


# Run, Stop


def test_run_shows_progress_and_the_result(panel):
    shown = panel("plain")
    assert "Ready" in shown.status and shown.alt is None and not shown.rows
    shown.time("run", r"train\(pause=1\)")
    shown.wait("%")
    shown.wait_for_rows(1)
    shown.wait("Ready")
    assert "pause" in shown.alt and "items per second" in shown.alt
    assert shown.find("picture").locator("img").is_visible()
    assert shown.rows[0][2] in shown.alt and shown.rows[0][2] in shown.root.inner_text()


def test_a_knob_changes_what_runs_and_starts_nothing(panel):
    shown = panel("knobs")
    shown.choose("pause", "4")
    shown.press("run")
    shown.wait_for_rows(1)
    shown.choose("pause", "2")
    shown.press("run")
    shown.wait_for_rows(2)
    assert [row[1] for row in shown.rows] == ["2", "4"]


def test_stop_ends_the_run_and_its_workers(book, panel):
    shown = panel("workers")
    shown.choose("num_workers", "2")
    shown.press("run")
    shown.wait("%")
    assert len(kernel_children(book)) >= 2
    shown.press("stop")
    shown.wait("Ready")
    wait_until(lambda: not kernel_children(book), 5)
    assert "stopped" in shown.rows[0][-1]
    assert shown.is_idle


# Beside cells and other panels


def test_another_cell_runs_meanwhile_and_the_trial_says_so(book, panel):
    shown = panel("beside")
    shown.press("run")
    shown.wait("%")
    assert book.run(SCRATCH, "print(6 * 7)") == "42"
    assert not shown.rows, "the cell was answered after the run only"
    shown.wait_for_rows(1)
    assert "disturbed" in shown.rows[0][-1]


def test_two_panels_queue_and_both_finish(panel):
    first, second = panel("first"), panel("second")
    first.press("run")
    first.wait("%")
    second.press("run")
    second.wait(r"waiting.*train\(pause=1\)")
    assert not first.rows and not first.is_idle
    first.wait_for_rows(1)
    second.wait_for_rows(1)
    assert not [s for s in (first, second) if "disturbed" in s.rows[0][-1]]


def test_a_run_queues_while_a_cell_measures(book, panel):
    shown = panel("waits")
    book.start(SCRATCH, "kit.measure(announce, seconds=5)")
    wait_until(lambda: "it has its turn" in book.output(SCRATCH))
    shown.press("run")
    shown.wait_for_rows(1)
    wait_until(lambda: book.prompts[SCRATCH] != "[*]:")
    assert shown.rows[0][2] in shown.alt


# Failing


def test_a_failing_run_says_so_and_clears_the_old_result(book, panel):
    shown = panel("fails")
    shown.press("run")
    shown.wait_for_rows(1)
    assert shown.alt
    book.run(SCRATCH, "works[0] = 0")
    shown.press("run")
    shown.wait("ZeroDivisionError")
    assert shown.alt is None
    alert = shown.find("status").locator("[role=alert]")
    assert "train(pause=1)" in alert.inner_text()
    wait_until(lambda: len(shown.rows) == 2)
    assert "ZeroDivisionError" in shown.rows[0][-1]
    book.run(SCRATCH, "works[0] = 1")
    shown.press("run")
    shown.wait_for_rows(3)
    shown.wait("Ready")
    assert shown.alt and not alert.count()


# Keyboard


FOCUSED = """cell => {
  const element = document.activeElement;
  const cells = [...document.querySelectorAll('.jp-CodeCell')];
  const inside = element.closest('.kit-panel') && element.closest('.jp-CodeCell');
  if (!inside || cells.indexOf(inside) !== cell) return null;
  const style = getComputedStyle(element);
  const named = element.closest('[class*="kit-"]').className.match(/kit-[\\w-]+/)[0];
  return [named, style.outlineStyle, parseFloat(style.outlineWidth)];
}"""


def test_the_keyboard_alone_suffices(book, panel):
    shown, keyboard = panel("keys"), book.page.keyboard
    panel("fails").find("clear").focus()  # the last control before this panel
    reached = {}
    for _ in range(8):
        keyboard.press("Tab")
        focused = book.page.evaluate(FOCUSED, CELLS["keys"])
        if focused is None:
            break
        name, style, width = focused
        if name in reached:  # a slider's number takes the focus too
            continue
        reached[name] = (style, width)
        if name == "kit-knob-pause":
            keyboard.press("ArrowRight")
        if name == "kit-run":
            keyboard.press("Enter")
            shown.wait_for_rows(1)
    assert list(reached) == ["kit-knob-pause", "kit-run", "kit-run-all", "kit-clear"]
    assert shown.rows[0][1] == "2"
    shown.find("run").focus()
    keyboard.press("Space")
    shown.wait_for_rows(2)
    faint = [name for name, (style, width) in reached.items() if width < 2]
    assert not faint, "the panel's style draws 2 pixels around what has the focus"


def test_buttons_of_a_knob_are_pressed_by_keyboard(book, panel):
    shown, keyboard = panel("knobs"), book.page.keyboard
    count = len(shown.rows)
    shown.find("knob-pause").locator("button").first.focus()
    keyboard.press("Tab")
    keyboard.press("Space")
    shown.find("run").focus()
    keyboard.press("Enter")
    shown.wait_for_rows(count + 1)
    assert shown.rows[0][1] == "2"


# Ended


def test_rerunning_the_cell_ends_its_run_and_the_new_panel_works(book, panel):
    cell = CELLS["again"]
    panel("again").press("run")
    panel("again").wait("%")
    book.run(SCRATCH, "old = again")
    book.run(
        cell, EXPLORE.format(name="again", what="train, pause=[1, 2], seconds=0.2")
    )
    said = book.run(SCRATCH, "print([t.outcome for t in old.trials])")
    assert said == "['stopped']"
    panel("again").wait("Ready")
    panel("again").press("run")
    panel("again").wait_for_rows(1)


def test_clearing_the_output_ends_the_run(book, panel):
    shown = panel("cleared")
    shown.press("run")
    shown.wait("%")
    book.select(CELLS["cleared"])
    book.execute("notebook:clear-cell-output")
    wait_until(lambda: not shown.root.count())
    ask = "print([t.outcome for t in cleared.trials])"
    wait_until(lambda: book.run(SCRATCH, ask) == "['stopped']", 10)


# Stored


def outputs_of(notebook, cell):
    return [output["data"] for output in notebook.cells[cell].outputs]


@ONCE
def test_a_saved_notebook_holds_a_picture_and_a_table_and_shows_them(book, panel):
    cell = CELLS["fresh"]
    shown = panel("fresh")
    shown.press("run")
    shown.wait_for_rows(1)

    def stored():
        data = outputs_of(book.save(), cell)
        return "".join(d.get("text/html", "") for d in data)

    wait_until(lambda: "<img" in stored(), 5)
    kept, notebook = stored(), book.save()
    assert 'alt="' in kept and "data:image/png;base64," in kept
    assert "<table" in kept and shown.rows[0][2] in kept
    assert not notebook.metadata.get("widgets")
    # Opened by somebody else, who has not run it.
    notebook.cells = [notebook.cells[cell]]
    nbformat.write(notebook, book.lab.root / "stored.ipynb")
    again = book.lab.open("stored", run=False)
    output = again.cell(0).locator(".jp-Cell-outputArea")
    output.locator("img").wait_for(state="visible", timeout=10_000)
    wait_until(lambda: "Loading widget" not in output.inner_text(), 10)
    assert output.locator("table").is_visible()
    assert "Error displaying widget" not in output.inner_text()
    again.page.close()
    # The page looks for the model before it gives up, and notes that it did.
    problems = book.lab.problems
    problems[:] = [p for p in problems if "widget model not found" not in p]


# Looks


CONTRASTS = """() => {
  const parse = text => {
    const found = text.match(/[\\d.]+/g).map(Number);
    if (text.startsWith('color(srgb')) {
      return [...found.slice(0, 3).map(x => 255 * x), found[3] ?? 1];
    }
    return [...found.slice(0, 3), found[3] ?? 1];
  };
  const over = (top, alpha, below) =>
    top.map((x, i) => alpha * x + (1 - alpha) * below[i]);
  const light = colour => {
    const [r, g, b] = colour.map(x => x / 255)
      .map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const background = element => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) {
      const [r, g, b, alpha] = parse(getComputedStyle(e).backgroundColor);
      if (alpha > 0) layers.push([[r, g, b], alpha]);
      if (alpha === 1) break;
    }
    return layers.reverse().reduce((below, [top, alpha]) => over(top, alpha, below),
      [255, 255, 255]);
  };
  const found = [];
  for (const panel of document.querySelectorAll('.kit-panel')) {
    const walker = document.createTreeWalker(panel, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const element = walker.currentNode.parentElement;
      const text = walker.currentNode.textContent.trim();
      const hidden = !element.checkVisibility({visibilityProperty: true});
      if (!text || hidden || element.closest('style, :disabled')) continue;
      let opacity = 1;
      for (let e = element; e !== panel; e = e.parentElement) {
        opacity *= parseFloat(getComputedStyle(e).opacity);
      }
      const [r, g, b, alpha] = parse(getComputedStyle(element).color);
      const below = background(element);
      const [a, z] = [light(over([r, g, b], alpha * opacity, below)), light(below)];
      const contrast = (Math.max(a, z) + 0.05) / (Math.min(a, z) + 0.05);
      found.push([contrast, text.slice(0, 40), element.className]);
    }
  }
  return found;
}"""
THEME = "() => document.body.dataset.jpThemeName"
#: What sticks out of its panel on the right, or has text that it cannot show.
OVERFLOW = """() => [...document.querySelectorAll('.kit-panel')].flatMap(panel => {
  const edge = panel.getBoundingClientRect();
  const page = document.querySelector('.jp-WindowedPanel-outer, .jp-Notebook')
    .getBoundingClientRect();
  const out = edge.right > page.right + 1 ? ['panel'] : [];
  if (panel.scrollWidth > panel.clientWidth + 1) out.push('panel scrolls');
  for (const e of panel.querySelectorAll('*')) {
    const box = e.getBoundingClientRect();
    if (box.width && box.right > edge.right + 1) out.push(e.className || e.tagName);
    const cut = e.tagName === 'BUTTON' && e.scrollWidth > e.clientWidth + 1;
    if (cut) out.push(`cut: ${e.innerText}`);
  }
  return out;
})"""


@pytest.fixture
def states(book, panel):
    """Panels with a result, with an error, running and untouched."""
    shown, failed, running = panel("knobs"), panel("fails"), panel("workers")
    if not shown.rows:
        shown.press("run")
        shown.wait_for_rows(1)
    if "ZeroDivisionError" not in failed.status:
        book.run(SCRATCH, "works[0] = 0")
        failed.press("run")
        failed.wait("ZeroDivisionError")
    running.press("run")
    running.wait("%")


@ONCE
@pytest.mark.usefixtures("states")
def test_text_can_be_read_in_both_themes(book):
    try:
        for theme in ("JupyterLab Dark", "JupyterLab Light"):
            book.execute("apputils:change-theme", {"theme": theme})
            wait_until(lambda theme=theme: book.page.evaluate(THEME) == theme)
            book.page.wait_for_function(
                "() => document.getAnimations().every(a => a.playState !== 'running')"
            )
            found = book.page.evaluate(CONTRASTS)
            assert len(found) > 50
            weak = {tuple(row[1:]): round(row[0], 2) for row in found if row[0] < 4.5}
            assert not weak, f"{theme}: {weak}"
    finally:
        book.execute("apputils:change-theme", {"theme": "JupyterLab Light"})


@ONCE
@pytest.mark.usefixtures("states")
def test_nothing_sticks_out_and_controls_stand_left_of_the_picture(book, panel):
    shown = panel("knobs")
    try:
        for width in (1600, 900):
            book.page.set_viewport_size({"width": width, "height": 1400})
            wait_until(lambda: not book.page.evaluate(OVERFLOW), 5)
            names = ("knob-pause", "run", "stop")
            controls = [shown.find(name).bounding_box() for name in names]
            picture = shown.find("picture").locator("img").bounding_box()
            right = max(box["x"] + box["width"] for box in controls)
            assert right <= picture["x"], f"at {width} pixels"
            assert controls[0]["y"] < picture["y"] + picture["height"]
            left = [box["x"] for box in controls[:2]]
            assert max(left) - min(left) <= 2, "controls are aligned"
    finally:
        book.page.set_viewport_size({"width": 1280, "height": 1400})


# Blocking


def test_blocking_mode_shows_progress_and_can_be_ended(lab, book):
    setup = "import os\nos.environ['KIT_BLOCKING'] = '1'\n" + SETUP
    panels = {"blocking": "train, pause=[1, 2], seconds=60"}
    lab.write("blocking", cells("blocking", panels, setup))
    with lab.opened_beside(book, "blocking") as blocking:
        shown = blocking.panel(FIRST)
        shown.press("run")
        shown.wait("%")
        blocking.execute("notebook:interrupt-kernel")
        shown.wait("Ready", 10)
        wait_until(lambda: shown.is_idle)
        assert blocking.run(SCRATCH, "print(6 * 7)") == "42"


# The last one: it takes the kernel away


def test_restarting_the_kernel_leaves_no_process(opened):
    shown = opened.panel(CELLS["restart"])
    shown.press("run")
    shown.wait("%")
    workers = kernel_children(opened)
    assert workers
    opened.page.evaluate(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.restartKernel()"
    )
    begun = time.monotonic()
    wait_until(lambda: not any(map(is_alive, workers)), 20)
    print(f"no worker is left after {time.monotonic() - begun:.1f} s")


def is_alive(process):
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
