"""The quick run of each chapter under nbval: how long it takes, and how much memory."""

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted((ROOT / "tutorials").glob("[0-9][0-9]_*.ipynb"))
#: What Binder gives, and what twenty chapters in two halves leave room for.
MOST_SECONDS, MOST_BYTES = 60.0, 2e9
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
def test_a_quick_run_is_quick_and_small(chapter):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    begun, most = time.monotonic(), 0
    running = psutil.Popen(
        [*command, "--nbval-lax", chapter], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    while running.poll() is None:
        most = max(most, count_bytes(running))
        time.sleep(SECONDS_BETWEEN_LOOKS)
    seconds = time.monotonic() - begun
    print(f"\n{chapter.stem}: {seconds:.1f} s, {most / 1e9:.2f} GB")
    assert running.returncode == 0
    assert seconds <= MOST_SECONDS
    assert most <= MOST_BYTES
