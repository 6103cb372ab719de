"""What `python -m kit diagnose` writes: a page, whole or not at all, and JSON alone."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

from kit.diagnosis.result import make_plain
from kit.experiment import ExperimentError
from kit.recording import replace_text


def check_page(page: str) -> Path:
    """Return the full path of a page that can be written; measuring comes later.

    Raises ExperimentError where its folder does not exist or may not be written to.
    """
    path = Path(page).resolve()
    if path.is_dir():
        raise ExperimentError(
            f"--html {page}: this is a folder.\n"
            f"Name a file in it: --html {Path(page) / 'diagnosis.html'}"
        )
    if not path.parent.is_dir():
        raise ExperimentError(
            f"--html {page}: there is no folder {path.parent}.\n"
            "Make it first, or name a file in one that exists."
        )
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            return path
    except OSError as error:
        raise _make_error(path, error) from None


def write_page(html: str, path: Path) -> None:
    """Write a page, whole or not at all.

    Raises ExperimentError where it cannot be written.
    """
    try:
        replace_text(path, html)
    except OSError as error:
        raise _make_error(path, error) from None


def _make_error(path: Path, error: OSError) -> ExperimentError:
    return ExperimentError(
        f"--html: {path} cannot be written ({error.strerror or error}).\n"
        "Name a file in a folder that you may write to, with room left."
    )


def format_json(value: Any) -> str:
    """Return JSON as every parser reads it; what is no finite number is null.

    >>> print(format_json({"saving": float("nan")}))
    {
      "saving": null
    }
    """
    return json.dumps(make_plain(value), indent=2, allow_nan=False)


@contextlib.contextmanager
def divert_stdout() -> Generator[None, None, None]:
    """Send to stderr what a script prints, its child processes and native code too."""
    stdout = sys.stdout
    stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        stdout.flush()  # what a logger that holds on to it has not written yet
        os.dup2(kept, 1)
        os.close(kept)
