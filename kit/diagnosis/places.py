"""What a diagnosis does in each process where an experiment lives: here, on ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from kit.progress import Progress
from kit.variant import Variant

T = TypeVar("T")


def ask(
    variant: Variant, progress: Progress, function: Callable[..., T], *arguments: object
) -> list[T]:
    """Call a function in each process of a variant; return what each returned."""
    if hasattr(variant, "ask"):
        answers: list[T] = variant.ask(progress, function, *arguments)
        return answers
    return [function(*arguments)]


@contextlib.contextmanager
def during(
    variant: Variant,
    progress: Progress,
    make: Callable[[], AbstractContextManager[T]],
    read: Callable[[T], Any] = repr,
) -> Generator[list[Any], None, None]:
    """Enter a context in each process of a variant.

    Afterwards the list holds what `read` makes, in each, of what the context gave.
    """
    found: list[Any] = []
    if hasattr(variant, "during"):
        with variant.during(progress, make, read) as found:
            yield found
        return
    with make() as value:
        yield found
    found.append(read(value))
