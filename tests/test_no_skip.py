"""In `.ci/run` nothing is skipped: what cannot run is a failure that says why."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import strict

ROOT = Path(__file__).resolve().parents[1]
MARKED = """
import pytest

@pytest.mark.skipif(True, reason="there is no compiler")
def test_marked():
    pass

def test_inside():
    pytest.skip("there is no Chromium")

@pytest.mark.xfail(reason="known")
def test_known():
    assert False

def test_fine():
    pass
"""
MODULE = 'import pytest\npytest.importorskip("a_package_that_is_not_there")\n'


@pytest.fixture
def run(tmp_path):
    """Run pytest with the suite's hooks; return its exit status and its words."""
    shutil.copy(strict.__file__, tmp_path / "conftest.py")
    (tmp_path / "test_marked.py").write_text(MARKED)
    (tmp_path / "test_module.py").write_text(MODULE)

    def run_pytest(asked):
        more = {"KIT_STRICT": asked, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, "--continue-on-collection-errors"],
            cwd=tmp_path,
            env=os.environ | more,
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout

    return run_pytest


def test_a_skip_is_a_failure_that_names_its_reason(run):
    status, said = run("1")
    assert status == 1
    for reason in ("no compiler", "no Chromium", "a_package_that_is_not_there"):
        assert reason in said
    assert "1 failed, 1 passed, 1 xfailed, 2 errors" in said, said


def test_elsewhere_a_skip_is_a_skip(run):
    status, said = run("")
    assert status == 0
    assert "1 passed, 3 skipped, 1 xfailed" in said, said


def test_these_hooks_are_those_of_the_suite(request):
    plugins = request.config.pluginmanager.get_plugins()
    (suite,) = [
        plugin
        for plugin in plugins
        if getattr(plugin, "__file__", None) == str(ROOT / "tests" / "conftest.py")
    ]
    assert suite.pytest_runtest_makereport is strict.pytest_runtest_makereport
    assert suite.pytest_make_collect_report is strict.pytest_make_collect_report


# .ci/run


def test_the_clean_run_is_strict():
    lines = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    assert lines.index("export KIT_STRICT=1") < next(
        number for number, line in enumerate(lines) if line.startswith("make test")
    )


def test_the_clean_run_demands_a_browser(tmp_path):
    """Where there is none, and nothing can install it, it fails and says what to do."""
    for name in ("bash", "dirname", "mktemp", "rm", "git", "make", "python3"):
        found = shutil.which(name)
        assert found, name
        (tmp_path / name).symlink_to(found)
    done = subprocess.run(
        [shutil.which("bash"), ROOT / ".ci" / "run"],
        env=os.environ | {"PATH": str(tmp_path), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "Missing: chromium" in done.stderr
    assert "install them, then try again" in done.stderr
    assert "make test" not in done.stdout
