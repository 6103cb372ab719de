"""What `measure` and `compare` are asked for: variants, and whether they are fair."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from kit.experiment import Experiment, ExperimentError, resolve
from kit.figures import format_value
from kit.ratio import MEMORY, QUANTITIES, SETUP, SPEED
from kit.variant import Variant

#: The knob that says on how many ranks an experiment ran.
RANKS = "ranks"
#: So many whole runs of each, unless more are asked for.
REPEATS = 6


@runtime_checkable
class Place(Protocol):
    """Where experiments can live: `kit.start_ranks` returns one."""

    def prepare(self, experiment: Experiment, knobs: Mapping[str, object]) -> Variant:
        """Make a variant that lives there."""

    def __len__(self) -> int:
        """Return how many processes the place has."""


@dataclass(frozen=True)
class Request:
    """What `compare` was asked for; `is_kept` says whether a recording keeps it."""

    of: str = SPEED
    seconds: float | None = 4.0
    repeats: int = REPEATS
    within: float | None = None
    patient: bool = False
    title: str | None = None
    is_kept: bool = True

    def check(self) -> None:
        """Raise ExperimentError where the parts do not go together."""
        of, seconds, within = self.of, self.seconds, self.within
        check_arguments(seconds, self.repeats)
        if seconds is None and of in (SETUP, MEMORY):
            raise ExperimentError(
                f"of={format_value(of)} looks at starts, not at whole runs.\n"
                "Leave out seconds=None."
            )
        if seconds is not None and of not in (SPEED, SETUP, MEMORY):
            raise ExperimentError(
                f"of={format_value(of)} compares whole runs, and "
                f"seconds={format_value(seconds)} asks for a rate.\n"
                "Say seconds=None, and let the generator end; other quantities: "
                f"{', '.join(QUANTITIES)}."
            )
        if of not in QUANTITIES and not _is_positive(within):
            raise ExperimentError(
                f"of={format_value(of)} is a metric, compared by its difference; "
                f"within={format_value(within)} does not say which difference counts "
                "as the same.\nAdd within=…, for instance within=0.01 (quantities: "
                f"{', '.join(QUANTITIES)})."
            )


def check_arguments(seconds: float | None, repeats: int) -> None:
    """Raise ExperimentError for arguments that no experiment can be measured with."""
    if seconds is not None and not _is_positive(seconds):
        raise ExperimentError(
            f"seconds={format_value(seconds)} is not a time to measure for.\n"
            "Use a positive number, or seconds=None to run the generator to its end."
        )
    if not isinstance(repeats, int) or isinstance(repeats, bool) or repeats < 1:
        raise ExperimentError(
            f"repeats={format_value(repeats)} is not a number of runs.\n"
            "Use a whole number, 1 or more."
        )


def _is_positive(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 0 < value < math.inf


def check_places(on: Any) -> list[Place | None]:
    """Return the places that are compared, one or a list of them.

    Raises ExperimentError for what is none, and for an empty list.
    """
    if isinstance(on, list):
        check_choices("on", on, "[ranks[:1], ranks]")
    places = on if isinstance(on, list) else [on]
    for place in places:
        check_place(place)
    return places


def check_place(on: object) -> None:
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
        f"on={format_value(on)} is not something to measure on.\n{advice}"
    )


def check_choices(knob: str, values: Sequence[object], example: str = "[…, …]") -> None:
    """Raise ExperimentError where a list of choices is empty."""
    if not values:
        raise ExperimentError(
            f"{knob}={values!r} is an empty list of choices.\n"
            f"Name two values or more, the baseline first: {knob}={example}."
        )


def make_variant(
    experiment: Experiment,
    knobs: Mapping[str, object],
    on: Place | None = None,
    label: str = "",
) -> Variant:
    """Make a variant of an experiment in a place, by default this process."""
    made = on.prepare(experiment, knobs) if on else Variant(experiment, knobs)
    made.label = label
    return made


def make_variants(
    experiment: object, places: Sequence[Place | None], choices: Mapping[str, object]
) -> list[Variant]:
    """Return every combination of experiments, places and choices: baseline first."""
    is_named = isinstance(experiment, Mapping)
    experiments = (
        [resolve(e, str(name)) for name, e in experiment.items()]
        if isinstance(experiment, Mapping)
        else [resolve(experiment)]
    )
    lists = {k: list(v) for k, v in choices.items() if isinstance(v, (list, range))}
    for knob, values in lists.items():
        check_choices(knob, values)
    variants: list[Variant] = []
    for chosen, place, point in itertools.product(
        experiments, places, [*_combine(lists)]
    ):
        values = {knob: value for knob, (value, _, _) in point.items()}
        told = {RANKS: str(len(place or ""))} if len(places) > 1 else {}
        told |= {knob: name for knob, (_, name, _) in point.items()}
        parts = [chosen.name] if is_named or not told else []
        parts += [f"{knob}={name}" for knob, name in told.items()]
        label = ", ".join(parts)
        same = sum(v.label.split(" (again")[0] == label for v in variants)
        label += f" (again{f' {same}' if same > 1 else ''})" if same else ""
        made = make_variant(chosen, chosen.bind({**choices, **values}), place, label)
        made.is_inner = any(inner for _, _, inner in point.values())
        variants.append(made)
    if len(variants) < 2:
        name = experiments[0].name if experiments else "nothing"
        raise ExperimentError(
            f"one variant only ({name}); there is nothing to compare.\n"
            "Give a knob a list, as in batch_size=[32, 64], or pass several "
            'experiments: {"plain": f, "other": g}.'
        )
    return variants


def _combine(
    lists: Mapping[str, Sequence[object]],
) -> Iterator[dict[str, tuple[object, str, bool]]]:
    """Yield every combination: each knob's value, its name, and whether it is inner."""
    columns = []
    for values in lists.values():
        inner = [0 < i < len(values) - 1 for i in range(len(values))]
        columns.append([*zip(values, name_choices(values), inner, strict=True)])
    for point in itertools.product(*columns):
        yield dict(zip(lists, point, strict=True))


def is_same(a: object, b: object) -> bool:
    """Return whether two values are the same; arrays only where they are one object."""
    try:
        return a is b or bool(a == b)
    except (TypeError, ValueError, RuntimeError):
        return False


def name_choices(
    values: Sequence[object], write: Callable[[object], str] = format_value
) -> list[str]:
    """Return choices in words; those that look the same but differ get numbers.

    >>> name_choices([2, 4]), name_choices(["a" * 99 + "b", "a" * 99 + "c"])[1][-5:]
    (['2', '4'], '… (2)')
    """
    alike: dict[str, list[object]] = {}
    for value in values:
        known = alike.setdefault(write(value), [])
        if not any(is_same(value, other) for other in known):
            known.append(value)
    names = []
    for value in values:
        text, known = write(value), alike[write(value)]
        number = next(i for i, other in enumerate(known, 1) if is_same(value, other))
        names.append(f"{text} ({number})" if len(known) > 1 else text)
    return names
