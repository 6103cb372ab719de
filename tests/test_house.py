"""The house stands: arrows, names, doors, sentences over the doors, no clutter."""

import ast
import doctest
import importlib
import importlib.util
import inspect
import io
import itertools
import re
import subprocess
import sys
import threading
import time
import tokenize
from pathlib import Path

import pytest

import kit

ROOT = Path(__file__).resolve().parents[1]
KIT = ROOT / "kit"
FILES = sorted(KIT.rglob("*.py"))
# What maintains the chapters lies with them. It uses the kit, and the kit not it.
SCRIPTS = [
    ROOT / "tutorials" / "scripts" / f"{name}.py"
    for name in ("record", "claims", "cheatsheet", "pages", "journal")
]

# From the ground up, as the design lists them: imports go down only.
ROOMS = [
    *("stats", "figures", "progress", "clock", "system", "machine", "hints", "state"),
    *("experiment", "silence", "life", "variant", "trial", "ratio", "plot"),
    *("comparison", "choices", "budget", "measurement", "recording", "costs", "data"),
    *("ranks", "diagnosis", "tuning", "teaching", "cells", "widgets", "panel"),
    *("__main__", "__init__"),
]
# What measures: the rooms that decide what a number is, and may not grow.
MEASURING = [
    *("stats", "clock", "state", "system", "experiment", "silence", "life", "variant"),
    "trial",
    *("ratio", "comparison", "choices", "budget", "measurement"),
]
# Limits, which are only ever lowered: lines that hold code, without docstrings,
# comments and blank lines; frames between a reader's call and their generator.
MOST_LINES_THAT_MEASURE, MOST_LINES_OF_ALL = 2_354, 7_076
MOST_LINES_OF_A_FILE, MOST_LINES_OF_A_FUNCTION, MOST_FRAMES = 300, 40, 6
MOST_FILES = 55

# The fixed public names, each with the room that builds it.
NAMES = {
    "measure": "measurement",
    "compare": "measurement",
    "explore": "panel",
    "diagnose": "diagnosis",
    "timeline": "diagnosis",
    "guess": "teaching",
    "claim": "teaching",
    "check": "teaching",
    "this_machine": "machine",
    "recorded": "recording",
    "save": "recording",
    "load": "recording",
    "start_ranks": "ranks",
    "data": "data",
    "costs": "costs",
    "tuning": "tuning",
}
HEAVY = ["torch", "matplotlib", "pandas", "ipywidgets", "torchvision"]
# What `import kit` alone need not load either, and how many modules it may load.
SLOW = [
    *("numpy", "scipy", "psutil", "IPython", "ipyparallel", "fsspec", "cloudpickle"),
    *("zmq", "asyncio", "multiprocessing", "inspect", "dis", "ast", "sqlite3"),
    *("subprocess", "ssl", "http", "html", "json", "doctest"),
]
MOST_MODULES = 50


def room_of(path):
    """The room that a file belongs to."""
    return path.relative_to(KIT).parts[0].removesuffix(".py")


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def name_of(path):
    return path.name if path in SCRIPTS else str(path.relative_to(KIT))


def is_built(room):
    return (KIT / f"{room}.py").exists() or (KIT / room / "__init__.py").exists()


def parse(path):
    return ast.parse(path.read_text("utf-8"), str(path))


def everywhere(find, files=FILES):
    """Return what `find(path, tree)` finds in each file, where it finds something."""
    found = {name_of(path): list(find(path, parse(path))) for path in files}
    return {name: things for name, things in found.items() if things}


# Arrows


