"""What is asked for is looked at before anything starts."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from kit.experiment import ExperimentError
from kit.figures import format_value
from kit.machine import this_machine

#: The settings that are tuned; a loader is made with those that its maker takes.
SETTINGS = ("num_workers", "prefetch_factor", "persistent_workers")
_MOST_WORKERS_PER_CORE = 16
#: What messages begin with.
CALLER = "tune_loader()"


def name_of(make_loader: object) -> str:
    """Return what a reader calls the maker of loaders."""
    while isinstance(make_loader, functools.partial):
        make_loader = make_loader.func
    return getattr(make_loader, "__name__", "make_loader")


def check_maker(make_loader: object) -> tuple[str, ...]:
    """Return the settings that a maker of loaders takes by name.

    Raises ExperimentError where it is none, takes no num_workers, or needs more.
    """
    if not callable(make_loader):
        raise ExperimentError(
            f"{CALLER}: make_loader={format_value(make_loader)} is not a function.\n"
            "Pass a function that makes the loader: "
            "def make_loader(*, num_workers): return DataLoader(…)."
        )
    name = name_of(make_loader)
    parameters = inspect.signature(make_loader).parameters.values()
    taken: list[str] = []
    for parameter in parameters:
        by_name = parameter.kind in (
            parameter.KEYWORD_ONLY,
            parameter.POSITIONAL_OR_KEYWORD,
        )
        if parameter.kind is parameter.VAR_KEYWORD:
            taken += SETTINGS
        elif by_name and parameter.name in SETTINGS:
            taken.append(parameter.name)
        elif parameter.default is parameter.empty and (
            parameter.kind is not parameter.VAR_POSITIONAL
        ):
            raise ExperimentError(
                f"{CALLER}: {name} needs a value for {parameter.name!r}.\n"
                f"Fix it: functools.partial({name}, {parameter.name}=…)."
            )
    if "num_workers" not in taken:
        raise ExperimentError(
            f"{CALLER}: {name} takes no num_workers, so there is nothing to tune.\n"
            f"Write def {name}(*, num_workers): … and hand it on to the DataLoader."
        )
    return tuple(setting for setting in SETTINGS if setting in taken)


def check_workers(num_workers: object) -> list[int] | None:
    """Return the numbers of workers that were asked for, None for the usual ones.

    Raises ExperimentError where one is no number of workers.
    """
    if num_workers is None:
        return None
    several = isinstance(num_workers, Iterable) and not isinstance(num_workers, str)
    asked = list(num_workers) if several else [num_workers]  # type: ignore[call-overload]
    most = _MOST_WORKERS_PER_CORE * (this_machine().cores or 1)
    for number in asked:
        if isinstance(number, bool) or not hasattr(number, "__index__"):
            wrong = "is not a whole number"
        elif number < 0:
            wrong = "is below 0"
        elif number > most:
            wrong = f"is over {most}, {_MOST_WORKERS_PER_CORE} for each core here"
        else:
            continue
        raise ExperimentError(
            f"{CALLER}: num_workers={format_value(number)} {wrong}.\n"
            "Pass numbers of workers to choose from, [0, 1, 2, 4] say, or leave "
            "num_workers out: then they follow from the probes."
        )
    if not asked:
        raise ExperimentError(
            f"{CALLER}: num_workers={format_value(num_workers)} leaves no choice.\n"
            "Pass at least one number of workers, or leave num_workers out."
        )
    return sorted({int(number) for number in asked})


def check_rest(step: object, seconds: object) -> None:
    """Raise ExperimentError for a step or a time that cannot be."""
    if step is not None and not callable(step):
        raise ExperimentError(
            f"{CALLER}: step={format_value(step)} is not a function.\n"
            "Pass a function that does one training step: def step(batch): …"
        )
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not (number and 0 < seconds < math.inf):  # type: ignore[operator]
        raise ExperimentError(
            f"{CALLER}: seconds={format_value(seconds)} is not a time to take.\n"
            "Use a positive number; 20 is the usual one."
        )


def check_loader(loader: Any, name: str, settings: Mapping[str, object]) -> None:
    """Raise ExperimentError where this is no loader with these settings and data."""
    from torch.utils.data import DataLoader

    if not isinstance(loader, DataLoader):
        raise ExperimentError(
            f"{CALLER}: {name} returned {format_value(loader)}, not a DataLoader.\n"
            "End it with `return DataLoader(…)`."
        )
    asked = settings["num_workers"]
    if loader.num_workers != asked:
        raise ExperimentError(
            f"{CALLER}: {name}(num_workers={asked}) returned a loader with "
            f"num_workers={loader.num_workers}.\n"
            "Hand it on: DataLoader(…, num_workers=num_workers)."
        )
    length = length_of(loader.dataset)
    if length == 0:
        raise ExperimentError(
            f"{CALLER}: the data set of {name} is empty "
            f"({format_value(loader.dataset)}, length 0).\n"
            "Is its path right, or does a filter leave nothing?"
        )
    if length_of(loader) == 0:
        raise ExperimentError(
            f"{CALLER}: {name} returned a loader without a single batch: "
            f"batch_size={loader.batch_size}, {length} samples, "
            f"drop_last={loader.drop_last}.\n"
            "Use a smaller batch_size, or drop_last=False."
        )
    _check_start_method(loader, name)


def length_of(thing: Any) -> int | None:
    """Return a length, None where it is not known."""
    try:
        return len(thing)
    except TypeError:  # an iterable data set need not know
        return None


def start_method(loader: Any) -> str:
    """Return how the worker processes of a loader start."""
    context = loader.multiprocessing_context
    return context.get_start_method() if context else this_machine().start_method


def _check_start_method(loader: Any, name: str) -> None:
    """Refuse what a cell defines where workers could not see it."""
    method = start_method(loader)
    if method == "fork" or hasattr(sys.modules["__main__"], "__file__"):
        return
    made = {
        "data set": type(loader.dataset),
        "data set inside": type(getattr(loader.dataset, "dataset", None)),
        "collate_fn": loader.collate_fn,
        "worker_init_fn": loader.worker_init_fn,
    }
    for role, thing in made.items():
        if getattr(thing, "__module__", None) == "__main__":
            raise ExperimentError(
                f"{CALLER}: workers of {name} start by {method!r} and cannot see "
                f"the {role} {thing.__qualname__}, because a cell defines it.\n"
                "Move it into a file: begin its cell with %%writefile my_data.py, run "
                f"it, and say `from my_data import {thing.__qualname__}`."
            )
