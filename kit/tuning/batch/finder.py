"""`find_batch_size`: a few real trials, a forecast, and the sizes that follow."""

from __future__ import annotations

import math

from kit import state
from kit.costs import Line
from kit.experiment import Experiment, ExperimentError, describe, named, resolve
from kit.figures import format_value
from kit.progress import Progress, take_turn
from kit.tuning.batch.forecast import forecast_memory
from kit.tuning.batch.probe import CALLER, Prober, rehearse
from kit.tuning.batch.result import BatchSizeTuning
from kit.tuning.batch.search import MOST_TRIALS, Search

#: The first trial is small; one sample alone is too few for batch norm.
_SMALLEST = 2
_FORECAST_AT = 8


def find_batch_size(
    experiment: object,
    /,
    *,
    memory: float | None = None,
    knob: str = "batch_size",
    most: int | None = None,
    seconds: float = 8.0,
    **knobs: object,
) -> BatchSizeTuning:
    """Find the batch size to train with, and the largest that fits into memory.

    `memory` is how many bytes the experiment may take; without it, most of what is
    free: on the accelerator that it uses, else in this machine. `most` is the largest
    size that comes into question, the number of samples for example. `seconds` are
    timed in all; long steps take longer. Memory is reckoned on tensors without data
    where that works, then tried: at most four real trials, the first with two samples.
    What the experiment trains, and all random state, are put back. Raises
    ExperimentError for sizes and bytes that cannot be, where not even one sample fits,
    where the experiment fails, and where its loss is not a number.

    >>> import torch
    >>> def train(*, batch_size=8):
    ...     net = torch.nn.Sequential(torch.nn.Linear(64, 4096), torch.nn.ReLU())
    ...     while True:
    ...         net(torch.randn(batch_size, 64)).sum().backward()
    ...         yield batch_size
    >>> found = find_batch_size(train, memory=2e8, most=10_000, seconds=0.4)
    >>> found.batch_size <= found.largest <= 10_000
    True
    """
    with named(CALLER):
        resolved = resolve(experiment)
    bound = _check_knobs(resolved, knob, knobs)
    _check_numbers(memory, most, seconds)
    smallest = min(_SMALLEST, int(str(bound[knob])), most or _SMALLEST)
    rest = {name: value for name, value in bound.items() if name != knob}
    with (
        state.kept(),
        Progress(f"finding {knob} of {resolved.name}") as progress,
        take_turn(progress),
    ):
        progress.begin(0, 1, seconds)

        def forecast(size: int) -> Line | None:
            progress.doing = f"reckoning memory at {knob}={size}"
            return forecast_memory(resolved, rest, knob, size)

        rehearse()
        line = forecast(_FORECAST_AT)
        prober = Prober(resolved, rest, knob, seconds / MOST_TRIALS, progress)
        search = Search(prober, forecast, memory, float(most or math.inf), line)
        return search.find(smallest)


def _check_knobs(
    experiment: Experiment, knob: str, knobs: dict[str, object]
) -> dict[str, object]:
    """Return all knobs with their values; raise ExperimentError where they cannot be.

    The knob that is looked for needs a default that is a batch size.
    """
    if knob in knobs:
        raise ExperimentError(
            f"{CALLER}: {knob}={format_value(knobs[knob])} is what is looked for.\n"
            f"Leave it out, or name another: knob=…."
        )
    if knob in experiment.fixed or (
        knob not in experiment.defaults and not experiment.open_ended
    ):
        others = ", ".join(k for k in experiment.defaults if k not in experiment.fixed)
        raise ExperimentError(
            f"{CALLER}: {experiment.name} has no knob {knob!r} that could be turned.\n"
            f"Its knobs: {others or 'none'}. Add it, def {experiment.name}(*, "
            f"{knob}=32), or name the one that is the batch size: knob=…."
        )
    with named(CALLER):
        bound = experiment.bind(knobs) if knob in experiment.defaults else {}
    size = bound.get(knob)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ExperimentError(
            f"{CALLER}: {describe(experiment.name, {knob: size})} has a default that "
            "is no batch size.\nGive it a whole number, 1 or more, as in "
            f"def {experiment.name}(*, {knob}=32)."
        )
    for name, value in bound.items():
        if isinstance(value, (list, range)):
            raise ExperimentError(
                f"{CALLER}: {name}={format_value(value)} is a choice, and one value is "
                f"needed.\nCall it for each of them: {CALLER[:-2]}({experiment.name}, "
                f"{name}={format_value(next(iter(value), None))})."
            )
    return bound


def _check_numbers(memory: object, most: object, seconds: object) -> None:
    if memory is not None and not _is_amount(memory):
        raise ExperimentError(
            f"{CALLER}: memory={format_value(memory)} is not a number of bytes.\n"
            "Pass a positive number, such as memory=2e9, or leave it out."
        )
    if most is not None and (
        isinstance(most, bool) or not isinstance(most, int) or most < 1
    ):
        raise ExperimentError(
            f"{CALLER}: most={format_value(most)} is not a number of samples.\n"
            "Pass a whole number, 1 or more: most=len(data)."
        )
    if not _is_amount(seconds):
        raise ExperimentError(
            f"{CALLER}: seconds={format_value(seconds)} is not a time to measure for.\n"
            "Use a positive number."
        )


def _is_amount(value: object) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 0 < float(str(value)) < math.inf
