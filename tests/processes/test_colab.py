"""On Colab a notebook fetches the project and runs, with Colab's own PyTorch."""

import os
import subprocess
import sysconfig
import venv
from pathlib import Path

import colab
import nbformat
import on_colab
import pytest
from project import ROOT, TUTORIALS

CHAPTER = "00_start_here.ipynb"


def run(*words, cwd, **environment):
    done = subprocess.run(
        [*map(str, words)],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_first_cell(folder):
    """Run a chapter's first cell as on Colab; return Python, clone, what it said."""
    environment = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.file://{ROOT}.insteadOf",
        "GIT_CONFIG_VALUE_0": colab.find_address(),
        "PIP_NO_BUILD_ISOLATION": "0",  # which says: none
        "PIP_NO_INDEX": "1",
        "PYTHONPATH": str(make_stand_in(folder)),
    }
    python = make_environment(folder / "environment")
    content = folder / "content"
    content.mkdir()
    book = nbformat.read(TUTORIALS / CHAPTER, as_version=4)
    [cell] = [cell for cell in book.cells if cell.id == "colab"]
    session = f"import google.colab\n{cell.source}\nimport kit\nprint(kit.__file__)"
    (content / "session.ipy").write_text(session)
    said = run(python, "-m", "IPython", "session.ipy", cwd=content, **environment)
    return python, content / colab.find_address().rpartition("/")[2], said


def test_the_first_cell_fetches_the_project_and_installs_the_kit(tmp_path):
    python, clone, said = run_first_cell(tmp_path)
    assert "Installed: kit" in said and ": fine." in said
    assert str(python.parents[1]) in said.splitlines()[-1]
    assert (clone / "tutorials" / CHAPTER).is_file()


@pytest.mark.nightly
def test_a_chapter_runs_on_colab_after_its_first_cell(tmp_path):
    python, clone, _ = run_first_cell(tmp_path)
    words = ["-m", "pytest", "-q", "--nbval-lax", f"tutorials/{CHAPTER}"]
    assert "passed" in run(python, *words, cwd=clone, PYTEST_ADDOPTS="")


def make_stand_in(folder):
    """Make a package google.colab; return the folder to find it in."""
    package = folder / "stand_in" / "google" / "colab"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    return folder / "stand_in"


def make_environment(folder):
    """Make an environment that has this one's packages, but no kit."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    place = run(
        python,
        "-c",
        "import sysconfig; print(sysconfig.get_path('purelib'))",
        cwd=folder,
    )
    # What a .pth file there says is not read: the kit is not found.
    Path(place.strip(), "packages.pth").write_text(sysconfig.get_path("purelib"))
    words = [python, "-c", "import kit"]
    assert subprocess.call(words, cwd=folder, stderr=subprocess.DEVNULL)
    return python


def test_every_notebook_has_its_badge_and_its_cell():
    assert colab.main(["--check"]) == 0


def test_an_older_pytorch_stays_and_the_reader_is_told_what_to_do(monkeypatch):
    monkeypatch.setattr(on_colab, "find_version", lambda name: "2.9.1+cu128")
    said = on_colab.compare_torch(["torch>=2.11"])
    assert "older than 2.11" in said and "--upgrade torch" in said
    monkeypatch.setattr(on_colab, "find_version", lambda name: "2.15.0")
    assert "fine" in on_colab.compare_torch(["torch>=2.11"])


def test_what_colab_has_stays_in_its_version(monkeypatch):
    asked = []
    monkeypatch.setattr(on_colab, "pip", lambda *words: asked.append(words))
    on_colab.install(["moto[s3]>=5.1"])
    [(option, _, requirement)] = asked
    assert (option, requirement) == ("--constraint", "moto[s3]>=5.1")
    assert not on_colab.is_lacking("torch") and not on_colab.is_lacking("ipykernel")
    assert on_colab.is_lacking("a-package-that-nobody-has")
