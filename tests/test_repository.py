"""The repository hangs together: packaging, Binder, scripts, links, no stray paths."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from project import own_files

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
SCRIPTS = [".ci/run", "binder/postBuild", "binder/start"]
SCRIPTS += ["tutorials/scripts/record_gpu.sh"]
FENCED = re.compile(r"^```.*?^```", flags=re.M | re.S)

# What the project may depend on, and nothing else.
ALLOWED = {
    "dependencies": """
        torch torchvision jupyterlab ipykernel ipywidgets matplotlib tensorboard
        numpy scipy pandas psutil ipyparallel cloudpickle""",
    "gpu": "nvidia-ml-py",
    "store": "s3fs pyarrow moto",
    "alluxio": "alluxiofs",
    "hub": "jupyter-server-proxy",
    "test": "pytest nbclient pytest-timeout playwright ruff codespell pyperf",
}


def read(name):
    return (ROOT / name).read_text("utf-8")


def requirements(lines):
    return {found.name: found for found in map(Requirement, lines)}


def binder_pins():
    lines = (line.partition("#")[0].strip() for line in read_lines("requirements.txt"))
    return requirements(line for line in lines if line and not line.startswith("-"))


def read_lines(name):
    return read(f"binder/{name}").splitlines()


def documents():
    return [path for path in own_files() if path.suffix == ".md"]


def prose(path):
    """A document's lines outside fenced code."""
    return FENCED.sub("", path.read_text("utf-8"))


# Packaging


def test_dependencies_are_those_of_the_design():
    declared = {"dependencies": PROJECT["dependencies"]}
    declared |= PROJECT["optional-dependencies"]
    names = {group: set(requirements(lines)) for group, lines in declared.items()}
    assert names == {group: set(text.split()) for group, text in ALLOWED.items()}


def test_what_stores_need_has_floors():
    """Without them pip went back to an s3fs of 2020."""
    for name, found in requirements(PROJECT["optional-dependencies"]["store"]).items():
        assert {part.operator for part in found.specifier} >= {">="}, f"{name}: {found}"


def test_binder_pins_every_dependency_within_its_bounds():
    extra = PROJECT["optional-dependencies"]["hub"]
    needed, pins = requirements([*PROJECT["dependencies"], *extra]), binder_pins()
    assert set(pins) == set(needed)
    for name, pin in pins.items():
        (exact,) = pin.specifier
        assert exact.operator == "==", f"{pin} is not pinned to one version"
        assert needed[name].specifier.contains(exact.version), f"{pin}: {needed[name]}"


def test_binder_takes_cpu_wheels():
    index = "--extra-index-url https://download.pytorch.org/whl/cpu"
    assert index in read_lines("requirements.txt")


def test_binder_python_is_one_the_project_supports():
    version = re.fullmatch(r"python-(3\.\d+)\n", read("binder/runtime.txt"))[1]
    assert Version(version) in SpecifierSet(PROJECT["requires-python"])


def test_on_binder_tensorboard_is_shown_through_the_hub():
    done = subprocess.run(
        [ROOT / "binder" / "start", "printenv", "TENSORBOARD_PROXY_URL"],
        env={**os.environ, "JUPYTERHUB_SERVICE_PREFIX": "/user/ada/"},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "/user/ada/proxy/%PORT%/\n", done.stderr


# Scripts


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_is_strict_executable_bash(name):
    assert os.access(ROOT / name, os.X_OK)
    lines = read(name).splitlines()
    code = [line for line in lines if line and not line.startswith("#")]
    assert lines[0] == "#!/usr/bin/env bash"
    assert code[0] == "set -euo pipefail"
    command = ["bash", "-n", ROOT / name]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_make_has_every_target_that_documents_name():
    targets = set(re.findall(r"^([a-z]+):", read("Makefile"), flags=re.M))
    named = {"lab", "test", "bench"} if (ROOT / "README.md").exists() else set()
    for path in documents():
        text = path.read_text("utf-8")
        named |= set(re.findall(r"`make ([a-z]+)\b", text))
        for block in FENCED.findall(text):
            named |= set(re.findall(r"^(?:\$ )?make ([a-z]+)\b", block, flags=re.M))
    assert named <= targets


# Documents


def anchors(path):
    """The anchors that GitHub gives a document's headings."""
    headings = re.findall(r"^#+ +(.+?) *$", prose(path), flags=re.M)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {text.replace(" ", "-") for text in words}


def broken_links(path):
    for target in re.findall(r"\]\(<?([^)\s>]+)", prose(path)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        goal = path.parent / name if name else path
        if not goal.exists():
            yield f"{target}: no such file"
        elif anchor and goal.suffix == ".md" and anchor not in anchors(goal):
            yield f"{target}: no such heading"


def test_relative_links_in_documents_resolve():
    broken = {path.name: list(broken_links(path)) for path in documents()}
    assert not {name: links for name, links in broken.items() if links}


def test_broken_links_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A b\n[1](#a-b) [2](page.md#c) [3](none.md) [4](https://x.org)\n")
    assert [text.split(":")[0] for text in broken_links(page)] == [
        "page.md#c",
        "none.md",
    ]


# Paths of one machine


# Written so that this file does not match itself.
FOLDERS = "|".join(["work", "root", "home", "Users", "tmp"])
STRAY = re.compile(rf"(?<![\w.}}~-])/(?:{FOLDERS})/[\w.]")


def stray_paths(path):
    try:
        lines = path.read_text("utf-8").splitlines()
    except UnicodeDecodeError:
        return []  # not text
    return [number for number, line in enumerate(lines, 1) if STRAY.search(line)]


def test_no_file_holds_paths_of_one_machine():
    found = {path.relative_to(ROOT): stray_paths(path) for path in own_files()}
    assert not {str(name): numbers for name, numbers in found.items() if numbers}


def test_stray_paths_are_told_from_links(tmp_path):
    file, slash = tmp_path / "file", "/"
    stray = [f"{slash}home/ada", f"see {slash}root/.cache", f"//{slash}Users/ada"]
    plain = ["https://example.org/home/page", "tutorials/work/x", "at home / work"]
    file.write_text("\n".join(stray + plain))
    assert stray_paths(file) == [1, 2, 3]
