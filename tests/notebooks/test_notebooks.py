"""Notebooks store nothing wrong or stale, and are renewed without measuring again."""

import re
import subprocess

import check_notebooks
import nbformat
import pages
import pytest
import renew
import torch
from check_notebooks import find_faults
from fingerprints import (
    Cell,
    ClaimError,
    fingerprint,
    fingerprint_claims,
    read_cells,
)
from project import APPENDICES, CHAPTERS, PYTHON, ROOT, TUTORIALS, every_chapter
from replay import find_drawn, merge, return_recorded
from trials import make_machine, rate_trial

import kit
from kit import panel, recording, results, tuning
from kit.measuring import measurement
from kit.measuring.comparison import Comparison

NOTEBOOKS = [*CHAPTERS, *APPENDICES]
#: Chapters whose second edition is to come have fewer cells that nbval compares.
FEWER = {"00": 0, "04": 3, "06": 3, "07": 2, "11": 4, "12": 3, "19": 4}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_nothing_is_wrong_with_what_a_notebook_stores(path, monkeypatch):
    least = FEWER.get(path.name[:2], check_notebooks.LEAST)
    monkeypatch.setattr(check_notebooks, "LEAST", least)
    assert list(find_faults(path)) == []


@pytest.fixture
def notebook(tmp_path):
    """Write a notebook with these cells, as `record.py` would store it."""

    def write(*cells, **metadata):
        made = [nbformat.v4.new_code_cell(source) for source in cells]
        for number, cell in enumerate(made):
            cell.id, cell.execution_count = f"cell-{number}", number + 1
        book = nbformat.v4.new_notebook(cells=made, metadata={**PYTHON, **metadata})
        path = tmp_path / "more" / "made_up.ipynb"
        path.parent.mkdir(exist_ok=True)
        pages.write_notebook(book, path)
        return path

    return write


def change(path, edit):
    """Change one cell of a stored notebook behind the back of `record.py`."""
    book = nbformat.read(path, as_version=4)
    edit(book, book.cells[0])
    nbformat.write(book, path)
    return list(find_faults(path))


def test_the_chapters_cover_all_points_of_their_sources():
    """No list but what the notebooks say: whoever drops a point sees it here."""
    said = set()
    for path in NOTEBOOKS:
        said |= {*nbformat.read(path, as_version=4).metadata.kit.get("sources", [])}
    known = {"A": 18, "D": 9, "R": 7, "P": 11}
    assert said == {f"{k}{n + 1}" for k, most in known.items() for n in range(most)}


def test_every_entry_of_the_errata_asserts_what_it_shows():
    """An entry is what stands under a heading of the third level."""
    book = nbformat.read(TUTORIALS / "more" / "errata.ipynb", as_version=4)
    text = "\n".join(cell.source for cell in book.cells)
    _, *entries = re.split(r"^### ", text, flags=re.M)
    assert len(entries) >= 15
    assert all(re.search(r"^ *assert", entry, re.M) for entry in entries)


def test_the_glossary_explains_each_term_once_in_alphabetical_order():
    page = (TUTORIALS / "GLOSSARY.md").read_text("utf-8")
    entries = pages.read_entries(page)
    assert len(entries) == page.count("\n### ") > 40
    assert [*entries] == sorted(entries)
    for term, text in entries.items():
        assert len(text.split()) > 10, f"{term} explains nothing"


@every_chapter
def test_the_contents_name_every_chapter(path):
    assert f"](tutorials/{path.name})" in (ROOT / "README.md").read_text("utf-8")


# Fingerprints


#: What Python 3.11, 3.12 and 3.13 parse into trees that `ast.dump` tells apart.
ODD = '''
"""  A docstring.

    With an indent.
"""
f"{x=} {{a}} {y!r:>{w}} {z:%d %b}" "b" f"c{d}{{}}"
def f(a, /, b: int = 3, *c, d=..., **e) -> "x":
    return a[1:2, ...], {**e}, [*c], -1, 1e300, 1j, b"x", None, u"t"
class A(B, m=C):
    x: int
match x:
    case {"a": [1, *r], **k} if (y := 2):
        pass
    case P(z=1) | None:
        await g()
'''


def test_a_fingerprint_is_the_same_on_every_python():
    """Written down on Python 3.11; the stored ones of all notebooks count, too."""
    assert fingerprint(ODD) == "f47091e498d3"
    assert fingerprint(f"%matplotlib inline\nfiles = !ls\n{ODD}") == "4847967df83e"


