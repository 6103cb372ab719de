"""Where an experiment lives: in this process, or on several that are given as `on=`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

from kit.clock.experiment import Experiment, ExperimentError
from kit.clock.life import Life, LocalLife
from kit.clock.shared import SharedObjects
from kit.figures import format_value
from kit.progress import Progress

T = TypeVar("T")
#: The knob that says on how many ranks an experiment ran.
RANKS = "ranks"


class Stage(Protocol):
    """One experiment with one set of knobs, in the place where its lives are led.

    `knobs` are those that reports name.
    """

    experiment: Experiment
    knobs: Mapping[str, object]

    @property
    def shared(self) -> list[str]:
        """The names of modules and optimizers that are put back at each start."""

    @property
    def notes(self) -> list[str]:
        """Sentences about the place, for reports."""

    def live(self, progress: Progress) -> Life:
        """Make a life, which is not yet started."""

    def ask(
        self, progress: Progress, function: Callable[..., T], *arguments: object
    ) -> list[T]:
        """Call a function in each process of the place; return what each returned."""

    def during(
        self,
        progress: Progress,
        make: Callable[[], contextlib.AbstractContextManager[T]],
        read: Callable[[T], Any] = ...,
    ) -> contextlib.AbstractContextManager[list[Any]]:
        """Enter a context in each process of the place.

        Afterwards the list holds what `read` makes, in each, of what the context gave.
        """

    def close(self) -> None:
        """Put back what is shared, and leave the place."""


@runtime_checkable
class Place(Protocol):
    """Where experiments can live: `kit.start_ranks` returns one."""

    def prepare(self, experiment: Experiment, knobs: Mapping[str, object]) -> Stage:
        """Make a stage for an experiment."""

    def __len__(self) -> int:
        """Return how many processes the place has."""


def _read_nothing(value: object) -> None:
    """Make nothing of what a context gave."""


class LocalStage:
    """One experiment with one set of knobs in this process.

    What its set-up prints is heard in the first life alone.
    """

    def __init__(
        self,
        experiment: Experiment,
        knobs: Mapping[str, object],
        shared: SharedObjects | None = None,
        *,
        may_idle: bool = False,
    ) -> None:
        self.experiment, self.knobs = experiment, knobs
        self.notes: list[str] = []
        self._shared = SharedObjects(experiment, knobs) if shared is None else shared
        self._may_idle, self._has_lived = may_idle, False

    @property
    def shared(self) -> list[str]:
        """The names of what is put back at each start."""
        return self._shared.names

    def live(self, progress: Progress) -> LocalLife:
        """Make a life, which is not yet started."""
        silent, self._has_lived = self._has_lived, True
        return LocalLife(
            self.experiment,
            self.knobs,
            self._shared,
            progress,
            may_idle=self._may_idle,
            silent=silent,
        )

    def ask(
        self, progress: Progress, function: Callable[..., T], *arguments: object
    ) -> list[T]:
        """Call a function here; return what it returned, as the only one."""
        return [function(*arguments)]

    @contextlib.contextmanager
    def during(
        self,
        progress: Progress,
        make: Callable[[], contextlib.AbstractContextManager[T]],
        read: Callable[[T], Any] = _read_nothing,
    ) -> Generator[list[Any], None, None]:
        """Enter a context here; afterwards the list holds what `read` makes of it."""
        found: list[Any] = []
        with make() as value:
            yield found
        found.append(read(value))

    def close(self) -> None:
        """Put back what is shared."""
        self._shared.close()


def prepare(
    on: Place | None, experiment: Experiment, knobs: Mapping[str, object]
) -> Stage:
    """Make a stage for an experiment in a place, by default this process."""
    if on is None:
        return LocalStage(experiment, knobs)
    return on.prepare(experiment, knobs)


def count_ranks(place: Place | None) -> int | None:
    """Return how many ranks a place has, None for this process alone."""
    return None if place is None else len(place)


def check_place(caller: str, on: object) -> None:
    """Raise ExperimentError for what is no place to measure."""
    if on is None or isinstance(on, Place):
        return
    advice = "Pass what kit.start_ranks(2) returned, or leave `on` out."
    if isinstance(on, (list, tuple)):
        advice = (
            "Pass one, as in on=ranks; several are a choice for compare() and "
            "explore(): on=[ranks[:1], ranks]."
        )
    raise ExperimentError(
        f"{caller}: on={format_value(on)} is not something to measure on.\n{advice}"
    )


def check_places(caller: str, on: Any) -> list[Place | None]:
    """Return the places that are compared, one or a list of them.

    Raises ExperimentError for what is none, and for an empty list.
    """
    if not isinstance(on, list):
        check_place(caller, on)
        return [on]
    if not on:
        raise ExperimentError(
            f"{caller}: on=[] is an empty list of choices.\n"
            "Name two or more, the baseline first: on=[ranks[:1], ranks]."
        )
    for place in on:
        check_place(caller, place)
    return on
