"""Claims rest on recordings of the same code, and recordings on a quiet machine."""

import json
import subprocess
from types import SimpleNamespace

import cells
import claims
import nbformat
import pytest
import record
import recording
import what_helps
from trials import make_machine, rate_trial

import kit
from kit.measuring.report import Comparison
from kit.measuring.verdict import Ratio
from kit.teaching import Claim

CPU = "two-cores"
GPU = "a-gpu"
SENTENCE = "Two are faster."
COUNT = "def f(n=1):\n    yield n\n\n\nfound = kit.compare(f, n=[1, 2])"
CLAIM = f"kit.claim({SENTENCE!r}, found.ratio, at_least=1.5)"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Chapters with a page of claims, none of which waits for its recording."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "tutorials"
    (folder / "recordings").mkdir(parents=True)
    (folder / "CLAIMS.md").write_text(f"{claims.START}\n{claims.END}\n")
    (tmp_path / "unrecorded.txt").touch()
    monkeypatch.setattr(claims, "UNRECORDED", tmp_path / "unrecorded.txt")
    return folder


def write_chapter(folder, *sources):
    return write_notebook(folder / "00_first.ipynb", *sources)


def write_notebook(path, *sources):
    """Write a notebook; a source that begins with a heading is text."""
    book = nbformat.v4.new_notebook()
    for source in sources:
        kind = "markdown" if source.startswith("## ") else "code"
        book.cells.append(getattr(nbformat.v4, f"new_{kind}_cell")(source))
    nbformat.write(book, path)
    return path


def write_recording(folder, speed, machine=CPU, **changes):
    """Record a chapter whose second choice is so many times as fast."""
    where = {"machine": make_machine(machine), **changes}
    slow = rate_trial(1.0, **where)
    fast = rate_trial(lambda round, turn, n: 1 / speed(round), **where)
    comparison = Comparison([slow, fast], ["n=1", "n=2"])
    row = Claim(SENTENCE, comparison.ratio, "faster", 1.5, "Or not.").to_dict()
    code = cells.hash_claims(cells.read_notebook(folder / "00_first.ipynb"))
    row |= {"comparison": 0, "label": "n=2", "code": code[SENTENCE]}
    made = recording.Recording([slow, fast], [comparison], [row], [])
    path = folder / "recordings" / f"00_first__{machine}__2026-01-02.json"
    recording.write(made, path)
    return path


def twice(round):
    return 2.0


def half(round):
    return 0.5


def unsure(round):
    return (0.9, 1.0, 1.1, 1.2, 1.3)[round // 2]


def check(capsys):
    """Return the exit status of a check, once the page is up to date, and its words."""
    capsys.readouterr()
    status = claims.main(["--write", "--check"])
    return status, "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("now", "speeds", "said"),
    [
        ([COUNT, CLAIM], {CPU: twice}, None),
        ([COUNT + "  # a comment\nprint(1)", CLAIM], {CPU: twice}, None),
        ([COUNT.replace("yield n", "yield 2 * n"), CLAIM], {CPU: twice}, "current"),
        ([COUNT, "x = 1", CLAIM], {CPU: twice}, "current"),
        ([COUNT, CLAIM], {}, "current"),
        ([COUNT, CLAIM.replace("1.5", "3")], {CPU: twice}, "contradicts"),
        (
            [COUNT, CLAIM.replace("at_least=1.5", "expect='same'")],
            {CPU: twice},
            "contra",
        ),
        ([COUNT, CLAIM], {CPU: half}, "contradicts"),
        ([COUNT, CLAIM], {CPU: twice, GPU: half}, None),
        ([COUNT, CLAIM], {CPU: unsure}, "cannot tell"),
        ([COUNT, CLAIM.replace("at_least=1.5", "open=True")], {CPU: unsure}, None),
        ([COUNT, CLAIM], {CPU: unsure, GPU: twice}, None),
        ([COUNT, f"if True:\n    {CLAIM}"], {CPU: twice}, "top level"),
        ([COUNT, CLAIM, CLAIM], {CPU: twice}, "twice"),
    ],
)
def test_a_claim_stands_only_on_runs_of_the_same_code(
    folder, capsys, now, speeds, said
):
    write_chapter(folder, COUNT, CLAIM)
    for machine, speed in speeds.items():
        write_recording(folder, speed, machine)
    write_chapter(folder, *now)
    status, words = check(capsys)
    assert status == (said is not None), words
    assert said is None or said in words


