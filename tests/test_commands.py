"""From a shell: `python -m kit`, and `claims` and `record` in tutorials/scripts."""

import datetime
import json
import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import claims
import nbformat
import pytest
import record as recorder
from trials import make_machine, rate_trial

from kit import diagnosis, recording
from kit.__main__ import load_experiment, main
from kit.comparison import Comparison
from kit.experiment import ExperimentError
from kit.ratio import Ratio
from kit.recording import Recording
from kit.teaching import Claim
from kit.trial import JOURNAL

CPU, GPU, CHAPTER = "imaginary-2-cores", "imaginary-gpu", "00_made_up"
SENTENCE = "Two are faster than one."
COUNT = "def count(*, n=1):\n    while True:\n        yield n"
COUNT += "\n\n\ncomparison = kit.compare(count, n=[1, 2])"
CLAIM = f"kit.claim({SENTENCE!r}, comparison, at_least=1.5)"
TRAIN = "\ndef train(*, batch_size=64, lr=0.1):\n    yield batch_size\n"


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """A folder of its own, no smoke, an empty journal; what is changed comes back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KIT_SMOKE", raising=False)
    monkeypatch.setattr(sys, "path", sys.path[:])
    before, JOURNAL[:] = JOURNAL[:], []
    yield
    JOURNAL[:] = before
    names = "train", "quick", "neighbour", "package", "package.module", "package.sizes"
    for name in names:
        sys.modules.pop(name, None)


def run(capsys, command, *words):
    """Run a command; return its exit status, output and errors."""
    try:
        status = command([str(word) for word in words])
    except SystemExit as ended:
        status = ended.code
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return status, printed.out, printed.err


def kept(folder):
    """Every file with its content, to see that nothing was written."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def asked(monkeypatch):
    """How `diagnose` was asked: a real one takes seconds, and is tested elsewhere."""
    made = []

    def diagnose(experiment, *, seconds, **knobs):
        if seconds == 13:
            raise ExperimentError("train ended after 1 step.\nPut a loop around it.")
        made.append({"seconds": seconds, "first": next(experiment(**knobs)), **knobs})
        return SimpleNamespace(to_html=lambda: "<title>61 % × 2</title>")

    monkeypatch.setattr(diagnosis, "diagnose", diagnose)
    Path("train.py").write_text(TRAIN)
    return made


KNOBS = [("64", 64), ("1e-3", 1e-3), ("True", True), ("None", None), ("'64'", "64")]
KNOBS += [("resnet", "resnet"), ("(0.9, 1)", (0.9, 1)), ("", ""), ("b=c", "b=c")]
KNOBS += [("__import__('os')", "__import__('os')")]


@pytest.mark.parametrize(("text", "value"), KNOBS)
def test_a_knob_is_a_literal_or_else_a_string(capsys, asked, text, value):
    words = ["train.py:train", f"lr={text}", "batch_size=8", "--html", "a.html"]
    status, out, err = run(capsys, main, "diagnose", *words)
    assert (status, err) == (0, "")
    assert asked == [{"seconds": 20.0, "first": 8, "batch_size": 8, "lr": value}]
    assert type(asked[0]["lr"]) is type(value)
    assert Path("a.html").read_text("utf-8") == "<title>61 % × 2</title>"
    assert out.splitlines()[-1] == str(Path("a.html").resolve())


WORDS = [
    ("diagnose --help", 0, "kit diagnose train.py:train batch_size=64"),
    ("machine", 0, "cores"),
    ("diagnose train.py:train lr", 2, "'lr' is not written name=value"),
    ("diagnose train.py:train --lr=1", 2, "--lr=1"),
    ("diagnose train.py:train --seconds five", 2, "five"),
    ("diagnose train.py", 2, "which function of it? train.py:train"),
    ("diagnose absent.py:train", 2, "there is no file absent.py here"),
    ("diagnose", 2, "target"),
    ("dance", 2, "usage: "),
    ("diagnose train.py:absent", 1, "train.py has no absent"),
    ("diagnose train.py:train seconds=13", 1, "error: train ended after 1 step.\nPut"),
]


@pytest.mark.parametrize(("words", "status", "said"), WORDS)
def test_what_is_asked_wrongly_ends_with_2_what_cannot_be_measured_with_1(
    capsys, asked, words, status, said
):
    found, out, err = run(capsys, main, *words.split())
    assert found == status and said in (err if status else out) and not asked


