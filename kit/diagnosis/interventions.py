"""What would the step take without this? Changes to PyTorch's behaviour, on and off.

The one place that wraps PyTorch's entry points. `installed()` puts wrappers in, and
takes them out whatever happens. Each asks which intervention is at work: there is one
only while a generator runs that was made for it, in its thread and in those that it
starts. What the reader's cells do meanwhile is not changed.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import Any

from kit.diagnosis.effects import NOW, Effect, Intervention
from kit.diagnosis.trace import STEP
from kit.diagnosis.wrappers import set_threads, take_step, wrap_all
from kit.experiment import Experiment, referred_objects
from kit.silence import silencing

__all__ = ["Intervention", "installed", "intervene"]


def intervene(experiment: Experiment, what: Intervention) -> Experiment:
    """Return the experiment with an intervention that is at work while it runs.

    What its set-up prints was heard when it was profiled, so it is silent.
    """
    driven = functools.partial(_drive, experiment, what)
    return replace(experiment, function=driven, written=experiment.own)


def _drive(
    experiment: Experiment, what: Intervention, /, **knobs: object
) -> Generator[Any, None, None]:
    effect, mark = Effect(what), _make_mark() if what.marked else None
    try:
        _reach_optimizers(experiment, knobs, effect)
        quiet = contextlib.nullcontext() if what.marked else silencing()
        with quiet, _at_work(effect):
            generator = experiment.start(knobs)
            value = next(generator, _ABSENT)
        try:
            while value is not _ABSENT:
                effect.begun = True
                effect.calls.clear()
                if mark is not None:
                    mark()
                yield value
                with _at_work(effect):
                    value = next(generator, _ABSENT)
        finally:
            with _at_work(effect):
                generator.close()
    finally:
        effect.end()


def _reach_optimizers(
    experiment: Experiment, knobs: Mapping[str, object], effect: Effect
) -> None:
    """Wrap steps that a scheduler has put into closed-over optimizers themselves."""
    import torch

    if effect.what.step is None:
        return
    for _, value in referred_objects(experiment.function, knobs):
        own = vars(value) if isinstance(value, torch.optim.Optimizer) else {}
        if "step" in own:
            kept = own["step"]
            own["step"] = functools.partial(_take_step, kept, value)
            own["step"]._wrapped_by_lr_sched = True
            effect.undo.append(functools.partial(own.update, step=kept))


def _take_step(
    kept: Callable[..., Any], optimizer: Any, *arguments: Any, **options: Any
) -> Any:
    return take_step(lambda _, *a, **o: kept(*a, **o), optimizer, *arguments, **options)


class _at_work:  # noqa: N801 (a context manager, as quick as can be)
    def __init__(self, effect: Effect) -> None:
        self.effect = effect

    def __enter__(self) -> None:
        NOW.effect = self.effect
        if self.effect.what.threads is not None:
            set_threads(self.effect.what.threads)

    def __exit__(self, *_: object) -> None:
        NOW.effect = None


def _make_mark() -> Callable[[], None]:
    from torch.autograd.profiler import record_function

    def mark() -> None:
        with record_function(STEP):
            pass

    return mark


@contextlib.contextmanager
def installed(*, devices: bool = False) -> Generator[None, None, None]:
    """Wrap PyTorch's entry points; put every one of them back in the end."""
    before: list[tuple[Any, str, Any]] = []

    def wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        before.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, make(getattr(owner, name)))

    try:
        wrap_all(wrap, devices)
        yield
    finally:
        for owner, name, value in reversed(before):
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


_ABSENT = object()