def test_a_stale_claim_is_listed_where_its_chapter_waits_for_a_recording(
    folder, capsys
):
    write_chapter(folder, COUNT, CLAIM)
    claims.UNRECORDED.write_text("00_first\n")
    status, words = check(capsys)
    assert status == 0
    assert "waits" in words and SENTENCE in words


def test_a_page_of_claims_that_is_not_the_recordings_is_noticed(folder, capsys):
    write_chapter(folder, COUNT, CLAIM)
    write_recording(folder, twice)
    assert claims.main(["--check"]) == 1
    assert claims.main(["--write", "--check"]) == 0
    assert claims.main(["--check"]) == 0
    assert "✓ 2 ×" in (folder / "CLAIMS.md").read_text("utf-8")


@pytest.fixture
def page(folder):
    """A page of what helps, of one chapter and of an appendix with two comparisons."""
    write_chapter(folder, "## How much?", COUNT, CLAIM)
    compare = "compare('pair', f)\ncompare('later', f)"
    (folder / "more").mkdir()
    write_notebook(folder / what_helps.APPENDIX, "## On a GPU (chapter 07)", compare)
    slow = rate_trial()
    trials = [slow, rate_trial(lambda round, turn, n: unsure(round))]
    found = Comparison(trials, ["plain", "other"])
    kit.save(found, folder / "more" / "h100" / "pair.json")
    page = folder / "WHAT_HELPS.md"
    page.write_text(f"{what_helps.START}\n{what_helps.END}\n")
    return page


def test_a_reader_sees_what_lost_and_what_nobody_can_tell(folder, page):
    write_recording(folder, twice)
    write_recording(folder, half, GPU)
    assert what_helps.main(["--write", "--check"]) == 0
    text = page.read_text("utf-8")
    rows = [line.split(" | ") for line in text.split("\n") if " vs. " in line]
    verdicts = sorted(row[4] for row in rows)
    assert verdicts == ["**cannot tell**", "**slower** ✗", "faster ✓"]
    assert {(row[5], row[6]) for row in rows} == {("2.14.0", "2026-01-02")}
    assert text.count("(00_first.ipynb#How-much?)") == 2
    assert f"`later` in [H100: On a GPU]({what_helps.APPENDIX}#On-a-GPU-(cha" in text


@pytest.mark.parametrize("fault", ["recorded again", "stale", "edited"])
def test_a_page_of_what_helps_that_is_not_the_recordings_is_noticed(
    folder, page, fault
):
    write_recording(folder, twice)
    assert what_helps.main(["--check"]) == 1
    assert what_helps.main(["--write", "--check"]) == 0
    if fault == "recorded again":
        write_recording(folder, half)
    if fault == "stale":
        write_chapter(folder, "## How much?", COUNT.replace("n=1", "n=3"), CLAIM)
    if fault == "edited":
        page.write_text(page.read_text("utf-8").replace("2 ×", "3 ×"))
    assert what_helps.main(["--check"]) == 1
    assert what_helps.main(["--write", "--check"]) == 0


@pytest.mark.parametrize("fault", ["cut", "renamed", "quick"])
def test_a_spoilt_recording_supports_no_claim(folder, capsys, fault):
    write_chapter(folder, COUNT, CLAIM)
    outcome = "quick" if fault == "quick" else "finished"
    path = write_recording(folder, twice, outcome=outcome)
    if fault == "cut":
        path.write_bytes(path.read_bytes()[:500])
    if fault == "renamed":
        path.rename(str(path).replace(CPU, GPU))
    assert check(capsys)[0] == 1


