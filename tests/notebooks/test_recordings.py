"""From a shell: `claims` and `record` in tutorials/scripts."""

import datetime
import math
import re
from pathlib import Path
from types import SimpleNamespace

import adopt
import claims
import nbformat
import pytest
import record as recorder
import recording
from fingerprints import fingerprint
from pages import format_table
from recording import Recording
from trials import make_machine, rate_trial, run_trial

from kit.measuring.report import Comparison
from kit.measuring.verdict import Ratio
from kit.teaching import Claim

CPU, GPU, CHAPTER = "imaginary-2-cores", "imaginary-gpu", "00_made_up"
SENTENCE = "Two are faster than one."
COUNT = "def count(*, n=1):\n    while True:\n        yield n"
COUNT += "\n\n\ncomparison = kit.compare(count, n=[1, 2])"
CLAIM = f"kit.claim({SENTENCE!r}, comparison, at_least=1.5, otherwise='Or not.')"


@pytest.fixture(autouse=True)
def alone(own_folder, own_journal):
    """A folder and a journal of its own."""


def run(capsys, command, *words):
    try:
        status = command([str(word) for word in words])
    except SystemExit as ended:
        status = ended.code
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return status, printed.out, printed.err


def write_chapter(folder, *cells, name=CHAPTER):
    folder.mkdir(parents=True, exist_ok=True)
    book = nbformat.v4.new_notebook()
    book.cells = [nbformat.v4.new_markdown_cell(f"# {len(cells)} cells")]
    book.cells += [nbformat.v4.new_code_cell(source) for source in cells]
    nbformat.write(book, path := folder / f"{name}.ipynb")
    return path