def test_a_script_is_imported_as_python_would_run_it(capsys):
    for name in ("deep", "package"):
        Path(name).mkdir()
    function = "\ndef train():\n    yield N"
    Path("deep/neighbour.py").write_text("N = 3")
    Path("deep/train.py").write_text(f"from neighbour import N{function}")
    assert next(load_experiment("deep/train.py", "train")()) == 3
    assert sys.modules["train"].__name__ == "train", "worker processes find it"
    Path("package/sizes.py").write_text("N = 5")
    Path("package/module.py").write_text(f"from .sizes import N{function}")
    assert next(load_experiment("package.module", "train")()) == 5
    assert not capsys.readouterr().err
    Path("quick.py").write_text("import time\ntime.sleep(0.4)\n1 / 0")
    with pytest.raises(ZeroDivisionError):  # which Python shows
        load_experiment("quick.py", "train", seconds=0.1)
    said = capsys.readouterr().err
    assert "quick.py" in said and "train while it is imported" in said


def write_chapter(folder, *cells, name=CHAPTER):
    folder.mkdir(parents=True, exist_ok=True)
    book = nbformat.v4.new_notebook()
    book.cells = [nbformat.v4.new_markdown_cell(f"# {len(cells)} cells")]
    book.cells += [nbformat.v4.new_code_cell(source) for source in cells]
    nbformat.write(book, path := folder / f"{name}.ipynb")
    return path