#: Python 3.11, 3.12 and 3.13 parse this into trees that `ast.dump` tells apart.
ODD = """
f"{x=} {{a}} {y!r:>{w}} {z:%d %b}" "b" f"c{d}{{}}"
def f(a, /, b: int = 3, *c, d=..., **e) -> "x":
    return a[1:2, ...], {**e}, [*c], -1, 1e300, 1j, b"x", None, u"t"
class A(B, m=C):
    x: int
match x:
    case {"a": [1, *r], **k} if (y := 2):
        pass
"""


def hash_of(*sources):
    book = [cells.Cell(f"{number}", source) for number, source in enumerate(sources)]
    return cells.hash_claims(book)[SENTENCE]


def test_a_recording_is_current_on_every_version_of_python():
    assert hash_of(ODD, CLAIM) == "bd94c75ded1a"


@pytest.mark.parametrize(
    ("old", "new", "is_stale"),
    [
        ("n=1", "n=3", True),
        ("[1, 2]", "[2, 1]", True),
        ("found.ratio", "other.ratio", True),
        ("[1, 2]", "[1, 2], title='Words'", False),
        ("yield n", "'A docstring.'\n    yield n", False),
        ("at_least=1.5", "open=True, otherwise='Or not.'", False),
        ("def f", "%matplotlib inline\ndef f", False),
    ],
)
def test_only_what_is_measured_makes_a_recording_stale(old, new, is_stale):
    assert old in COUNT + CLAIM
    changed = [source.replace(old, new) for source in (COUNT, CLAIM)]
    assert (hash_of(*changed) != hash_of(COUNT, CLAIM)) == is_stale


def test_an_adopted_recording_belongs_to_the_renamed_code(folder, capsys):
    path = write_chapter(folder, COUNT, CLAIM)
    write_recording(folder, twice)
    subprocess.run(
        "git init -q && git add . && "
        "git -c user.name=a -c user.email=b commit -q -m first",
        shell=True,
        check=True,
    )
    renamed = [source.replace("found", "compared") for source in (COUNT, CLAIM)]
    write_chapter(folder, *renamed)
    assert check(capsys)[0] == 1
    assert record.main(["--adopt", str(path)]) == 0
    assert check(capsys)[0] == 0


def test_on_a_machine_that_is_not_quiet_nothing_is_recorded(
    folder, capsys, monkeypatch
):
    path = write_chapter(folder, "1 / 0")
    before = path.read_bytes()
    wide = SimpleNamespace(ratio=Ratio(1.0, 0.9, 1.1, "cannot tell"))
    monkeypatch.setattr(kit, "compare", lambda *args, **kwargs: wide)
    assert record.main([str(path)]) == 1
    assert "not quiet" in capsys.readouterr().err
    assert path.read_bytes() == before


MEASURE = """import kit


def count(*, n=1, add=sum):
    \"\"\"Count.\"\"\"
    while True:
        yield add(range(1000 * n))


found = kit.compare(count, n=[1, 2], add=sum, seconds=0.1)
found.plot(predict=lambda n: 100.0 * n)"""


def test_a_recorded_chapter_keeps_runs_claims_predictions_and_outputs(folder, capsys):
    path = write_chapter(folder, MEASURE, CLAIM)
    assert record.main(["--quick", "--into", "there", str(path)]) == 0
    book = nbformat.read("there/00_first.ipynb", as_version=4)
    assert [cell.execution_count for cell in book.cells] == [1, 2]
    assert SENTENCE in json.dumps(book.cells[1].outputs)
    made = recording.read(f"there/{book.metadata.kit.recording}")
    assert [trial.knobs["n"] for trial in made.trials] == [1, 2]
    assert made.claims[0]["sentence"] == SENTENCE
    [plot] = made.read_plots()
    assert plot.predicted == [100.0, 200.0]
    assert plot.draw().figure.alt == book.cells[0].outputs[0].data["text/plain"]
    assert not list(folder.glob("recordings/*"))
