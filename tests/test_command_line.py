"""From a shell: `python -m kit`, and `claims` and `record` in tutorials/scripts."""

import ast
import builtins
import datetime
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import claims
import nbformat
import pytest
import record as recorder
from trials import make_machine, rate_trial

import kit
from kit import recording
from kit.__main__ import main
from kit.comparison import Comparison
from kit.ratio import Ratio
from kit.recording import Recording
from kit.teaching import Claim
from kit.trial import JOURNAL

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "tutorials" / "scripts"
COMMANDS = {"claims": claims.main, "record": recorder.main}
TODAY = datetime.date.today
CPU, GPU = "imaginary-2-cores", "imaginary-gpu"
CHAPTER = "00_made_up"
SENTENCE = "Two are faster than one."
COUNT = "def count(*, n=1):\n    while True:\n        yield n"
CLAIM = f"kit.claim({SENTENCE!r}, comparison, at_least=1.5)"
#: Intervals of a loop compared with itself. The truth is 1.
QUIET = (0.98, 1.02)
LOOK = "seen.append(len(checks.found))"
UNQUIET = [(0.95, 1.0), (1.0, 1.05), (0.3, 4.0), (1.04, 1.05), (math.nan, math.nan)]


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """A folder of its own, no smoke, an empty journal that is given back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KIT_SMOKE", raising=False)
    before = JOURNAL[:]
    JOURNAL.clear()
    yield
    JOURNAL[:] = before


@pytest.fixture
def tutorials(tmp_path):
    """A folder with one chapter, one claim, and a recording that supports it."""
    folder = tmp_path / "tutorials"
    write_chapter(folder, COUNT, CLAIM)
    record(folder, speed=2.0)
    return folder


def write_chapter(folder, *cells, name=CHAPTER, prose="# A question?"):
    folder.mkdir(parents=True, exist_ok=True)
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_markdown_cell(prose)]
    notebook.cells += [nbformat.v4.new_code_cell(source) for source in cells]
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    path = folder / f"{name}.ipynb"
    nbformat.write(notebook, path)
    return path


def made_up(speed, machine, source=COUNT):
    """A comparison in which the variant is this many times as fast.

    A list says it of each pair of set-ups.
    """
    speeds = speed if isinstance(speed, list) else [speed] * 5
    where = {"machine": make_machine(machine), "source": source}
    trials = [
        rate_trial(1.0, knobs={"n": 1}, **where),
        rate_trial(lambda s, r, b: 1 / speeds[s // 2], knobs={"n": 2}, **where),
    ]
    return Comparison(trials, ["n=1", "n=2"])


def record(
    folder,
    *,
    speed,
    machine=CPU,
    chapter=CHAPTER,
    sentence=SENTENCE,
    date="2026-01-02",
    **changes,
):
    comparison = made_up(speed, machine)
    expected = {"expect": "faster", "at_least": 1.5, "otherwise": "Or not."} | changes
    claim = Claim(sentence, comparison.ratio, **expected)
    row = {**claim.to_dict(), "comparison": 0, "label": "n=2"}
    path = folder / "recordings" / f"{chapter}__{machine}__{date}.json"
    recording.write(Recording(comparison.trials, [comparison], [row]), path)
    return path


def run(capsys, command, *arguments):
    """Run a command; return its exit status, output and errors."""
    status = COMMANDS[command]([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def check(capsys, folder):
    status, out, err = run(capsys, "claims", "--folder", folder, "--check")
    assert "Traceback" not in err
    return status, out, err


def kept(folder):
    """Every file with its content, to see that nothing was written."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# machine


def test_machine_says_what_this_machine_is(capsys):
    status = main(["machine"])
    out, err = capsys.readouterr()
    assert status == 0
    assert kit.this_machine().name in out
    assert "cores" in out
    assert err == ""


def test_the_module_is_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "kit", "machine"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "cores" in done.stdout


@pytest.mark.parametrize("arguments", [[], ["dance"], ["record"], ["machine", "x"]])
def test_what_is_no_command_says_how_it_is_used(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: python -m kit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("record", []),
        ("record", ["--seconds", "0", "x.ipynb"]),
        ("record", ["--seconds", "nan", "x.ipynb"]),
        ("record", ["--seconds", "soon", "x.ipynb"]),
        ("claims", ["x"]),
    ],
)
def test_what_is_asked_wrongly_ends_with_2(capsys, command, arguments):
    with pytest.raises(SystemExit) as caught:
        run(capsys, command, *arguments)
    assert caught.value.code == 2
    assert "usage: " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["record", "claims", "cheatsheet"])