def imported(tree, package):
    """Yield every module that is imported, anywhere, with its line; dots resolved."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            for alias in node.names:
                yield f"{base}.{alias.name}", node.lineno


def arrows(tree, package):
    """Yield the rooms of the kit that are imported, with their lines."""
    for name, line in imported(tree, package):
        first, *rest = name.split(".")
        if first == "kit":
            is_room = rest and rest[0] in ROOMS
            yield rest[0] if is_room else "__init__", line


def wrong_arrows(tree, room, package):
    own = ROOMS.index(room)
    for goal, line in arrows(tree, package):
        if goal != room and ROOMS.index(goal) >= own:
            yield f"line {line}: {room} imports {goal}"


def package_of(path):
    module = module_of(path)
    return module if path.name == "__init__.py" else module.rpartition(".")[0]


def test_every_file_is_in_a_room_of_the_design():
    assert {room_of(path) for path in FILES} <= set(ROOMS)


def test_every_room_has_a_line_where_contributors_read():
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    table = page.partition("| room |")[2].partition("\n\n")[0]
    named = re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\|[^|]*", table, re.M)))
    assert set(named) == {room_of(path) for path in FILES} - {"__init__"}


def test_imports_go_down_only():
    assert not everywhere(
        lambda path, tree: wrong_arrows(tree, room_of(path), package_of(path))
    )


@pytest.mark.parametrize(
    ("source", "bad"),
    [
        ("from kit import stats", 0),
        ("from kit.stats import judge_ratio", 0),
        ("import kit.progress", 0),
        ("from kit.clock import Clock", 0),
        ("from .run import Run", 0),
        ("from ..stats import median", 0),
        ("import numpy", 0),
        ("from kit import comparison", 1),
        ("from kit.ratio import Ratio", 1),
        ("import kit.teaching", 1),
        ("import kit", 1),
        ("from kit import measure", 1),
        ("from ..recording import save", 1),
        ("from .. import recording, stats", 1),
        ("def f():\n    from kit.recording import save", 1),
        ("if TYPE_CHECKING:\n    from kit.panel import Panel", 1),
    ],
)
def test_arrows_are_read(source, bad):
    found = list(wrong_arrows(ast.parse(source), "clock", "kit.clock"))
    assert len(found) == bad, found


def test_the_kit_needs_nothing_of_the_tutorials():
    beside = [*SCRIPTS, *(ROOT / "tutorials").glob("*.py")]
    outside = re.compile(rf"(?:tutorials|{'|'.join(x.stem for x in beside)})\b")
    assert not everywhere(lambda *x: filter(outside.match, modules(*x)))


# Doors


def interpret(code):
    """Run code in a fresh interpreter; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_importing_the_kit_is_fast(capsys):
    """It takes 0.2 s at most on a quiet machine; a busy one counts modules instead."""
    look = "print(*set(sys.modules) - before)"
    loaded = interpret(f"import sys; before = set(sys.modules); import kit; {look}")
    assert "kit" in loaded.split()
    assert not {name.partition(".")[0] for name in loaded.split()} & set(SLOW + HEAVY)
    assert len(loaded.split()) <= MOST_MODULES
    timed = "begun = perf_counter(); import kit; print(perf_counter() - begun)"
    fastest = min(
        float(interpret(f"from time import perf_counter; {timed}")) for _ in range(10)
    )
    with capsys.disabled():
        print(f"\nimport kit: {fastest:.3f} s, the fastest of ten")


ALL = "import kit\nfor name in kit.__all__: getattr(kit, name)\n"


def test_what_the_kit_offers_loads_nothing_heavy():
    """A name is imported when it is first asked for; PyTorch, when it is used."""
    loaded = interpret(f"{ALL}import sys; print(*sys.modules)")
    assert "kit.panel" in loaded.split()
    assert not {name.partition(".")[0] for name in loaded.split()} & set(HEAVY)


def test_importing_the_kit_changes_nothing():
    """No side effects: no flags, no environment, no handlers, no threads."""
    code = f"""
import os, random, signal, sys, threading, warnings
def look():
    return (dict(os.environ), os.getcwd(), random.getstate(), list(warnings.filters),
            [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)],
            threading.active_count(), sys.getrecursionlimit(), list(sys.path),
            sys.excepthook, sys.displayhook, sys.stdout, sys.stderr)
import numpy
before = look()
{ALL}
print(look() == before)
"""
    assert interpret(code) == "True"


def test_names_come_from_where_they_are_built():
    for name, room in NAMES.items():
        value = getattr(kit, name)
        home = getattr(value, "__module__", None) or value.__name__
        assert home.startswith(f"kit.{room}"), f"{name} comes from {home}"
    assert set(kit.__all__) <= set(dir(kit))


def test_all_ways_to_a_name_lead_there():
    code = """
import kit
assert kit.data.__name__ == "kit.data" and kit.panel.Panel
from kit import compare, costs
assert kit.compare is compare and kit.costs is costs
names = {}
exec("from kit import *", names)
assert set(kit.__all__) <= set(names)
for wrong in ("comparr", "_compare", "__wrapped__"):
    assert not hasattr(kit, wrong), wrong
try:
    from kit import comparr
except ImportError as error:
    print("comparr" in str(error))
"""
    assert interpret(code) == "True"