def fingerprint_claim(path, *sources):
    cells = [Cell(f"{number}", source) for number, source in enumerate(sources)]
    return fingerprint_claims(path, cells)["So."]


BEFORE = "def f(n=1):\n    yield n\nfound = kit.compare(f, n=[1, 2])"
CLAIM = "kit.claim('So.', found.ratio, at_least=2)"


@pytest.mark.parametrize(
    "sources",
    [
        [
            "def f(n = 1):  # laid out\n  yield n\nfound = kit.compare(f, n=[1, 2])",
            CLAIM,
        ],
        ["def f(n=1):\n    yield n", "found = kit.compare(f, n=[1, 2])", CLAIM],
        [BEFORE.replace("yield", "'A text.'\n    yield"), CLAIM],
        [BEFORE + "\nprint('more words')", CLAIM],
        ["%matplotlib inline\n" + BEFORE, CLAIM],
        [BEFORE.replace("2])", "2], title='Words')"), CLAIM],
        [BEFORE, CLAIM.replace("at_least=2", "open=True, otherwise='Or not.'")],
        [BEFORE, CLAIM, "found = None"],
    ],
)
def test_what_measures_nothing_makes_no_recording_stale(tmp_path, sources):
    path = tmp_path / "made_up.ipynb"
    assert fingerprint_claim(path, *sources) == fingerprint_claim(path, BEFORE, CLAIM)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("n=1", "n=3"),
        ("[1, 2]", "[2, 1]"),
        ("yield n", "yield 2"),
        ("f, n", "f, m"),
    ],
)
def test_what_is_measured_makes_a_recording_stale(tmp_path, old, new):
    path, after = tmp_path / "made_up.ipynb", BEFORE.replace(old, new)
    assert after != BEFORE
    assert fingerprint_claim(path, after, CLAIM) != fingerprint_claim(
        path, BEFORE, CLAIM
    )


def test_a_module_beside_the_notebook_counts_and_a_file_of_a_cell_by_its_cell(tmp_path):
    path, cell = tmp_path / "made_up.ipynb", "import beside\n" + BEFORE
    (tmp_path / "beside.py").write_text("import other\n'''Text.'''\nX = 1\n")
    (tmp_path / "other.py").write_text("Y = 1\n")
    before = fingerprint_claim(path, cell, CLAIM)
    (tmp_path / "other.py").write_text("'''Told.'''\nY = 1  # one\n")
    assert fingerprint_claim(path, cell, CLAIM) == before
    (tmp_path / "other.py").write_text("Y = 2\n")
    assert fingerprint_claim(path, cell, CLAIM) != before
    writes = "%%writefile beside.py\nX = 1"
    without = fingerprint_claim(path, writes, cell, CLAIM)
    (tmp_path / "beside.py").write_text("X = 5\n")
    assert fingerprint_claim(path, writes, cell, CLAIM) == without
    assert fingerprint_claim(path, writes + "0", cell, CLAIM) != without


def test_a_claim_that_stands_twice_is_refused(tmp_path):
    with pytest.raises(ClaimError, match="twice"):
        fingerprint_claim(tmp_path / "made_up.ipynb", BEFORE, CLAIM, CLAIM)


# Replay


def run_of(*outputs):
    """A run of a notebook whose cells print these texts."""
    sources = ["x = kit.compare(f)\nx", "print(x.ratio)", "losses", "time_it(x)"]
    cells = []
    for number, (source, text) in enumerate(zip(sources, outputs, strict=True)):
        cell = nbformat.v4.new_code_cell(source)
        cell.id, cell.execution_count = f"cell-{number}", number + 1
        cell.outputs = [nbformat.v4.new_output("stream", text=text)]
        cells.append(cell)
    made_by = {cell.id: "of an earlier title" for cell in cells}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kit": {"made_by": made_by}})


def test_replay_renews_what_was_recorded_and_keeps_what_was_not():
    stored = run_of("old", "old ratio", "old loss", "1 ms")
    one = run_of("new", "new ratio", "new loss", "2 ms")
    other = run_of("new", "new ratio", "new loss", "3 ms")
    remarks = merge(stored, [one, other])
    shown = [cell.outputs[0].text for cell in stored.cells]
    assert shown == ["new", "new ratio", "old loss", "1 ms"]
    made_by = stored.metadata.kit.made_by
    renewed = [name for name, value in made_by.items() if "earlier" not in value]
    assert renewed == ["cell-0", "cell-1"]
    assert [remark.split()[0] for remark in remarks] == ["cell-2", "cell-3"]
    assert find_drawn([Cell("a", "kit.recorded('x/y')"), Cell("b", "2")]) == {"a"}


