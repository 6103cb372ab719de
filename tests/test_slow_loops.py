"""The six loops of chapter 02: alike at first sight, and repaired without a change."""

import ast
import importlib
import inspect
import itertools
import re
import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kit import state
from kit.diagnosis import causes
from kit.experiment import resolve

ROOT = Path(__file__).resolve().parents[1]
LETTERS = "ABCDEF"
EACH = pytest.mark.parametrize("letter", LETTERS)
CAUSES = {"input", "python", "overhead", "optimizer", "threads", "compute"}
#: What would tell a reader where to look.
TELLING = re.compile(
    r"slow|fast|quick|speed|wait|tiny|small|many|input|python|overhead|thread|memory"
    r"|bottleneck|fault|repair|fix|bad|good|heal|cheap|costl|expensive|instead|compute"
    r"|update|one by one|by hand|launch|kernel|pars|decod|cache",
    re.I,
)

pytestmark = pytest.mark.usefixtures("tidy")


@pytest.fixture(scope="module")
def planted():
    """The benchmark's package of loops."""
    sys.path.insert(0, str(ROOT / "tests" / "benchmarks"))
    try:
        return importlib.import_module("planted")
    finally:
        sys.path.pop(0)


@pytest.fixture(scope="module")
def loops(planted):
    return sys.modules["planted.parts"].slow_loops


def steps(loop, count=6):
    """Return the losses of a loop's first steps, from the same random numbers."""
    before = torch.get_num_threads()
    state.seed_everything(0)
    generator = loop()
    try:
        found = [metrics for _, metrics in itertools.islice(generator, count)]
    finally:
        generator.close()
        torch.set_num_threads(before)
    return [metrics["loss"].item() for metrics in found]


@EACH
def test_a_loop_is_an_experiment_of_at_most_twenty_lines(loops, letter):
    loop = loops.LOOPS[letter]
    experiment = resolve(loop)
    experiment.bind({})
    assert inspect.isgeneratorfunction(loop)
    source = inspect.getsource(loop)
    lines = source.splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 88
    assert source.count("yield") == 1


def test_there_are_six_loops_and_six_repairs(loops):
    assert "".join(loops.LOOPS) == "".join(loops.REPAIRED) == LETTERS
    assert len(set(loops.LOOPS.values())) == len(LETTERS)


@EACH
def test_name_and_title_do_not_give_the_cause_away(loops, letter):
    experiment = resolve(loops.LOOPS[letter])
    assert experiment.title.endswith(".")
    for words in (experiment.name, experiment.title):
        assert not TELLING.search(words)


@EACH
def test_no_remark_in_the_code_gives_the_cause_away(loops, letter):
    source = inspect.getsource(loops.LOOPS[letter])
    assert "#" not in source
    names = {n.id for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Name)}
    arguments = set(inspect.signature(loops.LOOPS[letter]).parameters)
    assert not {name for name in names | arguments if TELLING.search(name)}


def test_each_cause_comes_once_and_the_benchmark_has_them_all(planted, loops):
    by_loop = {row.loop: row for row in planted.make_planted()}
    rows = [by_loop[loops.LOOPS[letter]] for letter in LETTERS]
    assert {row.cause for row in rows} == CAUSES
    for letter, row in zip(LETTERS, rows, strict=True):
        healthy = row.cause == "compute"
        assert row.repaired is (None if healthy else loops.REPAIRED[letter])
        assert healthy is (loops.REPAIRED[letter] is loops.LOOPS[letter])
    order = [row.cause for row in rows]
    assert order != sorted(order), "the letters follow no order of the causes"


def test_the_file_imports_nothing_of_its_own(loops):
    tree = ast.parse(Path(loops.__file__).read_text("utf-8"))
    found = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in [getattr(node, "module", None) or node.names[0].name]
    }
    assert found - set(sys.stdlib_module_names) == {"numpy", "torch"}


@EACH
def test_a_repaired_loop_trains_as_before(loops, letter):
    ours, theirs = steps(loops.LOOPS[letter]), steps(loops.REPAIRED[letter])
    assert len(set(ours)) > 1, "it learns nothing"
    assert theirs == pytest.approx(ours, rel=1e-3)


def test_threads_are_as_many_as_asked_for(loops):
    torch.set_num_threads(1)
    for loop, wanted in ((loops.LOOPS["F"], 4), (loops.REPAIRED["F"], 1)):
        generator = loop()
        try:
            next(generator)
            assert torch.get_num_threads() == wanted
        finally:
            generator.close()
            torch.set_num_threads(1)


# A guess


def test_the_source_of_all_loops_is_shown(loops, capsys):
    loops.show()
    shown = capsys.readouterr().out
    assert re.findall(r"^# (\w)\ndef (\w+)", shown, re.M) == [
        (letter, loop.__name__) for letter, loop in loops.LOOPS.items()
    ]
    assert "REPAIRED" not in shown


@pytest.mark.parametrize(
    ("guess", "verdict", "reason", "mark"),
    [
        ("input", "input", "", "✓"),
        ("input", "overhead", "", "✗"),
        ("input", "memory", "70% of the step moves numbers", "✗"),
        ("input", None, "removing the wait may save 20 %; not sure", "?"),
        ("healthy", "compute", "80% of the step is matrix products", "✓"),
        ("healthy", "healthy", "", "✓"),
        ("healthy", None, "removing the wait may save 20 %; not sure", "?"),
        ("healthy", "threads", "", "✗"),
        ("threads", "healthy", "nothing to repair was found (no suspect)", "✗"),
    ],
)
def test_a_guess_is_judged_by_the_diagnosis(loops, guess, verdict, reason, mark):
    assert loops.judge(guess, verdict, reason).startswith(f"{mark} ")


def test_what_a_reader_may_guess_is_what_a_diagnosis_may_say(loops):
    assert set(loops.CAUSES.values()) <= set(causes.CAUSES)


# The loop whose helpers can be exchanged


class Reads(TorchDispatchMode):
    """Count how often a number is read out of a tensor."""

    count = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        name = getattr(function, "overloadpacket", function).__name__
        self.count += name in ("_local_scalar_dense", "is_nonzero")
        return function(*arguments, **(options or {}))


def watched(helper, found):
    def call(*arguments):
        with Reads() as reads:
            result = helper(*arguments)
        found[helper.__name__] = found.get(helper.__name__, 0) + reads.count
        return result

    return call


def test_one_helper_reads_and_does_not_look_like_it(loops):
    found = {}
    helpers = {name: watched(h, found) for name, h in loops.HELPERS.items()}
    generator = loops.train_with(helpers=helpers)
    for _ in range(3):
        next(generator)
    assert set(found) == set(loops.HELPERS) == {"clip", "track", "smooth"}
    assert found["track"] >= 3 and found["clip"] == found["smooth"] == 0
    for helper in loops.HELPERS.values():
        source = inspect.getsource(helper)
        assert not re.search(r"item|tolist|float\(|int\(|numpy|#", source)
        assert not TELLING.search(source)


def test_outside_its_helpers_the_loop_reads_nothing(loops):
    idle = {
        "clip": lambda parameters: None,
        "track": lambda best, loss: best,
        "smooth": lambda average, loss: loss,
    }
    generator = loops.train_with(helpers=idle)
    next(generator)
    with Reads() as reads:
        next(generator)
    assert reads.count == 0


def test_the_loop_keeps_the_lowest_loss(loops):
    metrics = [m for _, m in itertools.islice(loops.train_with(), 12)]
    lowest = [float(m["best"]) for m in metrics]
    assert lowest == sorted(lowest, reverse=True)
    assert 0 < lowest[-1] < lowest[0]