def test_the_scripts_are_commands(name):
    """They find each other and the kit, from wherever they are started."""
    done = subprocess.run(
        [sys.executable, SCRIPTS / f"{name}.py", "--help"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: {name}.py" in done.stdout


# claims


def test_claims_prints_a_table_of_claim_and_machine(tutorials, capsys):
    record(tutorials, speed=4.0, machine=GPU)
    status, out, err = run(capsys, "claims", "--folder", tutorials)
    assert (status, err) == (0, "")
    header, line, row = out.splitlines()
    assert set(line) == set("| -")
    assert header.index("claim") < header.index(CPU) < header.index(GPU)
    assert CHAPTER in row
    assert SENTENCE in row
    cells = re.findall(r"✓ (\d+) ×", row)
    assert cells == ["2", "4"]


def test_claims_looks_into_tutorials_by_default(tutorials, capsys):
    _, out, _ = run(capsys, "claims")
    assert SENTENCE in out


def test_claims_of_a_recording_by_another_process(tmp_path, capsys):
    """What `write_journal` wrote in a kernel is judged here."""
    folder = tmp_path / "tutorials"
    write_chapter(folder, COUNT, CLAIM)
    path = folder / "recordings" / f"{CHAPTER}__{CPU}__2026-01-02.json"
    tests = os.pathsep.join(map(str, [ROOT, ROOT / "tests", SCRIPTS]))
    code = f"""
import kit
from journal import write_journal
from kit.trial import JOURNAL
from test_command_line import made_up
comparison = made_up(2.0, {CPU!r})
JOURNAL.extend([*comparison.trials, comparison])
{CLAIM}
write_journal({str(path)!r})
"""
    environment = {**os.environ, "PYTHONPATH": tests}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    status, out, err = check(capsys, folder)
    assert (status, err) == (0, "")
    assert re.search(rf"{SENTENCE} \| ✓ 2 ×", out)


def test_claims_that_stand_pass(tutorials, capsys):
    assert check(capsys, tutorials)[0] == 0


def test_an_open_claim_passes(tmp_path, capsys):
    folder = tmp_path / "tutorials"
    write_chapter(folder, COUNT, f"kit.claim({SENTENCE!r}, comparison)")
    record(folder, speed=[0.9, 1.0, 1.1, 1.2, 1.3], at_least=None)
    status, out, _ = check(capsys, folder)
    assert status == 0
    assert "?" in out


@pytest.mark.parametrize("speed", [0.5, 1.0, 1.2])
def test_a_claim_that_its_recording_contradicts_fails(tmp_path, capsys, speed):
    folder = tmp_path / "tutorials"
    write_chapter(folder, COUNT, CLAIM)
    record(folder, speed=speed)
    status, out, err = check(capsys, folder)
    assert status == 1
    assert "✗" in out
    for word in (CHAPTER, CPU, SENTENCE, "contradict"):
        assert word in err


def test_without_check_a_contradiction_is_shown_but_no_failure(tmp_path, capsys):
    folder = tmp_path / "tutorials"
    write_chapter(folder, COUNT, CLAIM)
    record(folder, speed=0.5)
    status, out, _ = run(capsys, "claims", "--folder", folder)
    assert status == 0
    assert "✗" in out


def test_a_claim_whose_experiment_changed_fails(tutorials, capsys):
    write_chapter(tutorials, COUNT.replace("yield n", "yield 2 * n"), CLAIM)
    status, _, err = check(capsys, tutorials)
    assert status == 1
    for word in (CHAPTER, CPU, SENTENCE, "changed", "record it again"):
        assert word in err


def test_a_claim_whose_experiment_is_gone_fails(tutorials, capsys):
    write_chapter(tutorials, CLAIM)
    status, _, err = check(capsys, tutorials)
    assert status == 1
    assert "changed" in err


def test_prose_comments_and_order_may_change(tutorials, capsys):
    commented = COUNT.replace("yield n", "yield n  # one more step")
    write_chapter(tutorials, "import kit", commented, "x = 1", CLAIM, prose="# Other?")
    assert check(capsys, tutorials)[0] == 0


def test_a_claim_without_a_recording_fails(tutorials, capsys):
    write_chapter(tutorials, COUNT, CLAIM, "kit.claim('Three are best.', other)")
    status, _, err = check(capsys, tutorials)
    assert status == 1
    assert "Three are best." in err
    assert SENTENCE not in err


def test_a_chapter_without_any_recording_fails(tmp_path, capsys):
    write_chapter(tmp_path / "tutorials", COUNT, CLAIM)
    status, _, err = check(capsys, tmp_path / "tutorials")
    assert status == 1
    assert SENTENCE in err


@pytest.mark.parametrize(
    "cell",
    [
        f"kit.claim({SENTENCE!r}, comparison, at_least=3)",
        f"kit.claim({SENTENCE!r}, comparison, expect='slower')",
        f"kit.claim({SENTENCE!r}, comparison, expect='same')",
    ],
)
def test_a_claim_that_now_says_more_than_was_recorded_fails(tutorials, capsys, cell):
    """The chapter makes the claim; the recording only has the measurement."""
    write_chapter(tutorials, COUNT, cell)
    status, _, err = check(capsys, tutorials)
    assert status == 1
    assert SENTENCE in err


def test_a_claim_that_the_chapter_no_longer_makes_is_left_out(tutorials, capsys):
    write_chapter(tutorials, COUNT)
    status, out, _ = check(capsys, tutorials)
    assert status == 0
    assert SENTENCE not in out


@pytest.mark.parametrize(
    "cell",
    [
        f"# {CLAIM}",
        f"text = {CLAIM!r}",
        "kit.measure('not a claim')",
    ],
)
def test_what_only_looks_like_a_claim_is_none(tutorials, capsys, cell):
    write_chapter(tutorials, COUNT, CLAIM, cell)
    assert check(capsys, tutorials)[0] == 0


@pytest.mark.parametrize(
    "cell",
    [
        "claim('Three are best.', other)",
        "teaching.claim('Three are best.', other)",
        "kit.claim(sentence='Three are best.', ratio=other)",
        "kit.claim(\n    'Three are '\n    'best.',\n    other,\n)",
        "if True:\n    made = kit.claim('Three are best.', other)",
        "%matplotlib inline\nkit.claim('Three are best.', other)",
    ],
)
def test_a_claim_is_found_however_it_is_written(tutorials, capsys, cell):
    write_chapter(tutorials, COUNT, CLAIM, cell)
    status, _, err = check(capsys, tutorials)
    assert status == 1, "no recording holds it, and nobody noticed"
    assert "Three are best." in err


def test_a_claim_that_is_put_together_is_not_silently_left_out(tutorials, capsys):
    write_chapter(tutorials, COUNT, CLAIM, "kit.claim(f'{n} are best.', other)")
    assert check(capsys, tutorials)[0] == 1


@pytest.mark.parametrize(
    "cell",
    [
        "%%bash\nfor x in 1 2; do echo $x; done",
        "%%writefile data.txt\nnot Python at all",
        "files = !ls",
        "for n in range(3):\n    !echo {n}",
        "kit.measure?",
        "%timeit sum(range(10))",
        "await something()",
    ],
)
def test_cells_that_are_not_plain_python_do_no_harm(tutorials, capsys, cell):
    write_chapter(tutorials, cell, COUNT, CLAIM)
    status, out, _ = check(capsys, tutorials)
    assert status == 0
    assert SENTENCE in out


def test_several_claims_of_several_chapters(tutorials, capsys):
    write_chapter(tutorials, COUNT, CLAIM, name="01_second")
    record(tutorials, speed=3.0, chapter="01_second")
    status, out, _ = check(capsys, tutorials)
    assert status == 0
    lines = out.splitlines()
    assert [line.split()[1] for line in lines[2:]] == [CHAPTER, "01_second"]


def test_one_claim_of_two_that_fails_is_named(tutorials, capsys):
    sentence = "Three are best."
    cell = f"kit.claim({sentence!r}, comparison)"
    write_chapter(tutorials, COUNT, cell, name="01_second")
    record(tutorials, speed=0.5, chapter="01_second", sentence=sentence)
    status, _, err = check(capsys, tutorials)
    assert status == 1
    assert "01_second" in err
    assert sentence in err
    assert CHAPTER not in err


def test_a_chapter_is_not_excused_by_the_same_words_in_another(tutorials, capsys):
    write_chapter(tutorials, COUNT, CLAIM, name="01_second")
    record(tutorials, speed=0.5, chapter="01_second")
    status, _, err = check(capsys, tutorials)
    assert status == 1
    assert "01_second" in err
    assert CHAPTER not in err


def test_a_recording_without_its_chapter_does_no_harm(tutorials, capsys):
    record(tutorials, speed=0.5, chapter="07_gone")
    assert check(capsys, tutorials)[0] == 0


def test_a_broken_recording_fails_and_is_named(tutorials, capsys):
    path = record(tutorials, speed=2.0, machine=GPU)
    path.write_bytes(path.read_bytes()[:500])
    for options in ([], ["--check"]):
        status, _, err = run(capsys, "claims", "--folder", tutorials, *options)
        assert status == 1
        assert path.name in err
        assert len(err.strip().splitlines()) <= 6


def test_a_recording_of_a_later_kit_says_what_to_do(tutorials, capsys):
    path = record(tutorials, speed=2.0, machine=GPU)
    content = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**content, "format": 99}), encoding="utf-8")
    status, _, err = check(capsys, tutorials)
    assert status == 1
    assert path.name in err and "Update the kit" in err


