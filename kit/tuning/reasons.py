"""Why these settings, in plain English."""

from __future__ import annotations

import math
from collections.abc import Mapping

from kit.figures import format_bytes, format_number, format_ratio, format_seconds
from kit.stats import SAME, Estimate, judge_ratio
from kit.tuning.prediction import (
    PREFETCH,
    choose_persistence,
    find_limits,
    starting_seconds,
)
from kit.tuning.probes import Probes

STREAM_NOTE = (
    "The data set is a stream: several workers each read all of it, unless it shares "
    "the samples out itself by torch.utils.data.get_worker_info()."
)
#: What takes more than half of a batch's time is what it is bound by.
_HALF = 0.5
#: A step so many times as long as making a batch leaves workers nothing to gain.
_LONG = 10
#: A measurement this far below its prediction is worth a sentence.
_SHORT = 0.8


def find_bound(probes: Probes) -> str:
    """Return what a loader is bound by, in one word.

    >>> find_bound(Probes(8, 100, 2, load_seconds=1.0, waiting_seconds=0.9))
    'latency'
    """
    load = probes.load_seconds
    if math.isnan(load):
        return "decode"
    if probes.waiting_seconds > _HALF * load:
        return "latency"
    alone = probes.alone_seconds if probes.alone_seconds > 0 else load
    if load - alone > _HALF * load:
        return "transport"
    collate = probes.collate_seconds
    return "collate" if collate > _HALF * load else "decode"


def write_reason(
    probes: Probes,
    settings: Mapping[str, object],
    predicted: Mapping[int, float],
    measured: Mapping[int, Estimate],
) -> str:
    """Say why these settings were chosen, in a few sentences."""
    workers = int(str(settings["num_workers"]))
    told = [_explain_workers(probes, workers, predicted)]
    if short := _explain_shortfall(probes, workers, predicted, measured):
        told.append(short)
    if workers:
        told += _explain_rest(probes, workers, settings)
    return " ".join(told)


def _explain_workers(
    probes: Probes, workers: int, predicted: Mapping[int, float]
) -> str:
    if math.isnan(probes.load_seconds):
        return "No worker was tried."
    step, carry, load, alone = (
        format_seconds(seconds)
        for seconds in (
            probes.step_seconds,
            probes.carry_seconds,
            probes.load_seconds,
            probes.alone_seconds,
        )
    )
    if workers == 0 and probes.step_seconds > _LONG * probes.alone_seconds:
        return (
            f"The step sets the pace: it takes {step}, making a batch only {alone}. "
            "Workers gain nothing."
        )
    if workers == 0:
        return (
            f"Workers do not pay: this process makes a batch in {alone}; a worker "
            f"takes {load}, and taking it over {carry}."
        )
    tightest, many = find_limits(probes, workers).tightest, _count(workers)
    if tightest == "main":
        return (
            f"The step sets the pace: it takes {step}, and taking a batch over {carry} "
            f"more. With {load} for a batch {many} can keep up; more gain nothing."
        )
    bound = find_bound(probes)
    part, doing = {
        "latency": (probes.waiting_seconds, "waiting"),
        "transport": (probes.load_seconds - probes.alone_seconds, "handing it over"),
        "collate": (probes.collate_seconds, "collating"),
        "decode": (math.nan, "computing samples"),
    }[bound]
    share = "most" if math.isnan(part) else f"{part / probes.load_seconds:.0%}"
    told = f"The loader is {bound}-bound: a worker needs {load} for a batch, {share} "
    told += f"of it for {doing}. "
    if tightest == "cores":
        beside = " and the step" if probes.step_seconds else ""
        verb = "keeps" if workers == 1 and not beside else "keep"
        return told + (
            f"{many}{beside} {verb} {probes.cores} cores busy; more gain nothing."
        )
    if workers >= max(predicted):
        return told + f"More than {many} would share that, but none were in question."
    return told + "More workers would share that, but they cost more than they bring."


def _explain_shortfall(
    probes: Probes,
    workers: int,
    predicted: Mapping[int, float],
    measured: Mapping[int, Estimate],
) -> str:
    if workers not in measured:
        return "There was no time to measure this: it is predicted."
    share = measured[workers].value / predicted[workers]
    tried = {n: m.value / predicted[n] for n, m in measured.items() if n}
    threads = probes.step_cores > 1.2 and tried and min(tried.values()) < _SHORT
    if threads:
        return (
            f"The step's threads (they use {probes.step_cores:.2g} cores) and the "
            "workers get in each other's way: try torch.set_num_threads with fewer."
        )
    if share < _SHORT:
        return (
            f"It is slower than predicted ({format_ratio(share)}): cores that others "
            "use, or memory that all share, are not in the model."
        )
    return ""


def _explain_rest(
    probes: Probes, workers: int, settings: Mapping[str, object]
) -> list[str]:
    """Say why this prefetch_factor and these persistent_workers."""
    told = []
    uneven = f"slow batches take {format_ratio(probes.unevenness)} the mean time"
    prefetch = settings.get("prefetch_factor")
    if isinstance(prefetch, int) and prefetch > PREFETCH:
        told.append(
            f"prefetch_factor={prefetch}, because {uneven}: meanwhile the other "
            "workers need room."
        )
    elif isinstance(prefetch, int) and prefetch < PREFETCH:
        size = format_bytes(probes.batch_bytes)
        told.append(f"prefetch_factor={prefetch}, because batches of {size} need room.")
    if choose_persistence(probes, workers):
        cost = format_seconds(starting_seconds(probes, workers))
        keep = settings.get("persistent_workers")
        told.append(
            f"persistent_workers={keep or 'True'}, because starting them anew costs "
            f"{cost} at each epoch."
            if keep or keep is None
            else f"Starting workers costs {cost} at each epoch."
        )
    return told


def _count(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


def compare_rates(one: Estimate, other: Estimate) -> Estimate:
    """Return the ratio of two rates that were measured one after another.

    Its interval holds the errors of both; it is unknown where one of theirs is.

    >>> compare_rates(Estimate(30.0, 30.0, 30.0), Estimate(20.0, 20.0, 20.0))
    Estimate(value=1.5, low=1.5, high=1.5)
    """
    half = math.hypot(*(math.log(rate.high / rate.low) / 2 for rate in (one, other)))
    value = one.value / other.value
    return Estimate(value, value * math.exp(-half), value * math.exp(half))


def write_finding(settings: Mapping[str, object], rates: Mapping[int, Estimate]) -> str:
    """Say the result in one sentence, of what was measured and by its intervals."""
    workers = int(str(settings["num_workers"]))
    chosen = f"num_workers={workers}"
    if workers not in rates:
        return f"{chosen} is predicted to be as fast as any; it was not measured"
    if workers == 0 or 0 not in rates:
        others = [rate for n, rate in rates.items() if n != workers]
        ratios = [compare_rates(rate, rates[workers]) for rate in others]
        clearly = "" if all(ratio.high <= SAME for ratio in ratios) else "clearly "
        return f"{chosen}: no other number that was tried is {clearly}faster"
    value, low, high = compare_rates(rates[workers], rates[0])
    verdict, said = judge_ratio(low, high), format_ratio(value)
    interval = "(its interval is unknown)"
    if not math.isnan(low):
        interval = f"[{format_number(low)}, {format_number(high)}]"
    if verdict == "cannot tell":
        return f"Cannot tell how {chosen} compares with none: {said} {interval}"
    if verdict == "same":
        return f"{chosen} is as fast as none: {said} {interval}"
    return f"{chosen} is {said} as fast as none {interval}"
