"""How a panel tells what went wrong in the latest run."""

from __future__ import annotations

import traceback

from kit.experiment import ExperimentError


def describe_error(error: Exception | None) -> str:
    """Return what went wrong, as a reader is told; nothing without an error."""
    if error is None or isinstance(error, ExperimentError):
        return str(error or "")
    return f"{type(error).__name__}: {error}"


def describe_traceback(error: Exception | None) -> str:
    """Return where it went wrong, in the reader's own code."""
    shown = error and (error.__cause__ or error)
    return "".join(traceback.format_exception(shown, chain=False)) if shown else ""
