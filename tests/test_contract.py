"""What readers and contributors may rely on: names, commands, packages, first pages.

That imports go downward only is a contract of import-linter in pyproject.toml.
"""

import doctest
import importlib
import inspect
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from project import ROOT, own_files

import kit
from kit.__main__ import main

KIT = ROOT / "kit"
FILES = sorted(KIT.rglob("*.py"))

#: The fixed public names: where each is built, and its keywords.
NAMES = {
    "measure": "measuring seconds=2.0 repeats=5 on=None",
    "compare": "measuring of='items_per_second' seconds=4.0 repeats=6 within=None "
    "on=None unit=None",
    "explore": "panel of='items_per_second' seconds=2.0 repeats=6 within=None "
    "on=None predict=None title=None unit=None",
    "diagnose": "diagnosis seconds=60.0 try_compile=False",
    "timeline": "diagnosis steps=3 on=None title=None",
    "guess": "teaching unit='×'",
    "claim": "teaching expect='faster' at_least=None otherwise=… open=False",
    "check": "teaching",
    "this_machine": "machine",
    "device": "machine",
    "save": "saving",
    "load": "saving",
    "start_ranks": "ranks timeout=25.0",
    "data": "data",
    "tuning": "tuning",
    "figures": "figures",
    "quick": "bool",
    "DataError": "errors",
    "ExperimentError": "errors",
    "RankError": "errors",
    "RecordingError": "errors",
}
HEAVY = {"torch", "matplotlib", "pandas", "ipywidgets", "torchvision"}
#: What `import kit` alone need not load either, and how many modules it may load.
SLOW = {"numpy", "scipy", "psutil", "IPython", "ipyparallel", "cloudpickle", "asyncio"}
SLOW |= {"multiprocessing", "subprocess", "inspect", "ast", "json", "doctest", "html"}
MOST_MODULES = 50


def read(name):
    return (ROOT / name).read_text("utf-8")


LOOK = """
import sys
before = {*sys.modules}
import kit
print(*{*sys.modules} - before)
import os, random, signal, threading, warnings
import numpy
def look():
    return (dict(os.environ), os.getcwd(), random.getstate(), list(warnings.filters),
            [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)],
            threading.active_count(), sys.getrecursionlimit(), list(sys.path),
            sys.excepthook, sys.displayhook, sys.stdout, sys.stderr)
before = look()
for name in kit.__all__:
    getattr(kit, name)
print(look() == before, *sys.modules)
"""


def test_importing_the_kit_is_fast_loads_nothing_heavy_and_changes_nothing():
    command = [sys.executable, "-c", LOOK]
    said = subprocess.check_output(command, cwd=ROOT, stderr=subprocess.STDOUT)
    alone, (same, *offered) = map(str.split, said.decode().splitlines())
    assert "kit" in alone and len(alone) <= MOST_MODULES
    assert not {name.partition(".")[0] for name in alone} & (SLOW | HEAVY)
    assert same == "True" and "kit.panel" in offered
    assert not {name.partition(".")[0] for name in offered} & HEAVY


def describe(name):
    """Return where a public name is built, and its keywords with their defaults."""
    value = getattr(kit, name)
    if isinstance(value, bool):
        return "bool"
    shown = [(getattr(value, "__module__", None) or value.__name__).split(".")[1]]
    is_function = callable(value) and not inspect.isclass(value)
    signature = inspect.signature(value) if is_function else inspect.Signature()
    for key, given in signature.parameters.items():
        if given.kind is given.KEYWORD_ONLY:
            is_long = key == "otherwise"
            shown.append(f"{key}=…" if is_long else f"{key}={given.default!r}")
    return " ".join(shown)


def test_the_kit_offers_what_was_promised_and_nothing_else():
    assert {name: describe(name) for name in kit.__all__} == NAMES
    assert list(kit.__all__) == sorted(NAMES)
    assert len(re.findall(r"^(?:>>>|\.\.\.) ", kit.__doc__, re.M)) <= 6
    assert set(NAMES) <= set(dir(kit))
    with pytest.raises(ImportError, match="comparr"):
        exec("from kit import comparr")


def test_only_what_the_kit_offers_is_offered_by_tab():
    assert set(dir(kit)) == set(kit.__all__)


#: Their examples start ranks, draw much, or load for long.
LONG = ("kit.data", "kit.ranks.ranks", "kit.tuning")


def modules_with_examples():
    for path in (path for path in FILES if ">>>" in path.read_text("utf-8")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        yield pytest.param(name, marks=[pytest.mark.nightly] * (name in LONG))


@pytest.mark.parametrize("name", list(modules_with_examples()))
def test_examples_in_docstrings_are_true(name, quick, monkeypatch):
    if name == "kit.teaching":  # which gives no verdicts in a short run
        monkeypatch.delenv("KIT_QUICK")
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert result.attempted and not result.failed


README = read("README.md")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)


