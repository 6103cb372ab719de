"""`diagnose`: where a step's time goes, and what removing each cost would save."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

from kit import clock
from kit.choices import Place, Request, check_place, make_variant
from kit.comparison import Comparison
from kit.diagnosis import causes
from kit.diagnosis.advice import advise
from kit.diagnosis.causes import Evidence, saved
from kit.diagnosis.interventions import Intervention, installed, intervene
from kit.diagnosis.places import during
from kit.diagnosis.profiling import Profile, record, watched
from kit.diagnosis.result import Diagnosis
from kit.experiment import Experiment, ExperimentError, describe, named, resolve
from kit.figures import format_value
from kit.machine import this_machine
from kit.measurement import compare_watched
from kit.progress import Progress, Stopped, take_turn
from kit.ratio import SPEED, Ratio, find_doubt
from kit.trial import Trial

#: Of the time, leaving causes out gets at least this share.
_LEAST_SHARE = 0.5
#: Doubts about changes on the way are about less than this.
_FACTOR = 1.25
_BASELINE = "as it is"


def diagnose(
    experiment: object,
    /,
    *,
    seconds: float = 20.0,
    on: Place | None = None,
    **knobs: object,
) -> Diagnosis:
    """Find where a training step's time goes, and what removing each cost would save.

    Profiles a second or so of steps, then runs the experiment beside itself without
    each cost that is suspected: batches kept from before, another number of threads, no
    optimizer step … `seconds` is about how long all of it takes. With `on=ranks` it
    runs on all of these processes, and the first is profiled. Raises ExperimentError
    where the experiment cannot be run or profiled.

    >>> def train(*, size=64):
    ...     import torch
    ...     model = torch.nn.Linear(size, size)
    ...     while True:
    ...         model(torch.ones(8, size)).sum().backward()
    ...         yield 8
    >>> sorted(diagnose(train, seconds=3.0).shares)[:2]
    ['backward', 'forward']
    """
    check_seconds("diagnose()", seconds)
    with named("diagnose()"):
        check_place(on)
        resolved = resolve(experiment)
        bound = resolved.bind(knobs)
    title = f"diagnosing {describe(resolved.name, bound)}"
    with Progress(title, at_once=True) as progress:
        return diagnose_watched(resolved, bound, progress, seconds, on)


def check_seconds(caller: str, seconds: object) -> None:
    """Raise ExperimentError for what is not a time that a diagnosis may take."""
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not (number and 0 < seconds < math.inf):
        raise ExperimentError(
            f"{caller}: seconds={format_value(seconds)} is not a time that it may "
            "take.\nA diagnosis looks at single steps: say how many seconds, 20 as a "
            "rule."
        )


def diagnose_watched(
    experiment: Experiment,
    knobs: Mapping[str, object],
    progress: Progress,
    seconds: float,
    on: Place | None = None,
) -> Diagnosis:
    """Diagnose what `diagnose` was asked for, while somebody watches the progress.

    Raises Stopped where the progress is told to stop before the end: half a diagnosis
    is none.
    """
    with take_turn(progress):
        begun = clock.CLOCK.wall()
        progress.begin(0, 1, seconds)
        variant = watched(on, experiment, knobs)
        with contextlib.closing(variant), during(variant, progress, installed):
            profile, *others = record(variant, progress, seconds=seconds)
        evidence = gather(profile, 1 + len(others))
        suspects = causes.suspect(evidence)
        spent = clock.CLOCK.wall() - begun
        left = max(seconds - spent, _LEAST_SHARE * seconds)
        progress.begin(0, 1, left)
        wrapped = functools.partial(installed, devices=bool(profile.trace.devices))
        variant = make_variant(experiment, knobs, on)
        with contextlib.closing(variant), during(variant, progress, wrapped):
            comparison = _leave_out(experiment, knobs, suspects, progress, left, on)
    if progress.stopping:
        raise Stopped
    return _conclude(experiment, knobs, profile, evidence, suspects, comparison)


def gather(profile: Profile, processes: int = 1) -> Evidence:
    """Return what of a profile a verdict rests on; `processes` share the cores."""
    cores = this_machine().cores
    return Evidence(
        shares=profile.shares,
        shares_by_step=profile.shares_by_step,
        work=profile.work,
        step_seconds=profile.trace.step_seconds,
        optimizers=profile.optimizers,
        threads=profile.threads,
        cores=max(1, cores // processes) if cores else profile.threads,
        children=profile.children,
        exchanges=any(e.is_exchange for t in profile.trace.threads.values() for e in t),
    )


def _leave_out(
    experiment: Experiment,
    knobs: Mapping[str, object],
    suspects: Sequence[Intervention],
    progress: Progress,
    seconds: float,
    on: Place | None,
) -> Comparison | None:
    """Run the experiment beside itself with each intervention, by turns."""
    if not suspects:
        return None
    variants = [
        make_variant(intervene(experiment, what), knobs, on, what.label)
        for what in (Intervention(_BASELINE), *suspects)
    ]
    # Changed experiments are not recorded.
    request = Request(SPEED, seconds, is_kept=False)
    return compare_watched(variants, progress, request)


def _conclude(
    experiment: Experiment,
    knobs: Mapping[str, object],
    profile: Profile,
    evidence: Evidence,
    suspects: Sequence[Intervention],
    comparison: Comparison | None,
) -> Diagnosis:
    measured = comparison.ratios if comparison else {}
    if comparison is not None:
        named = zip(comparison.labels, comparison.trials, strict=True)
        trials = {label: [comparison.baseline, trial] for label, trial in named}
        measured = {k: settle(ratio, trials[k]) for k, ratio in measured.items()}
    removed = _find_savings(evidence, suspects, measured)
    repairs = {w.label: measured[w.label] for w in suspects if w.is_repair}
    savings = removed | _find_repaired(suspects, repairs)
    work, peaks, (flops, moved) = profile.work, profile.peaks, profile.counts
    rates = {
        "compute": flops / max(work.compute, 1e-12) / peaks.flops_per_second,
        "memory": moved / max(work.memory, 1e-12) / peaks.bytes_per_second,
    }
    verdict, reason = causes.conclude(savings, evidence, rates, removed)
    return Diagnosis(
        experiment=experiment,
        knobs=dict(knobs),
        verdict=verdict,
        reason=reason,
        shares=dict(profile.shares),
        savings=savings,
        advice=advise(verdict, repairs, evidence),
        repairs=repairs,
        step_seconds=evidence.step_seconds,
        overhead=(work.overhead + work.optimizer_overhead) / evidence.step_seconds,
        rates=rates,
        profile=profile,
        trials=list(comparison.trials) if comparison else [],
    )


def _find_repaired(
    suspects: Sequence[Intervention], repairs: Mapping[str, Ratio]
) -> dict[str, Ratio]:
    """Return the savings of repairs that make the optimizer's step faster.

    A step that is left out altogether saves more, and trains nothing.
    """
    return {
        what.cause: repairs[what.label]
        for what in suspects
        if what.step in ("foreach", "fused")
        and repairs[what.label].verdict == "faster"
        and saved(repairs[what.label]).low > causes.LEAST_SAVING
    }


def settle(ratio: Ratio, trials: Sequence[Trial]) -> Ratio:
    """Return a ratio as certain where a doubt about it is smaller than itself.

    Speeds that change on the way, by a fifth or so, say little against a larger factor.
    What other programs did to the measurement may be of any size.
    """
    disturbed = any(
        find_doubt(dataclasses.replace(trial, outcome="complete"), SPEED)
        for trial in trials
    )
    if ratio.verdict != "cannot tell" or not ratio.low > _FACTOR or disturbed:
        return ratio
    return dataclasses.replace(ratio, verdict="faster")


def _find_savings(
    evidence: Evidence,
    suspects: Sequence[Intervention],
    measured: Mapping[str, Ratio],
) -> dict[str, Ratio]:
    """Return what the removal of each cause saves: measured, or by its share."""
    savings: dict[str, Ratio] = {}

    def keep(cause: str, ratio: Ratio) -> None:
        known = savings.get(cause)
        if known is None or ratio.value > known.value:
            savings[cause] = ratio

    for what in suspects:
        ratio = measured[what.label]
        if what.step in (None, "skip") and not math.isnan(ratio.value):
            keep(what.cause, ratio)
    for cause, shares in evidence.shares_by_step.items():
        if max(shares, default=0.0) > 0:
            name = "optimizer" if cause == "loops" else cause
            keep(name, causes.estimate(shares))
    return savings