def test_a_recording_of_another_machine_than_its_name_says_counts_for_nothing(
    tutorials, capsys
):
    path = record(tutorials, speed=4.0)
    path.rename(path.with_name(path.name.replace(CPU, GPU)))
    status, out, err = check(capsys, tutorials)
    assert status == 1
    assert GPU in err and f"was made on {CPU}" in err
    assert GPU not in out and "4 ×" not in out


def test_a_recording_of_a_short_run_counts_for_nothing(tutorials, capsys):
    path = record(tutorials, speed=4.0)
    made = recording.read(path)
    for trial in made.trials:
        trial.conditions["smoke"] = 1.0
    recording.write(made, path)
    status, out, err = check(capsys, tutorials)
    assert status == 1
    assert path.name in err and "short run" in err
    assert "4 ×" not in out


def test_a_stored_verdict_counts_for_nothing(tutorials, capsys):
    """Raw blocks decide, whatever else a forger adds to the claim."""
    path = record(tutorials, speed=0.5)
    content = json.loads(path.read_text("utf-8"))
    content["claims"][0]["verdict"] = "✓"
    content["checksum"] = recording.compute_checksum(content)
    path.write_text(json.dumps(content), encoding="utf-8")
    status, out, _ = check(capsys, tutorials)
    assert status == 1
    assert "✓" not in out


