"""The quick test of each chapter: how long it takes, and how much memory at most.

The time is what pytest says of the test, with the kernel's own start and end.
"""

import contextlib
import math
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted((ROOT / "tutorials").glob("[0-9][0-9]_*.ipynb"))
TEST = "test_a_chapter_runs_and_shows_what_its_code_makes"
MOST_SECONDS, MOST_BYTES = 25.0, 2.5e9
#: Looking costs time: what shares memory is found by reading all of its pages' tables.
SECONDS_BETWEEN_LOOKS = 1.0


def count_bytes(process):
    """Return the memory of a process and of all that it has started."""
    total = 0
    for each in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            total += each.memory_full_info().pss
    return total


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_a_quick_test_is_quick_and_small(chapter, tmp_path):
    report, most = tmp_path / "cells.xml", 0
    test = f"tests/test_chapters.py::{TEST}[{chapter.stem}]"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    command += [f"--junitxml={report}", "-o", "junit_duration_report=total"]
    running = psutil.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    while running.poll() is None:
        most = max(most, count_bytes(running))
        time.sleep(SECONDS_BETWEEN_LOOKS)
    cells = ElementTree.parse(report).iter("testcase")
    seconds = math.fsum(float(cell.get("time")) for cell in cells)
    print(f"\n{chapter.stem}: {seconds:.1f} s, {most / 1e9:.2f} GB")
    assert running.returncode == 0
    assert seconds <= MOST_SECONDS
    assert most <= MOST_BYTES