def made_up(speed, machine=CPU):
    """A comparison in which the variant is so many times as fast, or each pair's."""
    speeds = speed if isinstance(speed, list) else [speed] * 5
    where = {"machine": make_machine(machine), "source": COUNT}
    slow = rate_trial(1.0, knobs={"n": 1}, **where)
    fast = rate_trial(lambda s, r, b: 1 / speeds[s // 2], knobs={"n": 2}, **where)
    return Comparison([slow, fast], ["n=1", "n=2"])


def record(folder, speed=2.0, machine=CPU, chapter=CHAPTER, said=SENTENCE, year=2026):
    """Write a recording of a chapter as it is now, with one claim."""
    comparison = made_up(speed, machine)
    row = Claim(said, comparison.ratio, "faster", 1.5, "Or not.").to_dict()
    row |= {"comparison": 0, "label": "n=2"}
    made = Recording(comparison.trials, [comparison], [row])
    if (folder / f"{chapter}.ipynb").is_file():
        recorder.add_slices(made, folder / f"{chapter}.ipynb")
    path = folder / "recordings" / f"{chapter}__{machine}__{year}-01-02.json"
    recording.write(made, path)
    return path


@pytest.fixture
def tutorials(tmp_path):
    """A folder with one chapter, one claim, and a recording that supports it."""
    write_chapter(tmp_path / "tutorials", COUNT, CLAIM)
    record(tmp_path / "tutorials")
    return tmp_path / "tutorials"


def check(capsys):
    return run(capsys, claims.main, "--check")


PLAIN, WIDE = CLAIM.replace(", at_least=1.5", ""), [0.9, 1.0, 1.1, 1.2, 1.3]
SAME = CLAIM.replace("at_least=1.5", "expect='same'")
CHANGED = COUNT.replace("yield n", "yield 2 * n")
HARMLESS = ["%%bash\nfor x in 1 2; do echo $x; done", "%%writefile a.txt\nno Python"]
HARMLESS += ["files = !ls", "kit.measure?", "%timeit sum(range(10))", "await some()"]
HARMLESS += [f"# {CLAIM}", f"text = {CLAIM!r}", "kit.measure('no claim')", "import re"]
THREE = "'Three are best.', other"
ONE_MORE = [f"claim({THREE})", f"teaching.claim({THREE})", f"kit.claim(\n    {THREE})"]
ONE_MORE += [f"if True:\n    made = kit.claim({THREE})", "kit.claim(f'Three {n}', x)"]
ONE_MORE += [f"%matplotlib inline\nkit.claim({THREE})", "kit.claim(sentence='Three')"]
#: A chapter's cells, how many times as fast it was recorded, and what has to be said.
CASES = [([COUNT, CLAIM, cell], {CPU: 2.0}, []) for cell in HARMLESS]
CASES += [([COUNT, CLAIM, cell], {CPU: 2.0}, ["Three"]) for cell in ONE_MORE]
CASES += [
    ([COUNT.replace("yield n", "yield n  # why"), "x = 1", CLAIM], {CPU: 2.0}, []),
    ([COUNT], {CPU: 0.5}, []),
    ([COUNT, CLAIM], {CPU: 2.0, GPU: 0.5}, []),  # `otherwise` says so
    ([COUNT, CLAIM], {CPU: 1.2}, ["contradict", CPU]),
    ([COUNT, CLAIM], {CPU: 1.0, GPU: 0.5}, ["contradict", CPU, GPU]),
    ([COUNT, CLAIM.replace("1.5", "3")], {CPU: 2.0}, ["contradict"]),
    ([COUNT, SAME], {CPU: 2.0}, ["contradict"]),
    ([COUNT, CLAIM], {}, ["no recording", SENTENCE]),
    ([COUNT, CLAIM.replace("at_least=1.5", "open=True")], {CPU: WIDE}, []),
    ([COUNT, PLAIN], {CPU: WIDE}, ["no machine can tell"]),
    ([CHANGED, PLAIN], {CPU: 2.0}, ["-        yield n\n+"]),
    ([CLAIM], {CPU: 2.0}, ["changed", "record it again"]),
    ([COUNT, CLAIM, CLAIM], {CPU: 2.0}, ["twice"]),
]


@pytest.mark.parametrize(("cells", "speeds", "words"), CASES)
def test_a_claim_stands_only_by_what_was_recorded_of_the_code_that_is_there(
    tmp_path, capsys, cells, speeds, words
):
    write_chapter(folder := tmp_path / "tutorials", COUNT, CLAIM)
    for machine, speed in speeds.items():
        record(folder, speed, machine)
    write_chapter(folder, *cells)
    status, out, err = check(capsys)
    assert status == bool(words), err
    assert all(word in err for word in [CHAPTER, *words] if words)
    mark = "✗" if "contradict" in words else "?" if WIDE in speeds.values() else "✓"
    assert SENTENCE not in out or mark in out
    assert run(capsys, claims.main, "--folder", folder)[0] == 0, "without --check"


def forge(path, room, **changes):
    """Change a recording as somebody would who knows of the checksum."""
    content = json.loads(path.read_text("utf-8"))
    place = {"file": content, "claim": content["claims"][0]}
    place["load"] = content["trials"][0]["conditions"]
    place[room].update(changes)
    content["checksum"] = recording.compute_checksum(content)
    path.write_text(json.dumps(content), encoding="utf-8")


SPOILT = [
    (lambda path: path.write_bytes(path.read_bytes()[:500]), "cannot be read"),
    (lambda path: path.rename(str(path).replace(CPU, GPU)), f"was made on {CPU}"),
    (lambda path: forge(path, "file", format=99), "Update the kit"),
    (lambda path: forge(path, "load", smoke=1.0), "short run"),
    (lambda path: forge(path, "claim", verdict="✓"), "whole"),
]


@pytest.mark.parametrize(("spoil", "said"), SPOILT)
def test_a_recording_that_is_not_what_it_should_be_counts_for_nothing(
    tutorials, capsys, spoil, said
):
    spoil(record(tutorials, 4.0))
    status, out, err = check(capsys)
    assert status == 1 and "4 ×" not in out
    assert said in err and len(err.splitlines()) <= 6


QUIET = (0.98, 1.02)
UNQUIET = [(0.95, 1.0), (1.0, 1.05), (0.3, 4.0), (1.04, 1.05), (math.nan, math.nan)]
MEASURE = f"""import kit
from kit.trial import JOURNAL
from test_commands import made_up
comparison = made_up(2.0, {CPU!r})
JOURNAL.extend([*comparison.trials, comparison])"""
#: What a cell may show; only the first is kept.
SHOWN = [{"data": {"text/plain": "shown"}}, {"data": {"text/html": "<script>"}}]
SHOWN += [{"data": {"application/vnd.jupyter.widget-view+json": {}}}]
SHOWN += [{"data": {"text/plain": "3 s left"}, "metadata": {"kit": "progress"}}]


class Kernel:
    """Runs cells in this process, and shows what a kernel might show."""

    is_cut, environments = False, []

    def __init__(self, notebook, **options):
        self.notebook = notebook

    def execute(self, env):
        self.environments.append(env)
        names = {}
        for number, cell in enumerate(self.notebook.cells):
            if cell.cell_type == "code":
                exec(cell.source, names)
                shown = [nbformat.v4.new_output("display_data", **x) for x in SHOWN]
                cell.execution_count, cell.outputs = number, shown


@pytest.fixture
def quiet(monkeypatch):
    """Intervals that checks will find, of which the last one stays; those found."""
    monkeypatch.setattr(recorder, "Client", Kernel)
    looks = SimpleNamespace(ahead=[QUIET], found=[])

    def look(experiments, *, seconds):
        assert [*experiments.values()] == [recorder.train] * 2 and seconds == 10
        ahead = looks.ahead
        looks.found.append(ahead.pop(0) if len(ahead) > 1 else ahead[0])
        return SimpleNamespace(ratio=Ratio(1.0, *looks.found[-1], "same"))

    monkeypatch.setattr(recorder, "compare", look)
    return looks


@pytest.fixture
def chapter(tmp_path, quiet):
    """A chapter that makes two trials, a comparison and a claim."""
    return write_chapter(tmp_path / "tutorials", MEASURE, CLAIM)


def test_a_chapter_is_recorded_with_static_outputs_in_place_of_earlier(
    chapter, capsys, monkeypatch
):
    monkeypatch.setenv("KIT_SMOKE", "1")
    for year in (2024, 2025):
        record(chapter.parent, year=year)
    others = [record(chapter.parent, machine=name) for name in (GPU, f"{CPU}-more")]
    others += [record(chapter.parent, chapter="01_second")]
    status, out, err = run(capsys, recorder.main, chapter)
    assert (status, err) == (0, "") and f"✓ {SENTENCE}" in out
    name = f"{CHAPTER}__{CPU}__{datetime.date.today().isoformat()}.json"
    path = chapter.parent / "recordings" / name
    assert {*path.parent.iterdir()} == {path, *others}
    made = recording.read(path)
    assert [trial.knobs["n"] for trial in made.trials] == [1, 2]
    assert made.comparisons[0].ratio.value == pytest.approx(2)
    assert made.claims[0]["sentence"] == SENTENCE and made.claims[0]["slice"]
    _, *cells = nbformat.read(chapter, as_version=4).cells
    assert [cell.source for cell in cells] == [MEASURE, CLAIM], "and no machinery"
    told = [[x.data for x in cell.outputs] for cell in cells]
    assert told == [[SHOWN[0]["data"]]] * 2
    environment = Kernel.environments[-1]
    assert "KIT_SMOKE" not in environment and environment["KIT_STATIC"] == "1"


@pytest.mark.parametrize("before", [[], [QUIET]])
@pytest.mark.parametrize("interval", UNQUIET)
def test_what_an_unquiet_machine_measures_is_not_kept(
    chapter, capsys, quiet, before, interval
):
    quiet.ahead[:] = [*before, interval]
    files = kept(chapter.parent)
    status, out, err = run(capsys, recorder.main, chapter)
    assert status == 1 and kept(chapter.parent) == files
    assert "not quiet" in err and "End other programs" in err
    assert ("recording" in out) == bool(before), "nothing is run in vain"


TRIES = [
    ("--dry-run", 0, f"✓ {SENTENCE}", 0),
    ("--into there", 0, f"✓ {SENTENCE}", 2),
    ("--smoke --into there", 0, f"? {SENTENCE}", 0),
    ("--smoke", 1, "--into", 0),
    ("--seconds 60", 1, "--into", 0),
    ("--into tutorials", 1, "--into", 0),
    ("--smoke --into tutorials/recordings", 1, "--into", 0),
    ("--seconds 1 --into there", 1, "left out", 0),
    ("--seconds nan --into there", 2, "usage", 0),
    ("--dry-run tutorials/absent.ipynb", 1, "absent.ipynb", 0),
    ("--dry-run tutorials/broken.ipynb", 1, "division by zero", 0),
]


@pytest.mark.parametrize(("options", "status", "said", "looks"), TRIES)
def test_a_try_or_half_a_result_leaves_what_readers_see_as_it_is(
    chapter, quiet, capsys, tmp_path, options, status, said, looks
):
    write_chapter(chapter.parent, "1 / 0", name="broken")
    before = kept(chapter.parent)
    found, out, err = run(capsys, recorder.main, *options.split(), chapter)
    assert found == status and said in out + err and len(quiet.found) == looks
    assert kept(chapter.parent) == before
    written = sorted((tmp_path / "there").glob("*"), key=lambda path: path.suffix)
    is_kept = "there" in options and not status
    assert [path.suffix for path in written] == [".ipynb", ".json"] * is_kept
    for path in written[1:]:
        conditions = recording.read(path).trials[0].conditions
        assert conditions == ({} if looks else {"smoke": 1.0})