def made_up(speed, machine=CPU):
    speeds = speed if isinstance(speed, list) else [speed] * 5
    where = {"machine": make_machine(machine)}
    slow = rate_trial(1.0, knobs={"n": 1}, **where)
    fast = rate_trial(lambda s, r, b: 1 / speeds[s // 2], knobs={"n": 2}, **where)
    return Comparison([slow, fast], ["n=1", "n=2"])


def record(folder, speed=2.0, machine=CPU, chapter=CHAPTER, said=SENTENCE, year=2026):
    comparison = made_up(speed, machine)
    row = Claim(said, comparison.ratio, "faster", 1.5, "Or not.").to_dict()
    row |= {"comparison": 0, "label": "n=2"}
    made = Recording(comparison.trials, [comparison], [row])
    if (folder / f"{chapter}.ipynb").is_file():
        recorder.add_fingerprints(made, folder / f"{chapter}.ipynb")
    path = folder / "recordings" / f"{chapter}__{machine}__{year}-01-02.json"
    recording.write(made, path)
    return path


PLAIN, WIDE = CLAIM.replace(", at_least=1.5", ""), [0.9, 1.0, 1.1, 1.2, 1.3]
SAME = CLAIM.replace("at_least=1.5", "expect='same'")
CHANGED = COUNT.replace("yield n", "yield 2 * n")
HARMLESS = ["%%bash\nfor x in 1 2; do echo $x; done", "%%writefile a.txt\nno Python"]
HARMLESS += ["files = !ls", "await some()", f"# {CLAIM}", f"text = {CLAIM!r}"]
THREE = "'Three are best.', other"
ONE_MORE = [f"claim({THREE})", f"teaching.claim({THREE})", f"kit.claim(\n    {THREE})"]
ONE_MORE += [f"if True:\n    made = kit.claim({THREE})", "kit.claim(f'Three {n}', x)"]
ONE_MORE += [f"%matplotlib inline\nkit.claim({THREE})", "kit.claim(sentence='Three')"]
#: A chapter's cells, how many times as fast it was recorded, and what has to be said.
CASES = [([COUNT, CLAIM, cell], {CPU: 2.0}, []) for cell in HARMLESS]
CASES += [([COUNT, CLAIM, cell], {CPU: 2.0}, ["Three"]) for cell in ONE_MORE]
CASES += [([COUNT.replace("yield n", "yield n #"), CLAIM], {CPU: 2.0}, [])]
CASES += [([COUNT, "x = 1", CLAIM], {CPU: 2.0}, ["stale", "record it again"])]
CASES += [([COUNT], {CPU: 0.5}, []), ([COUNT, CLAIM], {CPU: 2.0, GPU: 0.5}, [])]
CASES += [([COUNT, CLAIM], {CPU: 1.0, GPU: 0.5}, ["contradict", CPU, GPU])]
CASES += [([COUNT, CLAIM.replace("1.5", "3")], {CPU: 2.0}, ["contradict"])]
CASES += [([COUNT, SAME], {CPU: 2.0}, ["contradict"])]
CASES += [([COUNT, CLAIM], {}, ["current recording", SENTENCE])]
CASES += [([COUNT, CLAIM.replace("at_least=1.5", "open=True")], {CPU: WIDE}, [])]
CASES += [([COUNT, PLAIN], {CPU: WIDE}, ["no machine can tell"])]
CASES += [([COUNT, PLAIN], {CPU: 2.0, GPU: WIDE}, [])]
CASES += [([CHANGED, PLAIN], {CPU: 2.0, GPU: 2.0}, [f"stale: {CPU}, {GPU}"])]
CASES += [([CLAIM], {CPU: 2.0}, ["current recording", "record it again"])]
CASES += [([COUNT, CLAIM, CLAIM], {CPU: 2.0}, ["twice"])]


@pytest.mark.parametrize(("cells", "speeds", "words"), CASES)
def test_a_claim_rests_on_runs_of_the_same_code(tmp_path, capsys, cells, speeds, words):
    write_chapter(folder := tmp_path / "tutorials", COUNT, CLAIM)
    for machine, speed in speeds.items():
        record(folder, speed, machine)
    write_chapter(folder, *cells)
    status, out, err = run(capsys, claims.main, "--check")
    assert status == bool(words), err
    assert all(word in err for word in [CHAPTER, *words] if words)
    mark = "✗" if "contradict" in words else "?" if WIDE in speeds.values() else "✓"
    assert SENTENCE not in out or mark in out
    assert run(capsys, claims.main, "--folder", folder)[0] == 0, "without --check"


def test_a_page_of_claims_is_the_recordings_or_is_told_and_written(tmp_path, capsys):
    write_chapter(folder := tmp_path / "tutorials", COUNT, CLAIM)
    for machine, speed in ((GPU, 4.0), (CPU, 2.0)):
        record(folder, speed, machine)
    page = folder / "CLAIMS.md"
    page.write_text(f"Before.\n{claims.START}\nold\n{claims.END}\nAfter.\n")
    status, out, err = run(capsys, claims.main, "--check")
    assert status == 1 and "--write" in err and "old" in page.read_text()
    assert run(capsys, claims.main, "--write", "--check")[0] == 0
    before, *table, after = page.read_text("utf-8").splitlines()
    assert (before, after) == ("Before.", "After.") and out.strip() in "\n".join(table)
    assert re.search(rf"{CPU} \| {GPU} \|\n.*\n.*✓ 2 ×.*✓ 4 ×", out)
    assert r"| a\|b |" in format_table(["a|b"], []), "a sentence is no more than a cell"


SPOILT = {"cut": "cannot be read", "renamed": f"was made on {CPU}"}
SPOILT |= {"quick": "quick mode", "verdict": "whole"}


@pytest.mark.parametrize(("how", "said"), SPOILT.items())
def test_a_spoilt_recording_counts_for_nothing(tmp_path, capsys, how, said):
    write_chapter(tmp_path / "tutorials", COUNT, CLAIM)
    made = recording.read(path := record(tmp_path / "tutorials", 4.0))
    if how == "quick":
        object.__setattr__(made.trials[0], "outcome", how)
    elif how == "verdict":
        made.claims[0][how] = "✓"
    recording.write(made, path)
    if how == "cut":
        path.write_bytes(path.read_bytes()[:500])
    elif how == "renamed":
        path.rename(str(path).replace(CPU, GPU))
    status, out, err = run(capsys, claims.main, "--check")
    assert status == 1 and "4 ×" not in out
    assert said in err and len(err.splitlines()) <= 6


def test_an_adopted_recording_belongs_to_the_code_with_another_name(tmp_path, capsys):
    for folder in (tmp_path / "before" / "tutorials", tmp_path / "tutorials"):
        write_chapter(folder, COUNT, CLAIM)
    path = record(folder)
    renamed = [cell.replace("comparison", "compared") for cell in (COUNT, CLAIM)]
    chapter = write_chapter(folder, *renamed).relative_to(tmp_path)
    status, _, err = run(capsys, claims.main, "--check")
    assert status == 1 and f"stale: {CPU}" in err
    status, out, _ = run(capsys, adopt.main, "before", chapter)
    assert status == 0 and SENTENCE in out
    status, out, err = run(capsys, claims.main, "--check")
    assert (status == 0 and f"✓ {SENTENCE}" in out) or "✓ 2 ×" in out, err
    assert recording.read(path).claims, "its checksum is that of its content"


QUIET = (0.98, 1.02)
UNQUIET = [(0.95, 1.0), (1.0, 1.05), (0.3, 4.0), (1.04, 1.05), (math.nan, math.nan)]
BETTER = [run_trial([1.0, 1.0], {"accuracy": [0, x, 0, x]}) for x in (0.8, 1.0)]
OTHERS = Comparison(BETTER, ["a", "b"], "accuracy", 0.01)
MEASURE = f"""import kit
from kit.measuring.records import tell_listeners
from test_recordings import OTHERS, made_up
from trials import make_trial
comparison = made_up(2.0, {CPU!r})
tell_listeners(make_trial(outcome="stopped"), *comparison.trials, comparison)
tell_listeners(*OTHERS.trials, OTHERS)"""
#: What a cell may show; only the first is kept.
SHOWN = [{"data": {"text/plain": "shown"}}, {"data": {"text/html": "<script>"}}]
SHOWN += [{"data": {"application/vnd.jupyter.widget-view+json": {}}}]
SHOWN += [{"data": {"text/plain": "3 s left"}, "metadata": {"kit": "progress"}}]


class Kernel:
    is_cut, environments = False, []

    def __init__(self, notebook, **options):
        self.notebook = notebook

    def execute(self, env):
        self.environments.append(env)
        names = {}
        for number, cell in enumerate(self.notebook.cells):
            if cell.cell_type == "code" and not (self.is_cut and cell.source == CLAIM):
                exec(cell.source, names)
                shown = [nbformat.v4.new_output("display_data", **x) for x in SHOWN]
                cell.execution_count, cell.outputs = number, shown


@pytest.fixture
def quiet(monkeypatch, tmp_path):
    """A chapter, and intervals that checks will find, the last one again and again."""
    monkeypatch.setattr(recorder, "Client", Kernel)
    looks = SimpleNamespace(ahead=[QUIET], found=[])
    looks.chapter = write_chapter(tmp_path / "tutorials", MEASURE, CLAIM)

    def look(experiments, *, seconds):
        assert [*experiments.values()] == [recorder.train] * 2 and seconds == 20
        looks.found.append(looks.ahead[0])
        looks.ahead[:] = looks.ahead[1:] or looks.ahead
        return SimpleNamespace(ratio=Ratio(1.0, *looks.found[-1], "same"))

    monkeypatch.setattr(recorder, "compare", look)
    return looks


def test_a_recorded_chapter_is_static_and_replaces_it(quiet, capsys, monkeypatch):
    monkeypatch.setenv("KIT_QUICK", "1")
    quiet.ahead[:] = [UNQUIET[0], QUIET]  # a short disturbance is waited for
    chapter = quiet.chapter
    for year in (2024, 2025):
        record(chapter.parent, year=year)
    others = [record(chapter.parent, machine=name) for name in (GPU, f"{CPU}-more")]
    others += [record(chapter.parent, chapter="01_second")]
    status, out, err = run(capsys, recorder.main, chapter)
    assert (status, err) == (0, "") and f"✓ {SENTENCE}" in out
    [path] = {*(chapter.parent / "recordings").iterdir()} - {*others}
    today = datetime.date.today().isoformat()
    assert path.name == f"{CHAPTER}__{CPU}__{today}.json"
    made = recording.read(path)
    assert [trial.knobs["n"] for trial in made.trials] == [1, 2, 1, 1], "none stopped"
    assert made.trials[2:] == BETTER and made.comparisons[1].ratios == OTHERS.ratios
    assert made.comparisons[0].ratio.value == pytest.approx(2)
    [row] = made.claims
    wanted = {"sentence": SENTENCE, "at_least": 1.5, "otherwise": "Or not."}
    wanted |= {"expect": "faster", "comparison": 0, "label": "n=2"}
    assert wanted.items() <= row.items() and row["fingerprint"]
    assert not any(word in path.read_text("utf-8") for word in ("verdict", "✓"))
    book = nbformat.read(chapter, as_version=4)
    _, *cells = book.cells
    assert book.metadata.kit.made_by == {c.id: fingerprint(c.source) for c in cells}
    assert [cell.source for cell in cells] == [MEASURE, CLAIM], "and no machinery"
    assert [[x.data for x in c.outputs] for c in cells] == [[SHOWN[0]["data"]]] * 2
    environment = Kernel.environments[-1]
    assert "KIT_QUICK" not in environment and environment["KIT_STATIC"] == "1"


def test_a_recording_stopped_by_its_time_limit_replaces_no_chapter(
    quiet, capsys, monkeypatch
):
    assert run(capsys, recorder.main, quiet.chapter)[0] == 0
    monkeypatch.setattr(Kernel, "is_cut", True)
    how = "--seconds", 999, "--into", "there"
    assert run(capsys, recorder.main, *how, quiet.chapter)[0] == 1
    cut, made = sorted(Path("there").iterdir(), key=lambda path: path.suffix)
    assert cut.name == f"{CHAPTER}_cut.ipynb" and recording.read(made).trials
    assert not nbformat.read(cut, as_version=4).cells[-1].outputs, "it did not run"


def test_a_full_disk_costs_no_earlier_recording_and_no_chapter(quiet, monkeypatch):
    def fail(*_):
        raise OSError("the disk is full")

    made, before = record(quiet.chapter.parent, year=2025), quiet.chapter.read_bytes()
    for owner, name in ((recorder, "write"), (Path, "replace")):
        with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
            patch.setattr(owner, name, fail)
            recorder.main([str(quiet.chapter)])
        assert made.is_file() or owner is Path, "the new one was whole"
        assert quiet.chapter.read_bytes() == before


def test_what_solutions_measure_is_not_kept_as_the_chapters(quiet, capsys):
    path = write_chapter(quiet.chapter.parent / "solutions", MEASURE, CLAIM)
    assert run(capsys, recorder.main, path)[0] == 0
    assert nbformat.read(path, as_version=4).cells[-1].outputs
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def record_in_vain(quiet, capsys, *options):
    """Record so that no chapter and no recording may change; return what was said."""
    readers = write_chapter(quiet.chapter.parent, "1 / 0", name="broken").parent
    before = {path: path.read_bytes() for path in readers.rglob("*.*")}
    found = run(capsys, recorder.main, *options, quiet.chapter)
    assert {path: path.read_bytes() for path in readers.rglob("*.*")} == before
    return found


TRIES = [("--dry-run", 0, f"✓ {SENTENCE}", 0), ("--into there", 0, f"✓ {SENTENCE}", 2)]
TRIES += [("--quick --into there", 0, f"? {SENTENCE}", 0), ("--quick", 1, "--into", 0)]
TRIES += [("--seconds 60", 1, "--into", 0), ("--into tutorials", 1, "--into", 0)]
TRIES += [("--quick --into tutorials/recordings", 1, "--into", 0)]
TRIES += [("--seconds 1 --into there", 1, "left out", 0)]
TRIES += [("--dry-run tutorials/absent.ipynb", 1, "absent.ipynb", 0)]
TRIES += [("--dry-run tutorials/broken.ipynb", 1, "division by zero", 0)]


@pytest.mark.parametrize(("how", "status", "said", "looks"), TRIES)
def test_a_trial_recording_leaves_chapters_and_recordings_untouched(
    quiet, capsys, tmp_path, how, status, said, looks
):
    found, out, err = record_in_vain(quiet, capsys, *how.split())
    assert found == status and said in out + err and len(quiet.found) == looks
    written = sorted((tmp_path / "there").glob("*"), key=lambda path: path.suffix)
    is_kept = "there" in how and not status
    assert [path.suffix for path in written] == [".ipynb", ".json"] * is_kept


@pytest.mark.parametrize("interval", UNQUIET)
def test_on_a_machine_that_is_not_quiet_no_recording_is_kept(quiet, capsys, interval):
    quiet.ahead[:] = [interval]
    status, out, err = record_in_vain(quiet, capsys)
    assert status == 1 and "End other programs" in out + err
    assert len(quiet.found) == 3 and "recording" not in out, "nothing is run in vain"
    quiet.ahead[:], quiet.found[:] = [QUIET, interval], []
    status, out, err = record_in_vain(quiet, capsys)
    assert status == 1 and "not quiet" in out + err and len(quiet.found) == 4
