"""What the kit raises: each error says what is wrong, and what to do next."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any


class ExperimentError(Exception):
    """An experiment, or the way it was asked for, cannot be measured."""


class RankError(ExperimentError):
    """A call failed on one or more ranks, or the ranks did not agree.

    `ranks` are the culprits, none where the ranks did not agree; `traceback` is that of
    the culprit that was heard of first, where it raised an error. `answers` is what
    other ranks had returned, `places` says in lines where they were, and `usable` what
    is left of the ranks.
    """

    def __init__(
        self,
        message: str,
        ranks: Any = (),
        traceback: str = "",
        *,
        places: Any = (),
        usable: str = "",
    ) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)
        self.traceback = traceback
        self.answers: dict[int, Any] = {}
        self.places = tuple(places)
        self.usable = usable


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