def test_all_is_what_is_built_and_nothing_else():
    built = {name for name, room in NAMES.items() if is_built(room)}
    assert set(kit.__all__) == built


def test_all_is_sorted_and_there():
    assert list(kit.__all__) == sorted(kit.__all__)
    for name in kit.__all__:
        assert getattr(kit, name) is not None


def test_the_kit_shows_how_it_is_used():
    """In six lines."""
    example = doctest.DocTestParser().get_examples(kit.__doc__)
    lines = "".join(part.source for part in example).splitlines()
    assert 5 <= len(lines) <= 6
    assert "yield" in kit.__doc__


@pytest.mark.parametrize(
    ("name", "keywords"),
    [
        ("measure", {"seconds": 2.0, "repeats": 1, "on": None}),
        (
            "compare",
            {"of": "items_per_second", "repeats": 6, "patient": False, "title": None},
        ),
        ("guess", {"unit": "×"}),
        ("claim", {"expect": "faster", "at_least": None, "open": False}),
        ("recorded", {"machine": None, "folder": None}),
        ("start_ranks", {"cluster": None}),
    ],
)
def test_signatures_are_those_of_the_design(name, keywords):
    parameters = inspect.signature(getattr(kit, name)).parameters
    for keyword, default in keywords.items():
        assert parameters[keyword].default == default
        assert parameters[keyword].kind is inspect.Parameter.KEYWORD_ONLY


# Sentences


def public(tree):
    """Yield every public function and method, with whether it reads as a noun."""

    def walk(body, prefix):
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if not node.name.startswith("_"):
                    yield prefix + node.name, node, is_noun(node)
            elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield from walk(node.body, f"{node.name}.")

    yield from walk(tree.body, "")


def is_noun(node):
    """Whether a function is a property."""
    words = {
        getattr(decorator, "attr", getattr(decorator, "id", ""))
        for decorator in node.decorator_list
    }
    return bool(words & {"property", "cached_property"})


def first_paragraph(node):
    return " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())


# Words that end like a third person and are none; words that begin no command.
IMPERATIVES = {"pass", "process", "guess", "focus", "seed", "feed", "speed", "embed"}
NOT_VERBS = re.compile(
    r"an?|the|this|that|these|its?|one|some|all|any|each|every|no|not|if|whether|when"
    r"|where|what|who|how|is|are|was|were|as|for|from|in|of|on|to|with|without|here"
    r"|there|function|method|class|helper"
)


def is_imperative(sentence):
    word = re.match(r"\W*([A-Za-z-]+)", sentence)
    if not word:
        return False
    text = word[1].lower()
    ending = text.endswith(("s", "ing", "ed")) and text not in IMPERATIVES
    return not ending and not NOT_VERBS.fullmatch(text)


def unclear(path, tree):
    """Yield public functions whose docstring does not begin with a command."""
    for name, node, noun in public(tree):
        sentence = first_paragraph(node)
        if not sentence:
            yield f"{name} has no docstring"
        elif not re.search(r"\.(?: |$)", sentence):
            yield f"{name}: its first sentence does not end in a period"
        elif not noun and not is_imperative(sentence):
            yield f"{name}: {sentence!r:.60} does not say what to do"


def test_public_functions_say_what_to_expect():
    assert not everywhere(unclear, FILES + SCRIPTS)


def nameless(path, tree):
    if not first_paragraph(tree):
        yield "the module"
    for node in tree.body:
        is_public = isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        if is_public and "." not in first_paragraph(node):
            yield node.name


def test_modules_and_classes_say_what_they_are():
    assert not everywhere(nameless, FILES + SCRIPTS)


def test_moods_are_told_apart():
    good = [
        "Return the sum.",
        "Seed it.",
        "Say how.",
        "Process it.",
        "Guess.",
        "Add 3 numbers.",
    ]
    bad = ["Returns the sum.", "The sum.", "Whether it is.", "Adding.", "", "Is it?"]
    assert all(map(is_imperative, good))
    assert not any(map(is_imperative, bad))


