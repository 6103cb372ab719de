"""What a panel lets you turn: experiments, knobs, and one point among them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kit.choices import RANKS, Place, check_choices, is_same, make_variant, name_choices
from kit.experiment import Experiment, ExperimentError, describe, resolve
from kit.figures import format_value
from kit.variant import Variant

#: The name of the control that chooses among several experiments.
_EXPERIMENT = "experiment"


@dataclass(frozen=True)
class Choices:
    """Experiments by name, lists of choices by knob, and the knobs that are fixed.

    `given` is what `explore` was given: one experiment, or several by name. Of several,
    `selector` is the list of their names, like that of a knob. `places` is where they
    run; of several, `ranks` is the list of how many processes each has.
    """

    given: object
    places: list[Place | None]
    experiments: dict[str, Experiment]
    lists: dict[str, list[Any]]
    fixed: dict[str, Any]
    selector: str | None

    @classmethod
    def of(
        cls,
        experiment: object,
        places: list[Place | None],
        given: Mapping[str, object],
    ) -> Choices:
        """Sort what `explore` was given; raise ExperimentError where it cannot be."""
        named = isinstance(experiment, Mapping)
        items = experiment.items() if isinstance(experiment, Mapping) else []
        found = [resolve(e, str(name)) for name, e in items]
        if not named:
            found = [resolve(experiment)]
        if not found:
            raise ExperimentError(
                "no experiment was given.\n"
                'Pass a generator function, or several by name: {"plain": f}.'
            )
        lists = {
            knob: list(value)
            for knob, value in given.items()
            if isinstance(value, (list, range))
        }
        fixed = {knob: value for knob, value in given.items() if knob not in lists}
        for knob, values in lists.items():
            check_choices(knob, values)
        for chosen in found:
            first = {knob: values[0] for knob, values in lists.items()}
            chosen.bind({**fixed, **first})
        experiments = {chosen.name: chosen for chosen in found}
        selector = _EXPERIMENT if len(found) > 1 else None
        if selector in given:
            raise ExperimentError(
                f"{selector}={format_value(given[selector])} is a knob, and "
                "the name of the control that chooses among several experiments.\n"
                "Explore them one by one, or rename the knob."
            )
        counts = [len(place) if place else None for place in places]
        if len(counts) > 1:
            if len({*counts}) < len(counts):
                raise ExperimentError(
                    f"on={format_value(places, 60)} has two choices with as "
                    "many ranks.\nA control names them by their number: choose "
                    "different ones, as in on=[ranks[:1], ranks]."
                )
            lists = {RANKS: counts, **lists}
        if selector:
            lists = {selector: list(experiments), **lists}
        return cls(experiment, places, experiments, lists, fixed, selector)

    def start(self) -> dict[str, Any]:
        """Return where the controls stand first: defaults, else the first choices."""
        first = next(iter(self.experiments.values()))
        return {
            knob: next(
                (v for v in values if is_same(v, first.defaults.get(knob))), values[0]
            )
            for knob, values in self.lists.items()
        }

    def points(self) -> list[dict[str, Any]]:
        """Return every combination of choices."""
        return [
            dict(zip(self.lists, values, strict=True))
            for values in itertools.product(*self.lists.values())
        ]

    def check(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """Return a full point; raise ExperimentError for what is no choice."""
        full = {**self.start(), **point}
        for knob, value in point.items():
            if knob not in self.lists:
                known = ", ".join(self.lists) or "none"
                raise ExperimentError(
                    f"Panel.run: {knob}={format_value(value)} cannot be chosen here.\n"
                    f"What can be chosen: {known}. Name it in explore({knob}=[…])."
                )
            if not any(is_same(value, v) for v in self.lists[knob]):
                raise ExperimentError(
                    f"Panel.run: {knob}={format_value(value)} is not among the choices "
                    f"{format_value(self.lists[knob], 60)}.\n"
                    "Choose one of them, or add it to the list in explore()."
                )
        return full

    def experiment(self, point: Mapping[str, Any]) -> Experiment:
        """Return the experiment of a point."""
        name = point[self.selector] if self.selector else next(iter(self.experiments))
        return self.experiments[name]

    def find_fixed(self, experiment: Experiment) -> dict[str, object]:
        """Return the knobs of an experiment that nobody can choose here."""
        chosen = {k: v for k, v in self.start().items() if k in experiment.defaults}
        bound = experiment.bind({**self.fixed, **chosen})
        return {knob: bound[knob] for knob in bound if knob not in self.lists}

    def variant(self, point: Mapping[str, Any]) -> Variant:
        """Return a point's experiment with all its knobs, in the place to run it."""
        several = len(self.places) > 1
        number = self.lists[RANKS].index(point[RANKS]) if several else 0
        apart = {self.selector, RANKS} if several else {self.selector}
        chosen = {k: v for k, v in point.items() if k not in apart}
        experiment = self.experiment(point)
        bound = experiment.bind({**self.fixed, **chosen})
        return make_variant(experiment, bound, self.places[number])

    def label(
        self, point: Mapping[str, Any], among: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        """Return a point in words, as in `num_workers=2`.

        Of `among`, only the knobs in which these points differ are named, if they do.
        """
        differing = [
            knob for knob in point if len({repr(p.get(knob)) for p in among}) > 1
        ]
        words = [
            str(value) if knob == self.selector else f"{knob}={self.write(knob, value)}"
            for knob, value in point.items()
            if knob in differing or not differing
        ]
        return ", ".join(words) or next(iter(self.experiments))

    def write(self, knob: str, value: object) -> str:
        """Return a choice as its control names it."""
        values = self.lists.get(knob, [])
        for name, other in zip(write_choices(values), values, strict=True):
            if is_same(other, value):
                return name
        return _write(value)  # one that was recorded elsewhere

    def call(self, point: Mapping[str, Any]) -> str:
        """Return a point as a call, as in `train(num_workers=2)`."""
        knobs = {knob: v for knob, v in point.items() if knob != self.selector}
        return describe(self.experiment(point).name, knobs)

    @property
    def ordered(self) -> str | None:
        """The first knob whose choices are three ordered numbers or more, if any."""
        return next((k for k, v in self.lists.items() if _is_ordered(v)), None)


def _is_ordered(values: list[Any]) -> bool:
    numbers = all(
        isinstance(v, (int, float)) and not isinstance(v, bool) for v in values
    )
    return (
        numbers and len(values) > 2 and values in (sorted(values), sorted(values)[::-1])
    )


def write_choices(values: Sequence[object]) -> list[str]:
    """Return choices as a control names them; a string stands for itself."""
    return name_choices(values, _write)


def _write(value: object) -> str:
    return value if isinstance(value, str) else format_value(value)
