"""What `measure` and `compare` are asked for, and whether that can be done."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from kit.errors import ExperimentError
from kit.figures import format_value
from kit.measuring.experiment import Experiment, resolve
from kit.measuring.quantity import MEMORY, QUANTITIES, SPEED
from kit.measuring.unit import read_unit
from kit.measuring.variant import Place, Variant

#: The knob that says on how many ranks an experiment ran, and the name of the choice
#: among several experiments.
RANKS, EXPERIMENT = "ranks", "experiment"
#: So many complete runs of each, unless others are asked for.
REPEATS = 6


@dataclass(frozen=True)
class Request:
    """What `compare` was asked for; `is_kept` says whether a recording keeps it."""

    of: str = SPEED
    seconds: float | None = 4.0
    repeats: int | None = None
    within: float | None = None
    patient: bool = False
    title: str | None = None
    unit: str | None = None
    is_kept: bool = True

    def check(self) -> None:
        """Raise ExperimentError where the parts do not go together."""
        check_arguments(self.seconds, self.repeats)
        self._refuse_idle_arguments()
        asked, complete = f"of={format_value(self.of)}", self.seconds is None
        if self.of != SPEED and complete == (self.of == MEMORY):
            raise ExperimentError(
                f"{asked} does not go with seconds={format_value(self.seconds)}.\n"
                f"{MEMORY} takes a time; with seconds=None complete runs are compared: "
                "run_seconds, items_per_second, or a metric by its name."
            )
        if self.of not in QUANTITIES and not _is_positive(self.within):
            raise ExperimentError(
                f"{asked} is a metric, compared by its difference, and "
                f"within={format_value(self.within)} is none.\nSay which difference "
                f"counts as the same: within=0.01. Quantities: {', '.join(QUANTITIES)}."
            )

    def _refuse_idle_arguments(self) -> None:
        """Raise ExperimentError for an argument that would change nothing."""
        if self.within is not None and self.of in QUANTITIES:
            raise ExperimentError(
                f"within={format_value(self.within)} is for metrics, and {self.of} is "
                "compared as a ratio.\nLeave it out, or compare a metric: "
                'of="loss", seconds=None, within=0.01.'
            )
        if self.patient and (self.of != SPEED or self.seconds is None):
            raise ExperimentError(
                f"patient=True lets {SPEED} take longer, and changes nothing here.\n"
                "Leave it out; complete runs have repeats=."
            )
        if self.unit is not None:
            if self.of != SPEED:
                raise ExperimentError(
                    f"unit={format_value(self.unit)} is for {SPEED}, and "
                    f"{self.of} has a unit of its own.\nLeave it out."
                )
            read_unit(self.unit)


def check_arguments(seconds: float | None, repeats: int | None) -> None:
    """Raise ExperimentError for arguments that no experiment can be measured with."""
    if seconds is not None and not _is_positive(seconds):
        raise ExperimentError(
            f"seconds={format_value(seconds)} is not a time to measure for.\n"
            "Use a positive number, or seconds=None to run the generator to its end."
        )
    if repeats is None:
        return
    if seconds is not None:
        raise ExperimentError(
            f"repeats={format_value(repeats)} is for complete runs, and seconds="
            f"{format_value(seconds)} measures for a time.\n"
            "Leave it out, or say seconds=None."
        )
    is_whole = isinstance(repeats, Integral) and not isinstance(repeats, bool)
    if not is_whole or repeats < 1:
        raise ExperimentError(
            f"repeats={format_value(repeats)} is not a number of runs.\n"
            "Use a whole number, 1 or more."
        )


def _is_positive(value: Any) -> bool:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    return is_number and 0 < value < math.inf


def check_places(on: Any) -> list[Place | None]:
    """Return the places that are compared, one or a list of them.

    Raises ExperimentError for what is none, and for an empty list.
    """
    places = on if isinstance(on, list) else [on]
    _refuse_empty("on", places)
    for place in places:
        check_place(place)
    return places


def check_place(on: object) -> None:
    """Raise ExperimentError for what is no place to measure."""
    if not (on is None or isinstance(on, Place)):
        raise ExperimentError(
            f"on={format_value(on)} is not something to measure on.\n"
            "Pass what kit.start_ranks(2) returned; a list is a choice for compare()."
        )


def _refuse_empty(knob: str, values: Sequence[object]) -> None:
    if not values:
        raise ExperimentError(
            f"{knob}={values!r} is an empty list of choices.\n"
            "Name two values or more, the baseline first."
        )


def make_variant(
    experiment: Experiment,
    knobs: Mapping[str, object],
    on: Place | None = None,
    label: str = "",
    is_inner: bool = False,
) -> Variant:
    """Make a variant of an experiment in a place, by default this process."""
    made = on.prepare(experiment, knobs) if on else Variant(experiment, knobs)
    made.label = label
    made.is_inner = is_inner
    return made


def resolve_all(experiment: object) -> list[Experiment]:
    """Resolve one experiment, or several by name; raises ExperimentError for none."""
    if not isinstance(experiment, Mapping):
        return [resolve(experiment)]
    _refuse_empty("experiment", [*experiment])
    return [resolve(each, str(name)) for name, each in experiment.items()]


def list_choices(
    experiments: Sequence[Experiment],
    places: Sequence[Place | None],
    choices: Mapping[str, object],
) -> dict[str, list[Any]]:
    """Return what can be chosen: lists and ranges, several experiments or places.

    Raises ExperimentError for an empty list, and for a knob whose name is taken.
    """
    names = [experiment.name for experiment in experiments]
    sizes = [len(place or "") for place in places]
    lists = {EXPERIMENT: names, RANKS: sizes}
    lists = {name: values for name, values in lists.items() if len(values) > 1}
    for knob, values in choices.items():
        if knob in lists:
            raise ExperimentError(
                f"{knob}={format_value(values)} is a knob, and the name of what is "
                "chosen among several.\nTake them one by one, or rename the knob."
            )
        if isinstance(values, (list, range)):
            _refuse_empty(knob, values)
            lists[knob] = list(values)
    return lists


@dataclass(frozen=True, eq=False)
class Choice:
    """One combination of what can be chosen: an experiment, a place, a value per knob.

    `numbers` says which one of each list it is, and `words` how that is written.
    """

    experiment: Experiment
    place: Place | None
    knobs: Mapping[str, object]
    numbers: Mapping[str, int]
    words: Mapping[str, str]
    is_inner: bool

    def name(self, lists: Collection[str] | None = None) -> str:
        """Return its label, of all lists or only of these."""
        parts = [
            text if name == EXPERIMENT else f"{name}={text}"
            for name, text in self.words.items()
            if lists is None or name in lists
        ]
        return ", ".join(parts) or self.experiment.name

    def make(self, label: str = "") -> Variant:
        """Make a variant of it, each time anew."""
        label = label or self.name()
        return make_variant(
            self.experiment, self.knobs, self.place, label, self.is_inner
        )


def plan_choices(
    experiments: Sequence[Experiment],
    places: Sequence[Place | None],
    choices: Mapping[str, object],
) -> list[Choice]:
    """Return each combination, the baseline first, in the order of `list_choices`."""
    lists = list_choices(experiments, places, choices)
    names = {knob: name_choices(values) for knob, values in lists.items()}
    knobs = [knob for knob in lists if knob in choices]
    planned = []
    for (which, experiment), (where, place) in itertools.product(
        enumerate(experiments), enumerate(places)
    ):
        for chosen in itertools.product(*(range(len(lists[k])) for k in knobs)):
            numbers = dict(zip(knobs, chosen, strict=True))
            values = {knob: lists[knob][number] for knob, number in numbers.items()}
            bound = experiment.bind({**choices, **values})
            is_inner = any(0 < n < len(lists[k]) - 1 for k, n in numbers.items())
            every = {EXPERIMENT: which, RANKS: where, **numbers}
            every = {name: every[name] for name in lists}
            words = {name: names[name][number] for name, number in every.items()}
            words |= {EXPERIMENT: experiment.name} if EXPERIMENT in lists else {}
            planned.append(Choice(experiment, place, bound, every, words, is_inner))
    return planned


def choose_few(choices: Sequence[Choice], most: int) -> list[Choice]:
    """Return all choices, or of many the baseline and changes of one knob at a time.

    Each knob's first change comes before any knob's second one; what is chosen is in
    the order of the signature.
    """
    if len(choices) <= most:
        return list(choices)
    baseline = choices[0]
    order = [EXPERIMENT, RANKS, *baseline.knobs]
    changes: dict[str, list[Choice]] = {name: [] for name in order}
    for choice in choices[1:]:
        changed = list_changes(choice, baseline)
        if len(changed) == 1:
            changes[changed[0]].append(choice)
    deepest = max(len(each) for each in changes.values())
    ranked = [
        each[depth]
        for depth in range(deepest)
        for each in changes.values()
        if depth < len(each)
    ]
    kept = set(ranked[: most - 1])
    in_order = [choice for each in changes.values() for choice in each]
    return [baseline, *(choice for choice in in_order if choice in kept)]


def list_changes(choice: Choice, other: Choice) -> list[str]:
    """Return the names of the lists in which two choices differ."""
    return [name for name, n in choice.numbers.items() if n != other.numbers[name]]


def find_differing(choices: Sequence[Choice]) -> set[str]:
    """Return the names of the lists in which these choices differ."""
    first, *others = choices
    return {name for choice in others for name in list_changes(choice, first)}


def label_choices(choices: Sequence[Choice]) -> list[str]:
    """Return labels that name only what differs among these choices.

    Where each differs from the first in one list only, it is named by that one.
    """
    baseline, *others = choices
    changes = [list_changes(choice, baseline) for choice in others]
    differing = find_differing(choices)
    is_one_each = len(differing) > 1 and all(len(changed) == 1 for changed in changes)
    if not differing:
        return [choice.name() for choice in choices]
    labels = [baseline.name(differing)]
    for choice, changed in zip(others, changes, strict=True):
        labels.append(choice.name(changed if is_one_each else differing))
    return labels


def check_several(variants: Sequence[Variant]) -> None:
    """Raise ExperimentError where there is nothing to compare."""
    if len(variants) < 2:
        advice = (
            "Give a knob a list, as in batch_size=[32, 64], or pass two experiments:\n"
            '{"plain": f, "other": g}.'
        )
        for knob, value in variants[0].knobs.items():
            if isinstance(value, (tuple, set)) or hasattr(value, "tolist"):
                kind = type(value).__name__
                advice = f"A {kind} is one value: write a list, {knob}=[…]."
        raise ExperimentError(
            f"one variant only ({variants[0].call}); there is nothing to compare.\n"
            f"{advice}"
        )


def is_same(a: object, b: object) -> bool:
    """Return whether two values are the same; arrays only where they are one object."""
    try:
        return a is b or bool(a == b)
    except (TypeError, ValueError, RuntimeError):
        return False


def find(values: Sequence[object], wanted: object) -> int | None:
    """Return where a value stands first, None where it is not."""
    return next((n for n, value in enumerate(values) if is_same(value, wanted)), None)


def name_choices(
    values: Sequence[object], write: Callable[[object], str] = format_value
) -> list[str]:
    """Return choices in words, no two alike.

    >>> name_choices([2, 4, 2])
    ['2', '4', '2 (again)']
    >>> name_choices(["a" * 99 + "b", "a" * 99 + "c"])[1][-5:]
    '… (2)'
    """
    names: list[str] = []
    for number, value in enumerate(values):
        text = write(value)
        alike = [other for other in values if write(other) == text]
        kinds = [other for n, other in enumerate(alike) if find(alike, other) == n]
        if len(kinds) > 1:
            text += f" ({(find(kinds, value) or 0) + 1})"
        if again := sum(is_same(value, other) for other in values[:number]):
            text += f" (again{f' {again}' if again > 1 else ''})"
        names.append(text)
    return names
