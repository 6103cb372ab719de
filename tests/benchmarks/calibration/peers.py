"""The tools that people use today, asked the same question within the same budget.

Both time `next(generator)`, all of the baseline's first and then all of the variant's,
as their documentation does. An error of the experiment, its end included, is raised.
"""

import math
import time
from collections.abc import Callable, Generator
from typing import Any

Start = Callable[[], Generator[Any, None, None]]
#: `Compare` paints every median within 1 % of the best alike.
_SAME_COLOUR = 1.01
#: pyperf's defaults: a value lasts at least this long, in seconds; so many at least.
_MIN_TIME, _LEAST_VALUES = 0.1, 3
#: Speed of the variant over the baseline, an interval, and the tool's verdict.
Outcome = tuple[float, float, float, str]


def _judge(ratio, low, high, *, differ):
    verdict = "faster" if ratio > 1 else "slower"
    return ratio, low, high, verdict if differ else "cannot tell"


def ask_adaptive_autorange(baseline, variant, seconds):
    """Compare with `torch.utils.benchmark`, half of the seconds for each.

    The library has no test of its own. Two differ here where a reader would say so: the
    interquartile ranges of their `Measurement`s are disjoint, and the colours in
    `Compare` differ. That is the kindest reading: either alone raises more false
    alarms. The ratio's interval is spanned by the two ranges. `min_run_time` makes it
    use the whole budget, as the others do.
    """
    a, b = (_autorange(start, seconds / 2) for start in (baseline, variant))
    ratio = a.median / b.median
    low, high = a._p25 / b._p75, a._p75 / b._p25
    differ = (low > 1 or high < 1) and max(ratio, 1 / ratio) > _SAME_COLOUR
    return _judge(ratio, low, high, differ=differ)


def _autorange(start, seconds):
    import torch
    from torch.utils.benchmark import Timer

    generator = start()
    try:
        next(generator)  # set-up is not what is compared
        timer = Timer(
            "next(generator)",
            globals={"generator": generator},
            num_threads=torch.get_num_threads(),  # its default is 1, whatever was set
        )
        return timer.adaptive_autorange(min_run_time=seconds, max_run_time=seconds)
    finally:
        generator.close()


def ask_pyperf(baseline, variant, seconds):
    """Compare with pyperf, half of the seconds for each.

    This is the protocol of one of its workers: loops are doubled until a value lasts
    0.1 s, one warm-up, then values; judged by what `pyperf compare_to` uses. By default
    it starts twenty workers for each side; importing PyTorch in each would take many
    times these budgets. So there is one, and as many values as the budget holds. The
    interval is that of its t test: means differ by `t` times the standard error.
    """
    import pyperf
    from pyperf._compare import CompareData, CompareResult
    from pyperf._utils import pooled_sample_variance, tdist95conf_level

    samples = [_values(start, seconds / 2) for start in (baseline, variant)]
    count = min(map(len, samples))  # its test needs equal numbers
    told = {"metadata": {"name": "step"}, "collect_metadata": False}
    runs = [pyperf.Run(sample[:count], **told) for sample in samples]
    a, b = (pyperf.Benchmark([run]) for run in runs)
    result = CompareResult(CompareData("baseline", a), CompareData("variant", b))
    spread = pooled_sample_variance(a.get_values(), b.get_values())
    error = math.sqrt(2 * spread / count)
    half = tdist95conf_level(2 * count - 2) * error
    low, high = ((a.mean() + sign * half) / b.mean() for sign in (-1, 1))
    return _judge(1 / result.norm_mean, low, high, differ=result.significant)


def _values(start, seconds):
    """Return seconds per step, as one worker of pyperf takes them."""
    begun = time.perf_counter()
    generator = start()

    def time_loops():
        before = time.perf_counter()
        for _ in range(loops):
            next(generator)
        return time.perf_counter() - before

    try:
        next(generator)
        loops = 1
        while (raw := time_loops()) < _MIN_TIME:
            loops *= 2
        raw, values = time_loops(), []  # the first is the warm-up
        while (
            len(values) < _LEAST_VALUES
            or time.perf_counter() - begun + raw / 2 < seconds
        ):
            raw = time_loops()
            values.append(raw / loops)
        return values
    finally:
        generator.close()


#: Each takes two callables that start a generator (baseline, variant) and the total
#: budget in seconds.
PEERS = {"adaptive_autorange": ask_adaptive_autorange, "pyperf": ask_pyperf}