def count(*, n=1):
    while True:
        yield n


RENEWED = [("x.save()", True), ("x.save(2)", False), ("y.save()", False)]


@pytest.mark.parametrize(("after", "is_kept"), RENEWED)
def test_a_renamed_method_keeps_what_was_recorded_and_nothing_else_does(
    notebook, after, is_kept
):
    path = notebook("x.write()", "kit.claim('It is fast.', ratio)")
    (then,) = fingerprint_claims(path, read_cells(path)).values()
    recorded = path.parent / "recordings" / "made_up__here__2025-01-01.json"
    rows = [{"sentence": "It is fast.", "fingerprint": then}]
    recording.write(recording.Recording([], [], rows), recorded)
    stale = recording.Recording([], [], [{"sentence": "It is fast."}])
    recording.write(stale, recorded.with_stem("made_up__elsewhere__2025-01-01"))
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(path.parent)]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "before"]):
        subprocess.run([*git, *arguments], check=True)
    faults = change(path, lambda _, cell: cell.update(source=after))
    assert faults == ["changed since the outputs were made: cell-0"]
    if is_kept:
        assert len(renew.renew(path, "HEAD", {"write": "save"})) == 2
    else:
        with pytest.raises(SystemExit, match="more than names has changed"):
            renew.renew(path, "HEAD", {"write": "save"})
    assert (list(find_faults(path)) == []) is is_kept
    (now,) = fingerprint_claims(path, read_cells(path)).values()
    (row,) = recording.read(recorded).claims
    assert (row["fingerprint"] == now) is is_kept


@pytest.fixture
def put_back(monkeypatch):
    """Put back what a replay sets in the kit."""
    for module in (measurement, panel, tuning):
        for name in ("compare_watched", "measure_watched"):
            monkeypatch.setattr(module, name, getattr(measurement, name), raising=False)
    monkeypatch.setattr(results, "this_machine", results.this_machine)


@pytest.fixture
def replayed(tmp_path, put_back):
    """Replay a recording in which n=2 is three times as fast as n=1."""
    machine = make_machine("imaginary-2-cores")
    slow = rate_trial(1.0, machine=machine, knobs={"n": 1})
    fast = rate_trial(1 / 3, machine=machine, knobs={"n": 2})
    comparison = Comparison([slow, fast], ["n=1", "n=2"])
    recording.write(
        recording.Recording([slow, fast, fast], [comparison], []), tmp_path / "a.json"
    )
    return_recorded(tmp_path / "a.json")


def test_replay_knows_a_knob_that_a_recording_has_in_words(tmp_path, put_back):
    trial = rate_trial(1.0, knobs={"n": torch.float32})
    recording.write(recording.Recording([trial], [], []), tmp_path / "a.json")
    return_recorded(tmp_path / "a.json")
    assert kit.measure(count, n=torch.float32).knobs == {"n": "torch.float32"}


def test_replay_measures_nothing_and_takes_the_new_title(replayed):
    made = kit.compare(count, n=[1, 2], title="Three times as fast.")
    assert made.ratio.value == pytest.approx(3)
    assert made.headline() == "Three times as fast."
    assert kit.measure(count, n=2).items_per_second == pytest.approx(30)
    with pytest.raises(recording.RecordingError, match="nothing of it"):
        kit.measure(count, n=1)


def test_replay_lets_finders_measure_since_no_recording_has_what_they_try(
    replayed, monkeypatch
):
    monkeypatch.setenv("KIT_QUICK", "1")
    tuned = tuning.find_batch_size(count, knob="n", memory=1e9, most=2)
    assert list(tuned.trials) == [2]
    assert kit.compare(count, n=[1, 2]).ratio.value == pytest.approx(3)


@pytest.mark.parametrize(
    ("how", "knobs"), [("compare", {"n": [1, 3]}), ("measure", {})]
)
def test_replay_refuses_what_was_not_recorded_there(replayed, how, knobs):
    with pytest.raises(recording.RecordingError, match=r"recorded was|nothing of it"):
        getattr(kit, how)(count, **knobs)
