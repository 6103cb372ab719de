"""`make test` checks the style of what is the project's, not of what a reader wrote."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MESSY = "import os,sys\nx = ( 1 )\n"
TYPO = f"A sentence with {'t'}{'e'}h typo.\n"  # this file itself has none
TIDY = '"""A module."""\n'


@pytest.fixture
def checkout(tmp_path):
    """A small project that is checked as this one is."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    for folder in ("kit", "tests", "tutorials", "binder"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tidy.py").write_text(TIDY)
    (tmp_path / "README.md").write_text("# A project\n")
    return tmp_path


def git(folder, *arguments):
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)


def check_style(folder):
    """Return whether the check is green, and what it said."""
    command = ["make", "test-style", f"VENV={sys.prefix}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("has_git", [True, False], ids=["git", "no git"])
def test_what_a_reader_writes_into_the_checkout_is_not_judged(checkout, has_git):
    if has_git:
        git(checkout, "init", "--quiet")
        git(checkout, "add", "--all")
        (checkout / "tutorials" / "mine.py").write_text(MESSY)
    (checkout / "first.py").write_text(MESSY)
    (checkout / "notes.txt").write_text(TYPO)
    green, said = check_style(checkout)
    assert green, said


@pytest.mark.parametrize("has_git", [True, False], ids=["git", "no git"])
@pytest.mark.parametrize(
    ("name", "text"),
    [("kit/messy.py", MESSY), ("tutorials/messy.py", MESSY), ("README.md", TYPO)],
)
def test_what_is_the_projects_is_judged(checkout, has_git, name, text):
    (checkout / name).write_text(text)
    if has_git:
        git(checkout, "init", "--quiet")
        git(checkout, "add", "--all")
    green, said = check_style(checkout)
    assert not green
    assert Path(name).name in said


def test_a_file_that_was_removed_is_no_fault(checkout):
    git(checkout, "init", "--quiet")
    (checkout / "gone.py").write_text(TIDY)
    git(checkout, "add", "--all")
    (checkout / "gone.py").unlink()
    green, said = check_style(checkout)
    assert green, said