def unannotated(path, tree):
    for name, node, _ in public(tree):
        given = node.args
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        every += [extra for extra in (given.vararg, given.kwarg) if extra]
        for number, parameter in enumerate(every):
            bound = number == 0 and parameter.arg in ("self", "cls")
            if parameter.annotation is None and not bound:
                yield f"{name}({parameter.arg})"
        if node.returns is None:
            yield f"{name} ->"


def test_public_functions_are_annotated():
    assert not everywhere(unannotated, FILES + SCRIPTS)


# Their examples measure for long, or start ranks.
LONG = ["diagnosis/diagnosing.py", "ranks/ranks.py"]
LONG += ["tuning.py"]
EXAMPLES = [
    pytest.param(path, marks=[pytest.mark.nightly] * (name_of(path) in LONG))
    for path in FILES
    if ">>>" in path.read_text("utf-8")
]


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_examples_in_docstrings_are_true(path, tmp_path, monkeypatch):
    monkeypatch.setenv("KIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KIT_SMOKE", raising=False)
    module = importlib.import_module(module_of(path))
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


# No clutter


def calls(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield getattr(node.func, "attr", getattr(node.func, "id", "")), node.lineno


def modules(path, tree):
    return [name for name, _ in imported(tree, package_of(path))]


def test_no_star_imports():
    assert not everywhere(lambda *x: [m for m in modules(*x) if m.endswith(".*")])


def test_nothing_is_pickled_but_what_goes_to_the_ranks():
    pickles = re.compile(r"(?:pickle|cloudpickle|dill|shelve|marshal)\b")

    def pickled(path, tree):
        allowed = {"cloudpickle"} if room_of(path) == "ranks" else set()
        return {m for m in modules(path, tree) if pickles.match(m)} - allowed

    assert not everywhere(pickled)


def test_nobody_uses_pyplot():
    pyplot = re.compile(r".*\b(?:pyplot|pylab)\b")
    assert not everywhere(lambda *x: filter(pyplot.match, modules(*x)))


def test_only_one_room_makes_widgets():
    def widgets(path, tree):
        if room_of(path) != "widgets":
            return [m for m in modules(path, tree) if m.startswith("ipywidgets")]
        return []

    assert not everywhere(widgets)


def test_only_the_command_line_and_notices_print():
    def prints(path, tree):
        allowed = ("__main__.py", "progress.py")
        if not path.relative_to(KIT).as_posix().startswith(allowed):
            yield from (line for name, line in calls(tree) if name == "print")

    assert not everywhere(prints)


def test_no_tricks_with_frames():
    tricks = {"_getframe", "currentframe", "settrace", "setprofile"}
    assert not everywhere(lambda _, tree: [c for c in calls(tree) if c[0] in tricks])


def test_no_flags_are_set_for_the_reader():
    """Only `state`, which gives the reader's state back, may touch these."""
    flags = re.compile(
        r"set_num_threads|set_default_dtype|set_grad_enabled|set_float32_matmul"
        r"|use_deterministic|set_autocast|manual_seed|simplefilter|filterwarnings"
    )

    def setters(path, tree):
        if room_of(path) != "state":
            yield from (call for call in calls(tree) if flags.match(call[0]))

    assert not everywhere(setters)


HEX = re.compile(r"#(?:[0-9a-f]{3}){1,2}(?:[0-9a-f]{2})?\b", re.I)


def colours(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from HEX.findall(node.value)


def test_colours_are_in_one_place():
    assert not everywhere(
        lambda path, tree: colours(tree) if room_of(path) != "figures" else []
    )


def test_colours_are_seen():
    source = "a = '#0072b2'\nb = 'background:#fff;'\nc = '# title'\nd = '#number'"
    assert list(colours(ast.parse(source))) == ["#0072b2", "#fff"]


CLOCKS = re.compile(r"(?:time|perf_counter|monotonic|(?:process|thread)_time)(?:_ns)?")


def clocks(path, tree):
    """Yield where a clock is read; telling the time that is left is allowed."""
    if room_of(path) in ("clock", "system", "progress"):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module, _, name = ast.unparse(node).partition(".")
            if module == "time" and CLOCKS.fullmatch(name):
                yield node.lineno
    yield from (m for m in modules(path, tree) if m.startswith("time."))


def test_only_the_measuring_rooms_read_clocks():
    """One place decides what a time is, and a test can replace it."""
    assert not everywhere(clocks)


# Limits


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER),
    *(tokenize.INDENT, tokenize.DEDENT),
}


