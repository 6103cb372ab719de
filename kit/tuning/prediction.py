"""What follows from the probes: which settings come into question, and how fast."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from kit.costs import predict_loader
from kit.stats import SAME, Estimate
from kit.tuning.probes import Probes

#: Workers that only wait cost no core; their memory sets a limit all the same.
_MOST_PER_CORE, _LEAST_LIMIT = 8, 8
#: What DataLoader takes where nothing is said, and the most that is proposed.
PREFETCH, _MOST_PREFETCH = 2, 8
#: Of the memory for batches on their way this share may be taken.
_SHARE_OF_MEMORY = 0.5
#: A loader is uneven where slow batches take longer than this, over the mean one.
_UNEVEN = 2.0
#: What was not measured must be better by so much to be chosen.
_SURELY = 1.1
#: One that is slower than this share of its prediction meets what the model leaves out.
_FAR_SHORT = 0.8
#: Workers persist where starting them takes over 0.5 % of an epoch.
_WORTH_KEEPING = 0.005


class Limits(NamedTuple):
    """Seconds per batch that the workers, the main process, the cores need at least."""

    workers: float
    main: float
    cores: float

    @property
    def tightest(self) -> str:
        """The name of the one that sets the pace."""
        return max(self._fields, key=lambda name: getattr(self, name))


def find_limits(probes: Probes, workers: int) -> Limits:
    """Split what `predict_loader` takes the maximum of, for one worker or more."""
    computing = (
        probes.load_seconds
        - probes.waiting_seconds
        + probes.step_cores * probes.step_seconds
        + probes.carry_seconds
    )
    return Limits(
        probes.load_seconds / workers,
        probes.step_seconds + probes.carry_seconds,
        computing / probes.cores,
    )


def predict_rate(probes: Probes, workers: int, *, persistent: bool = False) -> float:
    """Predict items per second, the ends of epochs included.

    At each end workers are started anew unless they are `persistent`, the next first
    batch is waited for, and in the last turn some workers have nothing left to do.
    """
    seconds = predict_loader(
        workers,
        load_seconds=probes.load_seconds if workers else probes.alone_seconds,
        step_seconds=probes.step_seconds,
        waiting_seconds=probes.waiting_seconds if workers else 0.0,
        carry_seconds=probes.carry_seconds,
        cores=probes.cores,
        step_cores=probes.step_cores,
    )
    batches = probes.batches_per_epoch
    if workers and batches < math.inf:
        main = probes.step_seconds + probes.carry_seconds
        epoch = max(
            batches * seconds,
            math.ceil(batches / workers) * probes.load_seconds + main,
            probes.load_seconds + batches * main,
        )
        if not persistent:
            epoch += starting_seconds(probes, workers)
        seconds = epoch / batches
    return probes.batch_size / max(seconds, 1e-9)


def starting_seconds(probes: Probes, workers: int) -> float:
    """Return what starting and ending so many workers adds to an epoch."""
    return probes.start_seconds + (workers - 1) * probes.fork_seconds


def list_candidates(probes: Probes, memory_bytes: int | None) -> list[int]:
    """Return the numbers of workers that come into question.

    Up to the number at which the workers no longer set the pace, or the number of
    cores, and one more; larger ones ever further apart. Batches on their way must fit
    into half of the memory for them.
    """
    if math.isnan(probes.load_seconds):
        return [0]
    limits = find_limits(probes, 1)
    enough = math.ceil(limits.workers / max(limits.main, limits.cores, 1e-9))
    most = max(_LEAST_LIMIT, _MOST_PER_CORE * probes.cores)
    limit = min(max(enough, probes.cores) + 1, most)
    steps = [*range(9), *(m * 2**k for k in range(2, 10) for m in (3, 4))]
    found = sorted({n for n in steps if n <= limit})
    return [n for n in found if n == 0 or fits(probes, n, 1, memory_bytes)]


def fits(probes: Probes, workers: int, prefetch: int, memory: int | None) -> bool:
    """Return whether the batches on their way fit into the memory for them."""
    on_their_way = (workers * prefetch + 1) * probes.batch_bytes
    return memory is None or on_their_way <= _SHARE_OF_MEMORY * memory


def choose_prefetch(probes: Probes, workers: int, memory_bytes: int | None) -> int:
    """Return how many batches each worker should make ahead.

    While one makes a batch k times as slow as the mean, the others make k each; they
    must come in order, so there must be room for those.
    """
    wanted = PREFETCH
    if probes.unevenness > _UNEVEN:
        wanted = min(_MOST_PREFETCH, math.ceil(probes.unevenness) + 1)
    while wanted > 1 and not fits(probes, workers, wanted, memory_bytes):
        wanted -= 1
    return wanted


def choose_persistence(probes: Probes, workers: int) -> bool:
    """Return whether workers should live on from one epoch to the next."""
    batches = probes.batches_per_epoch
    unknown = math.isnan(probes.load_seconds) or not batches < math.inf
    if workers == 0 or unknown:
        return False
    epoch = batches * probes.batch_size / predict_rate(probes, workers)
    return starting_seconds(probes, workers) > _WORTH_KEEPING * epoch


def choose(predicted: Mapping[int, float], measured: Mapping[int, Estimate]) -> int:
    """Return the fewest workers that are as fast as the fastest, within 2 %.

    One that there was no time to measure is chosen only where it must be faster by a
    tenth, even if it falls as far short of its prediction as any that was measured.
    """
    rates = {n: rate.value for n, rate in measured.items()}
    share = min([1.0, *(rate / predicted[n] for n, rate in rates.items() if n)])
    expected = {n: rate * share for n, rate in predicted.items() if n not in rates}
    if max(expected.values(), default=0.0) > _SURELY * max(rates.values(), default=0.0):
        rates |= expected
    best = max(rates.values())
    return min(n for n, rate in rates.items() if rate * SAME >= best)


def choose_next(
    predicted: Mapping[int, float], measured: Mapping[int, Estimate]
) -> int | None:
    """Return which number of workers to measure next; None where none can win.

    It is the fewest of those that may be best. Where as good a one fell far short of
    its prediction, the most tells whether workers help beyond what the model knows.
    Where the best one beat its prediction, the next larger number may gain as well.
    """
    left = {n: rate for n, rate in predicted.items() if n not in measured}
    if not left:
        return None
    most = max(left.values())
    best = max((rate.value for rate in measured.values()), default=0.0)
    if most * _excess(predicted, measured) > best * (1 + 1e-9):
        equal = [n for n, rate in predicted.items() if rate * SAME >= most]
        tried = [n for n in equal if n and n in measured]
        short = [n for n in tried if measured[n].value < _FAR_SHORT * predicted[n]]
        untried = [n for n in equal if n in left]
        return max(untried) if short and short == tried else min(untried)
    chosen = choose(predicted, measured)
    surprising = _excess(predicted, {chosen: measured[chosen]}) > _SURELY
    larger = min((n for n in predicted if n > chosen), default=None)
    return larger if surprising and larger in left else None


def bound_regret(
    chosen: int, predicted: Mapping[int, float], measured: Mapping[int, Estimate]
) -> float:
    """Return by how much the best candidate could beat the chosen one at most.

    As a fraction of the chosen one's speed. A measured one is as fast as the upper end
    of its interval. Any other is no faster than predicted, because each limit of the
    prediction is one of nature, times the most by which a measurement exceeded its own
    prediction, because the probes have errors.
    """
    excess = _excess(predicted, measured)
    bounds = {n: rate * excess for n, rate in predicted.items()}
    for n, rate in measured.items():
        bounds[n] = rate.value if math.isnan(rate.high) else rate.high
    bounds.pop(chosen, None)
    own = measured.get(chosen, Estimate(predicted[chosen], math.nan, math.nan))
    low = own.value if math.isnan(own.low) else own.low
    return max(0.0, max(bounds.values(), default=low) / low - 1)


def _excess(predicted: Mapping[int, float], measured: Mapping[int, Estimate]) -> float:
    shares = [rate.value / predicted[n] for n, rate in measured.items()]
    return max([1.0, *shares])