def test_no_claims_yet_is_no_failure(tmp_path, capsys):
    (tmp_path / "tutorials").mkdir()
    status, out, err = check(capsys, tmp_path / "tutorials")
    assert (status, err) == (0, "")
    assert "no claims" in out


# The page of claims

START, END = claims.START, claims.END


@pytest.fixture
def page(tutorials):
    path = tutorials / "CLAIMS.md"
    path.write_text(f"# Title\n\nBefore.\n\n{START}\n{END}\n\nAfter.\n", "utf-8")
    return path


def test_a_table_that_is_out_of_date_fails(tutorials, page, capsys):
    status, _, err = check(capsys, tutorials)
    assert status == 1
    assert "CLAIMS.md" in err
    assert "--write" in err


def test_write_puts_the_table_into_the_page(tutorials, page, capsys):
    record(tutorials, speed=4.0, machine=GPU)
    status, _, _ = run(capsys, "claims", "--folder", tutorials, "--write")
    assert status == 0
    text = page.read_text("utf-8")
    assert text.startswith("# Title\n\nBefore.\n\n")
    assert text.endswith("\n\nAfter.\n")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert cells[0][-2:] == [CPU, GPU]
    assert set("".join(cells[1])) == {"-"}
    assert cells[2][:2] == [CHAPTER, SENTENCE]
    assert cells[2][2].startswith("✓ 2 ×")
    assert cells[2][3].startswith("✓ 4 ×")
    assert check(capsys, tutorials)[0] == 0


def test_writing_twice_changes_nothing(tutorials, page, capsys):
    run(capsys, "claims", "--folder", tutorials, "--write")
    once = page.read_bytes()
    run(capsys, "claims", "--folder", tutorials, "--write")
    assert page.read_bytes() == once


@pytest.mark.parametrize("change", ["newer", "added", "edited"])
def test_a_table_goes_out_of_date(tutorials, page, capsys, change):
    run(capsys, "claims", "--folder", tutorials, "--write")
    assert check(capsys, tutorials)[0] == 0
    if change == "newer":
        record(tutorials, speed=3.0)
    elif change == "added":
        record(tutorials, speed=4.0, machine=GPU)
    else:
        text = page.read_text("utf-8")
        assert "✓ 2 ×" in text
        page.write_text(text.replace("✓ 2 ×", "✓ 9 ×"), encoding="utf-8")
    status, _, err = check(capsys, tutorials)
    assert status == 1
    assert "CLAIMS.md" in err


