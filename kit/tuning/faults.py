"""What goes wrong with a loader, in words that name it and say what to do."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Iterator
from typing import Any

from kit import clock
from kit.experiment import ExperimentError
from kit.figures import format_seconds, format_value
from kit.hints import describe_error, find_hint, split_error
from kit.state import seed_everything
from kit.tuning.checks import CALLER, length_of
from kit.tuning.loop import Loop, index_batches
from kit.tuning.probes import read_sample

#: So long is looked for the sample behind an error of a worker.
_SEARCH_SECONDS = 3.0
#: Where data sets keep the files of their samples.
_LISTS = ("samples", "imgs", "files", "paths")


def explain(error: BaseException, loop: Loop) -> ExperimentError:
    """Make the error that says what was wrong with a loader, and where.

    It is raised from the original one. A sample that cannot be read is looked for in
    this process, for some seconds.
    """
    said = describe_error(error)
    if isinstance(error, _SampleError):
        return _explain_sample(error)
    if "DataLoader timed out" in said:
        return _explain_hang(loop)
    if found := re.search(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) (.*)", said):
        hint = find_hint(error) or "num_workers=0 shows its error here."
        what = found[2].partition(". ")[0].rstrip(". ")
        return _from(
            error,
            f"{CALLER}: worker process {found[1]} of {loop.call} {what}.\n{hint}",
        )
    if loop.failed_in_step:
        return _from(
            error,
            f"{CALLER}: step(batch) raised {said}\nThe traceback shows the "
            "line. Try it on one batch of the loader: step(next(iter(loader))).",
        )
    if (culprit := _find_culprit(error, loop)) is not None:
        return _explain_sample(culprit)
    hint = find_hint(error) or (
        f"Call {loop.call} yourself and take its batches: the traceback shows the line."
    )
    return _from(error, f"{CALLER}: {loop.call} raised {said}\n{hint}")


def _from(cause: BaseException, message: str) -> ExperimentError:
    made = ExperimentError(message)
    made.__cause__ = cause
    return made


def _explain_hang(loop: Loop) -> ExperimentError:
    batch = len(loop.epochs[-1].arrivals)
    indices = _indices_of(loop, batch) if len(loop.epochs) == 1 else None
    which = f" (samples {format_value(indices, 30)})" if indices else ""
    return ExperimentError(
        f"{CALLER}: no batch came within {format_seconds(loop.timeout)} from "
        f"{loop.call}; worker process {loop.workers} hangs.\n"
        f"Batch {batch}{which} is the one that was waited for. A lock or a file that "
        "the workers inherit, or a network without a time limit, can be why.\n"
        "Read these samples with num_workers=0 and interrupt: the traceback shows "
        "where. A slow loader says timeout=… itself."
    )


class _SampleError(Exception):
    """A sample could not be read: its data set, its index; the cause is the error."""

    def __init__(self, dataset: Any, index: Any, original: BaseException) -> None:
        super().__init__(index)
        self.dataset, self.index, self.original = dataset, index, original


@contextlib.contextmanager
def named(dataset: Any, index: Any) -> Generator[None, None, None]:
    """Note which sample it was that could not be read."""
    try:
        yield
    except Exception as error:
        raise _SampleError(dataset, index, error) from error


def _explain_sample(culprit: _SampleError) -> ExperimentError:
    index, original = culprit.index, culprit.original
    path = find_path(culprit.dataset, index)
    hint = find_hint(original)
    return _from(
        original,
        f"{CALLER}: sample {index} of the data set cannot be read: "
        f"{describe_error(original)}\n"
        + (f"It is {path}.\n" if path else "")
        + f"dataset[{index}] shows the error without a loader. Mend this sample, or "
        "leave it out." + (f"\n{hint}" if hint else ""),
    )


def _find_culprit(error: BaseException, loop: Loop) -> _SampleError | None:
    """Look for the sample that raises an error of this kind."""
    dataset, kind = loop.dataset, split_error(error)[0]
    if not hasattr(dataset, "__getitem__"):
        return None
    until = clock.CLOCK.wall() + _SEARCH_SECONDS
    for index in _suspects(loop):
        try:
            with named(dataset, index):
                read_sample(dataset, index)
        except _SampleError as found:
            if type(found.original).__name__ == kind:
                return found
        if clock.CLOCK.wall() > until:
            break
    return None


def _suspects(loop: Loop) -> Iterator[Any]:
    """Yield indices: those of the batch that failed first, then all of them."""
    if len(loop.epochs) == 1:
        yield from _indices_of(loop, len(loop.epochs[0].arrivals)) or ()
    yield from range(length_of(loop.dataset) or 0)


def _indices_of(loop: Loop, batch: int) -> list[Any] | None:
    """Return the indices of a batch of the first epoch, by drawing them once more."""
    import torch

    try:
        seed_everything(0)
        settings = {**loop.settings, "num_workers": 0}
        settings |= {"prefetch_factor": None} if "prefetch_factor" in settings else {}
        settings |= {k: False for k in ("persistent_workers",) if k in settings}
        loader = loop.make_loader(**settings)
        # A loader draws the seed of its workers before the first index.
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        for number, indices in enumerate(index_batches(loader)):
            if number == batch:
                return list(indices)
    except Exception:  # it is about another error: this one would hide it
        return None
    return None


def find_path(dataset: Any, index: Any) -> str | None:
    """Return the file of a sample, where its data set knows one.

    It does in `samples`, `imgs`, `files` or `paths`, as those of torchvision do.
    """
    while not any(hasattr(dataset, name) for name in _LISTS):
        if hasattr(dataset, "indices"):  # a Subset
            index = dataset.indices[index]
        dataset = getattr(dataset, "dataset", None)
        if dataset is None:
            return None
    for name in _LISTS:
        try:
            entry = getattr(dataset, name)[index]
        except (AttributeError, IndexError, KeyError, TypeError):
            continue
        path = entry[0] if isinstance(entry, (tuple, list)) else entry
        if isinstance(path, str) or hasattr(path, "__fspath__"):
            return str(path)
    return None
