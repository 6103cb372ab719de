"""Experiments built to deceive `kit.compare`: how each does it, and the truth.

Each maker takes a stage and returns two experiments by name, the baseline first. On
`Stage` work takes real time, on `SimulatedStage` only a fake clock moves; where both
must differ, there are two makers. `LIARS` is the table of all of them, with what a tool
may answer:

>>> liar = find("growing step")
>>> with Stage(seconds=2.0) as stage:
...     baseline, variant = liar.real(stage).values()
>>> liar.truth, next(variant())
('slower', 1)
"""

from liars.costs import (
    cached_result,
    eight_threads,
    eight_threads_for_real,
    prefetch_head_start,
    prefetch_head_start_for_real,
    sleeps_first,
    stolen_core,
    stolen_core_for_real,
    warm_page_cache,
    warm_page_cache_for_real,
)
from liars.judging import CHANGES, Liar
from liars.leaks import (
    jumping_clock,
    leaked_autocast,
    leaked_threads,
    model_trained_by_both,
    neighbour_half_way,
    neighbour_half_way_for_real,
    throttled_half,
    worker_left_over,
    worker_left_over_for_real,
)
from liars.stages import SimulatedStage, Stage
from liars.steps import (
    collection_storm,
    collection_storm_for_real,
    compiles_late,
    compiles_late_for_real,
    fewer_items,
    growing_step,
    item_in_one,
    never_synchronised,
    rare_step,
    shrinking_data,
    unequal_work,
)

# The table


def _both(name, truth, make, **more):
    return Liar(name, truth, make, make, **more)


__all__ = ["LIARS", "Liar", "SimulatedStage", "Stage", "find"]

LIARS = [
    Liar("stolen core", "slower", stolen_core, stolen_core_for_real, 1 / 2),
    Liar("eight threads", "slower", eight_threads, eight_threads_for_real, 5 / 12),
    Liar(
        "prefetch head start",
        "same",
        prefetch_head_start,
        prefetch_head_start_for_real,
        excuses=CHANGES,
        seconds=4.0,
    ),
    _both("leaked autocast", "slower", leaked_autocast, ratio=1 / 2),
    _both("leaked thread count", "slower", leaked_threads, ratio=1 / 2),
    Liar(
        "warm page cache",
        "same",
        warm_page_cache,
        warm_page_cache_for_real,
        # Longer is right: the cold reads weigh less and less.
        excuses=(*CHANGES, "measure about"),
    ),
    _both("throttled half", "same", throttled_half, ratio=1.0),
    _both(
        "queue never synchronised",
        "slower",
        never_synchronised,
        ratio=1 / 2,
        uses_device=True,
    ),
    _both(".item() in one", "same", item_in_one, ratio=1.0, uses_device=True),
    _both("unequal work", "faster", unequal_work, ratio=1.25),
    _both(
        "fewer items than it says",
        "same",
        fewer_items,
        not_catchable="Only the experiment knows how many items it handled.",
        deceived="faster",
    ),
    _both("growing step", "slower", growing_step, excuses=CHANGES),
    Liar(
        "garbage-collection storm",
        "slower",
        collection_storm,
        collection_storm_for_real,
        excuses=CHANGES,
    ),
    Liar(
        "compiles late",
        "faster",
        compiles_late,
        compiles_late_for_real,
        excuses=CHANGES,
    ),
    _both("cached result", "same", cached_result, excuses=(*CHANGES, "start")),
    _both("rare 100 × step", "slower", rare_step, excuses=CHANGES),
    Liar(
        "neighbour half-way",
        "same",
        neighbour_half_way,
        neighbour_half_way_for_real,
        1.0,
    ),
    _both("model trained by both", "same", model_trained_by_both, ratio=1.0),
    Liar("worker left over", "same", worker_left_over, worker_left_over_for_real, 1.0),
    Liar("jumping clock", "same", jumping_clock, None, excuses=CHANGES),
    _both("sleeps before its first yield", "same", sleeps_first, ratio=1.0),
    _both("shrinking data", "same", shrinking_data, ratio=1.0),
]


def find(name):
    """Return the liar of this name."""
    return next(liar for liar in LIARS if liar.name == name)
