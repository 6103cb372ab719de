"""Install the kit on Colab, with what Colab lacks: a notebook's first cell runs it.

    python scripts/on_colab.py

Colab's own packages stay as they are, PyTorch above all: a package is installed only
where it is missing, and never in another version.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: What Colab runs notebooks with; another version would be found by no kernel there.
COLABS_OWN = ("jupyterlab", "ipykernel", "ipywidgets")
#: Of the extras, those that chapters need.
EXTRAS = ("rl", "store")


def main() -> int:
    """Install, say what was installed; return the exit status."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needed = [*project["dependencies"]]
    for extra in EXTRAS:
        needed += project["optional-dependencies"][extra]
    lacking = [each for each in needed if is_lacking(read_name(each))]
    if "torch" in map(read_name, lacking):
        print("There is no PyTorch here: on_colab.py is for Colab, which has one.")
        return 1
    if lacking:
        install(lacking)
    pip("--no-deps", str(ROOT))
    importlib.invalidate_caches()  # this process is to find it
    print("Installed:", ", ".join(["kit", *map(read_name, lacking)]))
    print(compare_torch(needed))
    return 0


def read_name(requirement: str) -> str:
    """Return the name of the package in a requirement."""
    return re.split(r"[^\w.-]", requirement)[0]


def is_lacking(name: str) -> bool:
    """Return whether a package is missing that a notebook on Colab needs."""
    return name not in COLABS_OWN and find_version(name) is None


def find_version(name: str) -> str | None:
    """Return the version of a package that is installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def install(requirements: Sequence[str]) -> None:
    """Install packages; what is there already stays in its version."""
    there = {each.name: each.version for each in metadata.distributions()}
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder, "pins.txt")
        lines = [f"{name}=={version}\n" for name, version in there.items()]
        pins.write_text("".join(lines))
        pip("--constraint", str(pins), *requirements)


def pip(*words: str) -> None:
    """Run `pip install`, without its log."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", *words]
    subprocess.run(command, check=True)


def compare_torch(requirements: Sequence[str]) -> str:
    """Say whether PyTorch is as new as the chapters want, and what to do if not."""
    [floor] = [each for each in requirements if read_name(each) == "torch"]
    found, wanted = find_version("torch") or "", floor.partition(">=")[2]
    if read_numbers(found) >= read_numbers(wanted):
        return f"PyTorch {found}: fine."
    return (
        f"PyTorch {found} is older than {wanted}, so some cells may fail. Run "
        "`!pip install --upgrade torch torchvision` in a cell of its own, choose "
        "Runtime > Restart session, and begin again."
    )


def read_numbers(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version.

    >>> read_numbers("2.11.0+cu128")
    (2, 11)
    """
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


if __name__ == "__main__":
    sys.exit(main())
