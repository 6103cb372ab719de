"""What the kit raises: each error says what is wrong, and what to do next."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any


class ExperimentError(Exception):
    """An experiment, or the way it was asked for, cannot be measured."""


class RankError(ExperimentError):
    """A call failed on one or more ranks, or the ranks did not agree.

    `ranks` are those on which it failed first, none where they only waited for each
    other; `traceback` is that of the first one, where it raised an error.
    """

    def __init__(self, message: str, ranks: Any = (), traceback: str = "") -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)
        self.traceback = traceback


class RecordingError(Exception):
    """A recording cannot be read or written; names the file."""


class DataError(RuntimeError):
    """A data set cannot be made or read; names the folder."""


@contextlib.contextmanager
def naming(caller: str) -> Generator[None, None, None]:
    """Let the error of a wrong request say which call it was.

    >>> with naming("measure()"):
    ...     raise ExperimentError("seconds=-1 is not a time to measure for.")
    Traceback (most recent call last):
    kit.errors.ExperimentError: measure(): seconds=-1 is not a time to measure for.
    """
    try:
        yield
    except ExperimentError as error:
        error.args = (f"{caller}: {error}",)
        raise