@pytest.fixture
def folder(tmp_path, quick):
    """A reader's own folder, with the script of the front page in it."""
    for name in ("first.py", "train.py"):
        (tmp_path / name).write_text(BLOCKS[0])
    return tmp_path


def test_the_script_of_the_front_page_works(folder, capsys):
    runpy.run_path("first.py", run_name="__main__")
    said = capsys.readouterr().out
    for words in ("train · batch_size=64", "items per second", "batch_size=256"):
        assert words in said


def test_the_diagnosis_of_the_front_page_works(folder):
    _, diagnosing = BLOCKS  # there are no others, which nobody would try
    found = runpy.run_path("first.py")
    found["faster"] = found["train"]
    exec(compile(diagnosing, "README.md", "exec"), found)
    assert found["diagnosis"].call == "train(batch_size=64)"


def test_the_shell_command_of_the_front_page_works(folder, capsys):
    words = shlex.split(re.search(r"-m kit (diagnose first[^`]+)`", README)[1])
    assert main(words) == 0
    assert "train(batch_size=64)" in capsys.readouterr().out
    page = Path(words[-1]).read_text("utf-8")
    assert "train(batch_size=64)" in page and kit.this_machine().name in page


PROJECT = tomllib.loads(read("pyproject.toml"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def requirements(lines):
    return {found.name: found for found in map(Requirement, lines)}


def test_one_list_of_versions_holds_for_readers_contributors_and_binder():
    said = read("constraints.txt")
    assert "uv pip compile --universal" in "\n".join(said.splitlines()[:2])
    assert "://" not in said, "no registry's address"
    pins = {}
    for pin in map(Requirement, re.findall(r"^[a-z][^#\n]*", said, re.M)):
        pins.setdefault(pin.name, []).append(pin.specifier)
    for found in map(Requirement, sum(EXTRAS.values(), PROJECT["dependencies"])):
        for specifier in pins[found.name]:
            (exact,) = specifier
            assert exact.operator == "==", f"{found.name} may be another one tomorrow"
            assert found.specifier.contains(exact.version), f"{found}: {exact}"
    lines = read("binder/requirements.txt").splitlines()
    assert "--constraint ../constraints.txt" in lines
    assert "--editable .[hub,rl,store]" in lines
    version = read("binder/runtime.txt").strip().removeprefix("python-")
    assert SpecifierSet(PROJECT["requires-python"]).contains(version)


def test_the_readme_names_the_repository_that_the_project_names():
    address = PROJECT["urls"]["Repository"]
    assert f"git clone {address} &&" in README
    name = address.removeprefix("https://github.com/")
    start = f"https://mybinder.org/v2/gh/{name}/HEAD?urlpath=lab/tree/"
    assert start + "tutorials/00_start_here.ipynb" in README
    diagnosed = "karpathy/minGPT"
    named = {*re.findall(r"github\.com/([\w-]+/[\w-]+)", README)}
    assert named == {name, diagnosed}


def test_a_reader_installs_no_tools_of_contributors():
    _, _, rule = read("Makefile").partition("$(READY_FOR_LAB): pyproject.toml")
    assert "--editable '.[rl,store]'" in rule.partition("\n\n")[0]
    for name in ("nbval", "pytest", "playwright"):
        lines = [*PROJECT["dependencies"], *EXTRAS["rl"], *EXTRAS["store"]]
        assert name not in requirements(lines)
    heavy = [
        line for lines in EXTRAS.values() for line in lines if "moto[server]" in line
    ]
    assert not heavy, "it brings a hundred packages, and once none that fit together"


def test_on_binder_tensorboard_is_shown_through_the_hub():
    command = [ROOT / "binder" / "start", "printenv", "TENSORBOARD_PROXY_URL"]
    more = {"JUPYTERHUB_SERVICE_PREFIX": "/user/ada/"}
    said = subprocess.check_output(command, env=os.environ | more, text=True)
    assert said == "/user/ada/proxy/%PORT%/\n"


def test_make_knows_every_command_that_a_document_names():
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), flags=re.M))
    for path in (path for path in own_files() if path.suffix == ".md"):
        text = path.read_text("utf-8")
        named = re.findall(r"(?:`|^(?:\$ )?)make ([a-z-]+)", text, re.M)
        assert set(named) <= targets, path


def test_no_file_holds_a_path_of_one_machine():
    folders = "|".join(["work", "root", "home", "Users", "tmp"])  # unlike this line
    stray = re.compile(rf"(?<![\w.}}~-])/(?:{folders})/[\w.]".encode())
    for path in own_files():
        content = path.read_bytes()
        assert b"\0" in content or not stray.search(content), path
