"""What `compare` was asked for: which variants, and whether they can be compared."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from kit.clock.experiment import ExperimentError, resolve
from kit.clock.measuring import Origin
from kit.clock.stage import RANKS, Place, count_ranks, prepare
from kit.comparison.alternation import Variant
from kit.comparison.quantities import QUANTITIES, SPEED
from kit.figures import format_value
from kit.trial import Trial


def check_quantity(
    of: str,
    seconds: float | None,
    within: float | None,
    *,
    caller: str = "compare()",
) -> None:
    """Raise ExperimentError where `of`, `seconds` and `within` do not go together."""
    starts = ("setup_seconds", "peak_memory_bytes")
    if seconds is None and of in starts:
        raise ExperimentError(
            f"{caller}: of={format_value(of)} looks at starts, not at whole runs.\n"
            "Leave out seconds=None."
        )
    if seconds is not None and of not in (SPEED, *starts):
        raise ExperimentError(
            f"{caller}: of={format_value(of)} compares whole runs, and "
            f"seconds={format_value(seconds)} asks for a rate.\n"
            "Say seconds=None, and let the generator end; other quantities: "
            f"{', '.join(QUANTITIES)}."
        )
    if of not in QUANTITIES and not _is_positive(within):
        raise ExperimentError(
            f"{caller}: of={format_value(of)} is a metric, compared by its "
            f"difference; within={format_value(within)} does not say which difference "
            "counts as the same.\n"
            f"Add within=…, for instance within=0.01 (quantities: "
            f"{', '.join(QUANTITIES)})."
        )


def check_metric(metric: str, trials: Sequence[Trial]) -> None:
    """Raise ExperimentError where a trial does not yield the metric."""
    for trial in trials:
        if trial.block_seconds and metric not in trial.metrics:
            raise ExperimentError(
                f"compare(): {trial.heading()} yields no metric {metric!r} (it yields "
                f"{', '.join(trial.metrics) or 'none'}).\n"
                f'Yield it with each step: yield n, {{"{metric}": value}}; or compare '
                f"a quantity: {', '.join(QUANTITIES)}."
            )


def make_variants(
    experiment: object,
    places: Sequence[Place | None],
    choices: Mapping[str, object],
    *,
    whole_runs: bool,
) -> list[Variant]:
    """Return every combination of experiments, places and choices: baseline first."""
    named = isinstance(experiment, Mapping)
    experiments = (
        [resolve("compare()", e, str(name)) for name, e in experiment.items()]
        if isinstance(experiment, Mapping)
        else [resolve("compare()", experiment)]
    )
    lists = {k: list(v) for k, v in choices.items() if isinstance(v, (list, range))}
    for knob, values in lists.items():
        check_choices("compare()", knob, values)
    # Of each choice its value, and what it is called.
    named_choices = [list(zip(v, name_choices(v), strict=True)) for v in lists.values()]
    combinations = [
        dict(zip(lists, chosen, strict=True))
        for chosen in itertools.product(*named_choices)
    ]
    variants: list[Variant] = []
    for chosen, place, combination in itertools.product(
        experiments, places, combinations
    ):
        values = {knob: value for knob, (value, _) in combination.items()}
        bound = chosen.bind("compare()", {**choices, **values})
        stage = prepare(place, chosen, bound)
        told = {RANKS: str(count_ranks(place))} if len(places) > 1 else {}
        told |= {knob: name for knob, (_, name) in combination.items()}
        parts = [chosen.name] if named or not told else []
        parts += [f"{knob}={name}" for knob, name in told.items()]
        label = ", ".join(parts)
        same = sum(v.label.split(" (again")[0] == label for v in variants)
        label += f" (again{f' {same}' if same > 1 else ''})" if same else ""
        variants.append(Variant(stage, label, Origin.find(chosen), whole_runs))
    if len(variants) < 2:
        name = experiments[0].name if experiments else "nothing"
        raise ExperimentError(
            f"compare(): one variant only ({name}); there is nothing to compare.\n"
            "Give a knob a list, as in batch_size=[32, 64], or pass several "
            'experiments: {"plain": f, "other": g}.'
        )
    return variants


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


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
    texts = [write(value) for value in values]
    names = []
    for value, text in zip(values, texts, strict=True):
        alike: list[object] = []
        for other, its_text in zip(values, texts, strict=True):
            if its_text == text and not any(is_same(other, known) for known in alike):
                alike.append(other)
        place = next(i for i, known in enumerate(alike, 1) if is_same(value, known))
        names.append(f"{text} ({place})" if len(alike) > 1 else text)
    return names


def check_choices(caller: str, knob: str, values: list[object]) -> None:
    """Raise ExperimentError where a list of choices is empty."""
    if not values:
        raise ExperimentError(
            f"{caller}: {knob}={values!r} is an empty list of choices.\n"
            f"Name two values or more, the baseline first: {knob}=[…, …]."
        )