def test_a_sentence_with_a_bar_does_not_break_the_table(tutorials, page, capsys):
    sentence = "a|b is faster."
    write_chapter(tutorials, COUNT, f"kit.claim({sentence!r}, comparison)")
    record(tutorials, speed=2.0, sentence=sentence)
    run(capsys, "claims", "--folder", tutorials, "--write")
    rows = [x for x in page.read_text("utf-8").splitlines() if x.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {4}
    assert check(capsys, tutorials)[0] == 0


@pytest.mark.parametrize("content", ["# Title\n", f"# Title\n{START}\n", f"{END}\n"])
def test_a_page_without_a_place_for_it_is_left_alone(tutorials, page, capsys, content):
    page.write_text(content, encoding="utf-8")
    status, _, err = run(capsys, "claims", "--folder", tutorials, "--write")
    assert status == 1
    assert "CLAIMS.md" in err
    assert page.read_text("utf-8") == content


def test_a_page_that_is_not_there_is_an_error_not_a_traceback(tutorials, capsys):
    status, _, err = run(capsys, "claims", "--folder", tutorials, "--write")
    assert status == 1
    assert "CLAIMS.md" in err


# record, with a kernel that is none


class Kernel:
    """Runs cells in this process, and shows what a kernel might show."""

    is_cut = False

    def __init__(self, notebook, **options):
        self.notebook = notebook
        self.folder = Path(options["resources"]["metadata"]["path"])

    def execute(self, **options):
        names = {}
        for number, cell in enumerate(self.notebook.cells):
            if cell.cell_type == "code":
                exec(cell.source, names)
                cell.execution_count = number
                cell.outputs = [nbformat.v4.new_output("stream", text="shown\n")]
        return self.notebook


@pytest.fixture
def checks(monkeypatch):
    """The intervals that each check finds, whose last one stays; those it has found."""
    found = []

    class Checks(list):
        def __call__(self):
            found.append(self.pop(0) if len(self) > 1 else self[0])
            return Ratio(1.0, *found[-1], "same")

    made = Checks([QUIET])
    made.found = found
    monkeypatch.setattr(recorder, "compare_with_itself", made)
    return made


@pytest.fixture
def chapter(tmp_path, monkeypatch, checks):
    """A chapter that makes two trials, a comparison and a claim."""
    monkeypatch.setattr(recorder, "Client", Kernel)
    return write_chapter(
        tmp_path / "tutorials",
        "import kit\nfrom kit.trial import JOURNAL\n"
        "from test_command_line import made_up\n"
        f"comparison = made_up(2.0, {CPU!r})\n"
        "JOURNAL.extend([*comparison.trials, comparison])",
        CLAIM,
    )


def recordings(chapter):
    return sorted(path.name for path in (chapter.parent / "recordings").glob("*"))


def test_record_keeps_outputs_and_every_trial(chapter, capsys):
    status, out, err = run(capsys, "record", chapter)
    assert (status, err) == (0, "")
    name = f"{CHAPTER}__{CPU}__{TODAY().isoformat()}.json"
    assert recordings(chapter) == [name]
    assert name in out
    made = recording.read(chapter.parent / "recordings" / name)
    assert [trial.knobs["n"] for trial in made.trials] == [1, 2]
    assert made.comparisons[0].ratio.value == pytest.approx(2)
    assert made.claims[0]["sentence"] == SENTENCE
    assert f"✓ {SENTENCE}" in out
    stored = nbformat.read(chapter, as_version=4)
    assert [cell.outputs[0].text for cell in stored.cells[1:]] == ["shown\n"] * 2
    assert len(stored.cells) == 3, "nothing of the machinery is stored"


def test_before_and_after_the_machine_is_quiet(chapter, capsys, checks, monkeypatch):
    """One check between two chapters serves both; each says what it found."""
    seen = []
    monkeypatch.setattr(builtins, "checks", checks, raising=False)
    monkeypatch.setattr(builtins, "seen", seen, raising=False)
    watched = [
        write_chapter(chapter.parent, LOOK, name=f"0{n}_watched") for n in (1, 2)
    ]
    status, out, err = run(capsys, "record", *watched)
    assert (status, err) == (0, "")
    assert seen == [1, 2] and len(checks.found) == 3
    assert out.count("[0.98, 1.02]. The machine is quiet.") == 3


@pytest.mark.parametrize("interval", UNQUIET)
def test_on_an_unquiet_machine_nothing_is_run(chapter, capsys, checks, interval):
    checks[:] = [interval]
    before = kept(chapter.parent)
    status, out, err = run(capsys, "record", chapter)
    assert status == 1
    assert "not quiet" in err and f"{interval[1]:.3g}" in err
    assert "between 0.97 and 1.03" in err and "End other programs" in err
    assert "recording" not in out and not JOURNAL
    assert kept(chapter.parent) == before


@pytest.mark.parametrize("interval", UNQUIET)
def test_what_an_unquiet_machine_has_measured_is_not_kept(
    chapter, capsys, checks, interval
):
    checks[:] = [QUIET, interval]
    before = kept(chapter.parent)
    status, _, err = run(capsys, "record", chapter)
    assert status == 1
    assert chapter.name in err and "nothing of it is kept" in err
    assert "not quiet" in err
    assert kept(chapter.parent) == before


def test_a_machine_may_become_quiet_again(chapter, capsys, checks):
    """What a chapter was not kept for is looked at anew before the next one."""
    checks[:] = [QUIET, (0.8, 1.2), QUIET]
    second = write_chapter(chapter.parent, "x = 1", name="01_second")
    status, _, err = run(capsys, "record", chapter, second)
    assert status == 1 and CHAPTER in err and second.stem not in err
    assert not [name for name in recordings(chapter) if CHAPTER in name]
    assert not nbformat.read(chapter, as_version=4).cells[1].outputs
    assert nbformat.read(second, as_version=4).cells[1].outputs
    assert len(checks.found) == 4


@pytest.mark.parametrize(
    ("folder", "options"), [("tutorials", ["--dry-run"]), ("solutions", [])]
)
def test_what_is_not_recorded_needs_no_quiet(
    chapter, capsys, checks, folder, options, tmp_path
):
    path = write_chapter(tmp_path / folder, "x = 1", name="01_other")
    assert run(capsys, "record", *options, path)[0] == 0
    assert checks.found == []


def test_the_loop_that_is_compared_is_that_of_the_readme():
    """Both say it; only the annotations are the script's own."""
    page = (ROOT / "README.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    source = (SCRIPTS / "record.py").read_text("utf-8")
    loops = [find_train(code) for code in (*blocks, source) if "def train(" in code]
    assert len(loops) == 2 and loops[0] == loops[1]


def find_train(code):
    """Return the function `train` as code without annotations and comments."""
    defined = [x for x in ast.parse(code).body if isinstance(x, ast.FunctionDef)]
    train = next(node for node in defined if node.name == "train")
    train.returns = None
    for argument in train.args.kwonlyargs:
        argument.annotation = None
    return ast.unparse(train)


def test_the_check_compares_that_loop_with_itself(monkeypatch):
    asked = []

    def compare(experiments, *, seconds):
        asked.append((list(experiments.values()), seconds))
        return made_up(1.0, CPU)

    monkeypatch.setattr(recorder, "compare", compare)
    assert "quiet" in recorder.check_quiet()
    assert asked == [([recorder.train, recorder.train], 10.0)]


def test_record_replaces_what_this_machine_recorded_before(chapter, capsys):
    folder = chapter.parent
    old = record(folder, speed=0.5, date="2025-01-02")
    older = record(folder, speed=0.5, date="2024-01-02")
    others = [
        record(folder, speed=0.5, machine=GPU, date="2024-01-02"),
        record(folder, speed=0.5, chapter="01_second", date="2024-01-02"),
        record(folder, speed=0.5, machine=f"{CPU}-more", date="2024-01-02"),
    ]
    assert run(capsys, "record", chapter)[0] == 0
    assert not old.exists()
    assert not older.exists()
    assert all(path.exists() for path in others)
    assert len(recordings(chapter)) == 4


def test_record_twice_a_day_keeps_the_last(chapter, capsys):
    for _ in range(2):
        JOURNAL.clear()
        assert run(capsys, "record", chapter)[0] == 0
    assert len(recordings(chapter)) == 1


def test_dry_run_runs_and_judges_but_writes_nothing(chapter, capsys, tmp_path):
    before = kept(tmp_path)
    status, out, _ = run(capsys, "record", "--dry-run", chapter)
    assert status == 0
    assert f"✓ {SENTENCE}" in out
    assert kept(tmp_path) == before


def test_a_short_run_goes_to_its_own_folder_and_is_judged_by_nobody(
    chapter, capsys, tmp_path, checks
):
    before = kept(chapter.parent)
    folder = tmp_path / "tried"
    status, out, _ = run(capsys, "record", "--smoke", "--into", folder, chapter)
    assert status == 0
    (path,) = folder.glob("*.json")
    assert str(path) in out
    assert f"? {SENTENCE}" in out
    assert kept(chapter.parent) == before
    assert checks.found == []
    assert recording.read(path).trials[0].conditions == {"smoke": 1.0}


def test_into_a_folder_of_its_own_both_go_at_full_length(chapter, capsys, tmp_path):
    before = kept(chapter.parent)
    folder = tmp_path / "there"
    status, out, _ = run(capsys, "record", "--into", folder, chapter)
    assert status == 0
    assert f"✓ {SENTENCE}" in out
    name = f"{CHAPTER}__{CPU}__{TODAY().isoformat()}.json"
    assert {path.name for path in folder.iterdir()} == {name, chapter.name}
    assert recording.read(folder / name).trials[0].conditions == {}
    stored = nbformat.read(folder / chapter.name, as_version=4)
    assert stored.cells[1].outputs[0].text == "shown\n"
    assert kept(chapter.parent) == before


@pytest.mark.parametrize(
    "options",
    [
        ["--smoke"],
        ["--seconds", "60"],
        ["--into", "tutorials"],
        ["--smoke", "--into", "tutorials/recordings"],
    ],
)
def test_half_a_result_is_kept_from_where_readers_look(
    chapter, capsys, options, tmp_path, checks
):
    before = kept(tmp_path)
    status, _, err = run(capsys, "record", *options, chapter)
    assert status == 1
    assert "--into" in err and len(err.splitlines()) <= 3
    assert kept(tmp_path) == before and checks.found == []


def test_what_there_is_no_time_for_is_left_out(chapter, capsys, tmp_path, checks):
    options = ["--seconds", "1", "--into", tmp_path / "there"]
    status, _, err = run(capsys, "record", *options, chapter)
    assert status == 1
    assert chapter.name in err and "left out" in err
    assert checks.found == [] and not JOURNAL


def test_a_notebook_that_raises_is_left_untouched(chapter, capsys, tmp_path):
    broken = write_chapter(tmp_path / "tutorials", "x = 1", "1 / 0", name="01_broken")
    record(tmp_path / "tutorials", speed=2.0, chapter="01_broken")
    before = kept(tmp_path)
    status, _, err = run(capsys, "record", broken)
    assert status == 1
    assert broken.name in err
    assert "division by zero" in err
    assert kept(tmp_path) == before


def test_the_other_notebooks_are_recorded_all_the_same(chapter, capsys, tmp_path):
    broken = write_chapter(tmp_path / "tutorials", "1 / 0", name="01_broken")
    status, _, err = run(capsys, "record", broken, chapter)
    assert status == 1
    assert broken.name in err
    assert len(recordings(chapter)) == 1


def test_a_notebook_that_is_not_there_is_named(chapter, capsys, tmp_path):
    status, _, err = run(capsys, "record", tmp_path / "absent.ipynb")
    assert status == 1
    assert "absent.ipynb" in err


def test_a_recording_that_cannot_be_written_leaves_the_notebook_alone(
    chapter, capsys, tmp_path
):
    """Outputs and recording belong together: both or none."""
    (tmp_path / "tutorials" / "recordings").write_text("a file, not a folder")
    before = kept(tmp_path)
    status, _, err = run(capsys, "record", chapter)
    assert status == 1
    assert "recordings" in err
    assert len(err.strip().splitlines()) <= 6
    assert kept(tmp_path) == before


def test_a_chapter_that_measures_nothing_has_outputs_only(chapter, capsys, tmp_path):
    second = write_chapter(tmp_path / "tutorials", "x = 1", name="01_second")
    assert run(capsys, "record", second)[0] == 0
    assert recordings(second) == []
    assert nbformat.read(second, as_version=4).cells[1].outputs


# record, with a kernel


def test_record_with_a_real_kernel(tmp_path, capsys, monkeypatch, checks):
    """Static outputs at full length, every trial; an error leaves its notebook."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("KIT_SMOKE", "1")
    folder = tmp_path / "tutorials"
    good = write_chapter(
        folder,
        "import os\nfrom pathlib import Path\nimport IPython, ipywidgets\nimport kit",
        "os.environ.get('KIT_SMOKE', 'full length')",
        "def count(*, n=1000):\n    while True:\n        yield sum(range(n)) and 1",
        "comparison = kit.compare(count, n=[1000, 4000], seconds=2.5)\ncomparison",
        f"kit.claim({SENTENCE!r}, comparison)",
        "kit.measure(count, seconds=0.1)",
        "ipywidgets.IntSlider()",
        "Path.cwd().name",
        "IPython.display.HTML('<iframe></iframe><script>fill()</script>')",
    )
    raising = write_chapter(folder, "x = 1", "raise ValueError('oh')", name="01_raises")
    untouched = raising.read_bytes()
    status, out, err = run(capsys, "record", good, raising)

    assert status == 1
    assert raising.name in err
    assert "ValueError" in err
    assert good.name not in err
    assert raising.read_bytes() == untouched

    stored = nbformat.read(good, as_version=4)
    nbformat.validate(stored)
    assert len(stored.cells) == 10
    assert "widgets" not in stored.metadata
    shown = [cell.outputs for cell in stored.cells[1:]]
    assert [len(outputs) for outputs in shown] == [0, 1, 0, 1, 1, 1, 0, 1, 0]
    assert shown[1][0].data["text/plain"] == "'full length'"
    assert "×" in shown[3][0].data["text/plain"]
    assert "text/html" in shown[3][0].data
    assert SENTENCE in shown[4][0].data["text/plain"]
    assert shown[7][0].data["text/plain"] == "'tutorials'"
    text = good.read_text("utf-8")
    assert "application/vnd.jupyter.widget" not in text
    assert "s left" not in text, "progress is not kept"
    assert "write_journal" not in text
    assert str(tmp_path) not in text

    machine = kit.this_machine().name
    name = f"{CHAPTER}__{machine}__{TODAY().isoformat()}.json"
    assert recordings(good) == [name]
    made = recording.read(folder / "recordings" / name)
    assert len(made.trials) == 3
    assert [trial.experiment for trial in made.trials] == ["count"] * 3
    assert [trial.knobs["n"] for trial in made.trials] == [1000, 4000, 1000]
    assert made.trials[0].source.startswith("def count(")
    assert made.comparisons[0].labels == ["n=1000", "n=4000"]
    assert len(made.trials[0].lives) >= 10, "not a smoke run"
    assert [row["sentence"] for row in made.claims] == [SENTENCE]
    assert SENTENCE in out


@pytest.fixture
def late(tmp_path, monkeypatch):
    """Start a clock that stands, until a cell touches `../late`: time is nearly over.

    Only the recorder reads it. Return the options for that.
    """
    file = tmp_path / "late"
    stopped_clock = SimpleNamespace(monotonic=lambda: 954.5 if file.exists() else 0.0)
    monkeypatch.setattr(recorder, "time", stopped_clock)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return ["--seconds", "1000", "--into", tmp_path / "there"]


def test_a_chapter_that_is_cut_keeps_what_it_has(tmp_path, capsys, checks, late):
    """The cell that runs is interrupted, and what it began leaves nothing."""
    path = write_chapter(
        tmp_path / "tutorials",
        "from pathlib import Path\nimport kit",
        "def count():\n    while True:\n        yield sum(range(1000)) and 1",
        "first = kit.compare({'a': count, 'b': count}, seconds=0.1)",
        f"kit.claim({SENTENCE!r}, first)\nPath('../late').touch()",
        "print('begun')\nsecond = kit.compare({'a': count, 'b': count}, seconds=99)",
        "Path('../reached').touch()",
    )
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[-1].outputs = [nbformat.v4.new_output("stream", text="of old\n")]
    nbformat.write(notebook, path)
    before = kept(path.parent)
    status, out, err = run(capsys, "record", *late, path)
    assert status == 1
    assert f"{path}: cut" in err and SENTENCE in out
    assert kept(path.parent) == before and not (tmp_path / "reached").exists()
    assert len(checks.found) == 2, "the machine is looked at afterwards, too"

    (cut,) = (tmp_path / "there").glob("*.ipynb")
    (made,) = (tmp_path / "there").glob("*.json")
    assert cut.name == f"{CHAPTER}_cut.ipynb"
    shown = [cell.outputs for cell in nbformat.read(cut, as_version=4).cells[1:]]
    assert shown[4][0].text == "begun\n" and shown[4][-1].ename == "KeyboardInterrupt"
    assert shown[5] == [], "nothing of an earlier run"
    made = recording.read(made)
    assert [comparison.labels for comparison in made.comparisons] == [["a", "b"]]
    assert len(made.trials) == 2
    assert [row["sentence"] for row in made.claims] == [SENTENCE]


def test_a_cell_that_does_not_let_itself_be_interrupted_is_told(
    tmp_path, capsys, checks, late, monkeypatch
):
    monkeypatch.setattr(recorder, "SECONDS_TO_STOP", 0.2)
    loop = "while True:\n    try:\n        time.sleep(99)\n"
    path = write_chapter(
        tmp_path / "tutorials",
        "import time, pathlib\npathlib.Path('../late').touch()",
        f"{loop}    except KeyboardInterrupt:\n        pass",
    )
    status, _, err = run(capsys, "record", *late, path)
    assert status == 1
    assert f"{path}: " in err and "interrupted" in err and "nothing of it" in err
    assert not (tmp_path / "there").exists()
