"""The checks themselves: what they refuse, and what they leave to the reader."""

import os
import shutil
import subprocess
import sys

import pytest
import strict
from project import ROOT

CONFTEST = """
import strict
from strict import *
strict.LIMITS = {"a test": 0.05, "a property": 0.015}
"""
TESTS = """
import os, time
import pytest
from hypothesis import given, settings, strategies

def work():
    end = sum(os.times()[:4]) + 0.4
    while sum(os.times()[:4]) < end:
        pass

def test_fine(): time.sleep(0.1)  # whoever waits does not work
def test_slow(): work()
def test_slow_child():  # whose end is not read here
    if not os.fork(): work() or os._exit(0)
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
def test_which_reads_how_it_ended(): os.wait()
@settings(max_examples=1, deadline=None)
@given(strategies.none())
def test_slow_property(nothing): work()
@pytest.mark.nightly
def test_slow_at_night(): work()
@pytest.mark.skipif(True, reason="there is no compiler")
def test_marked(): pass
def test_inside(): pytest.skip("there is no Chromium")
@pytest.mark.xfail(reason="known")
def test_known(): assert False
"""
MODULE = 'import pytest\npytest.importorskip("a_package_that_is_not_there")\n'


def run(command, folder, **more):
    said = {"capture_output": True, "text": True, "env": os.environ | more}
    done = subprocess.run(command, cwd=folder, **said)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("is_strict", [True, False])
def test_what_is_skipped_or_takes_too_long_is_red(tmp_path, is_strict):
    """A skip only where KIT_STRICT=1 says so, as `.ci/run` does."""
    files = {"conftest": CONFTEST, "test_some": TESTS, "test_module": MODULE}
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "--continue-on-collection-errors"]
    command += ["-p", "no:cacheprovider", "-W", "ignore"]
    more = {"KIT_STRICT": str(int(is_strict)), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    more["PYTHONPATH"] = os.path.dirname(strict.__file__)
    status, said = run(command, tmp_path, **more, PYTEST_ADDOPTS="")
    assert status == 1
    assert "a test may take 0.05 s" in said and "a property may take 0.05 s" in said
    counts = ["3 failed, 3 passed, 3 skipped", "4 failed, 3 passed, 1 xfailed, 2 error"]
    assert counts[is_strict] in said and "test_which_reads" not in said, said
    reasons = ("no compiler", "no Chromium", "a_package_that_is_not_there")
    assert all(reason in said for reason in reasons) == is_strict


def test_the_clean_run_demands_a_browser_and_skips_nothing(tmp_path):
    assert "export KIT_STRICT=1\n" in (ROOT / ".ci" / "run").read_text("utf-8")
    for name in ("bash", "dirname", "mktemp", "rm", "git", "make", "python3"):
        (tmp_path / name).symlink_to(shutil.which(name))
    command = [shutil.which("bash"), ROOT / ".ci" / "run"]
    status, said = run(command, ROOT, PATH=str(tmp_path), PYTHON=sys.executable)
    assert status == 1 and "make test" not in said
    assert "Missing: chromium" in said and "install them" in said