def lines_of_code(source):
    """The numbers of lines that hold code: no docstrings, comments, blank lines."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        has_docstring = isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS))
        if has_docstring and ast.get_docstring(node) is not None:
            first = node.body[0]
            lines -= set(range(first.lineno, first.end_lineno + 1))
    return lines


def test_lines_of_code_are_counted():
    source = '"""Say."""\n\nx = """\n\n"""\n# no\ndef f():\n    "A"\n    return (\n1)\n'
    assert lines_of_code(source) == {3, 4, 5, 7, 9, 10}


def test_what_measures_and_all_of_the_kit_are_small(capsys):
    """Nobody reads a helper that is larger than what it helps with."""
    lines = {path: len(lines_of_code(path.read_text("utf-8"))) for path in FILES}
    core = sum(n for path, n in lines.items() if room_of(path) in MEASURING)
    with capsys.disabled():
        print(f"\nkit/: {sum(lines.values())} lines, of which {core} measure; longest:")
        for path, count in sorted(lines.items(), key=lambda item: -item[1])[:5]:
            print(f"  {count:4} {name_of(path)}")
    assert core <= MOST_LINES_THAT_MEASURE
    assert sum(lines.values()) <= MOST_LINES_OF_ALL and len(lines) <= MOST_FILES
    too_long = {name_of(p): n for p, n in lines.items() if n > MOST_LINES_OF_A_FILE}
    assert not too_long


def long_functions(path, tree):
    lines = lines_of_code(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            inside = [n for n in lines if node.lineno <= n <= node.end_lineno]
            if len(inside) > MOST_LINES_OF_A_FUNCTION:
                yield f"{node.name}: {len(inside)}"


def test_functions_that_measure_are_small():
    own = [path for path in FILES if room_of(path) in MEASURING]
    assert len(own) == len(MEASURING)
    assert not everywhere(long_functions, own)


def calls_above(frame):
    """The kit's functions between a generator and this file, outermost first."""
    found = []
    while frame.f_globals["__name__"] != __name__:
        module = frame.f_globals["__name__"]
        assert module.startswith("kit.") or module == "contextlib", module
        found.insert(0, frame.f_code.co_name)
        frame = frame.f_back
    return tuple(found)


def watched(seen, steps, rests):
    """An experiment that notes who calls it; one that does not rest has a thread."""

    def train(*, variant=1):
        over = threading.Event()
        thread = threading.Thread(target=over.wait, daemon=True)
        if not rests:
            thread.start()
        try:
            for _ in itertools.count() if steps is None else range(steps):
                seen.add(calls_above(sys._getframe(1)))
                yield 1
                time.sleep(0.002)
        finally:
            over.set()

    return train


@pytest.mark.parametrize("how", ["measured", "side by side", "alone", "whole runs"])
def test_few_calls_lie_between_the_reader_and_their_generator(tidy, how):
    """Whoever reads a traceback, or the code, comes from one to the other."""
    seen = set()
    steps = 5 if how == "whole runs" else None
    train = watched(seen, steps, rests=how != "alone")
    if how == "measured":
        kit.measure(train, seconds=0.2)
    elif how == "whole runs":
        kit.compare(train, variant=[1, 2], seconds=None, repeats=2)
    else:
        made = kit.compare(train, variant=[1, 2], seconds=0.2)
        together = [life.beside for life in made.baseline.timed_lives]
        assert set(together) == {how == "side by side"}
    phases = {"whole runs": ["open", "to_the_end"]}.get(
        how, ["open", "settle", "block"]
    )
    for phase in phases:
        assert any(phase in calls for calls in seen), f"{phase} was not seen"
    deep = sorted(" → ".join(calls) for calls in seen if len(calls) > MOST_FRAMES)
    assert not deep
    if how != "measured":
        assert all(calls[0] == "compare" for calls in seen)


def test_scripts_are_small():
    """Longer ones are no longer read at one sitting."""
    for path in SCRIPTS:
        assert len(path.read_text("utf-8").splitlines()) <= 350, path.name
        for node in ast.walk(parse(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                assert node.end_lineno - node.lineno < 40, f"{path.name}: {node.name}"


def test_rooms_of_the_design_are_modules():
    for room in ROOMS:
        if is_built(room) and room != "__init__":
            assert importlib.util.find_spec(f"kit.{room}") is not None
