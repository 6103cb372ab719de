"""`tune_loader`: how many workers, found by a few probes and a verified prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kit import clock, state
from kit.experiment import referred_objects, smoke
from kit.progress import Progress, take_turn
from kit.state import Shared
from kit.tuning import checks
from kit.tuning.probes import Watch
from kit.tuning.result import LoaderTuning
from kit.tuning.search import Search

_SMOKE_SECONDS = 1.0


def tune_loader(
    make_loader: Callable[..., Any],
    *,
    step: Callable[[Any], object] | None = None,
    num_workers: int | Iterable[int] | None = None,
    seconds: float = 20.0,
) -> LoaderTuning:
    """Find the settings of a DataLoader with which a training loop is fastest.

    `make_loader(*, num_workers, …)` returns a DataLoader; it may also take
    `prefetch_factor` and `persistent_workers`. `step(batch)` does one training step;
    without it, batches are only loaded. Probes of a sample, a batch, its way from one
    worker and the step predict the speed (`kit.costs.predict_loader`) for each of
    `num_workers`; the best few are measured. Takes at most `seconds` and three starts
    of a loader with workers, unless single batches take seconds. What the step trains
    and all random state are put back. Raises ExperimentError where a loader cannot be
    made, or fails.

    >>> from torch.utils.data import DataLoader
    >>> def make_loader(*, num_workers):
    ...     return DataLoader(range(10_000), batch_size=8, num_workers=num_workers)
    >>> tune_loader(make_loader, num_workers=[0, 1], seconds=1.0).num_workers
    0
    """
    taken = checks.check_maker(make_loader)
    candidates = checks.check_workers(num_workers)
    checks.check_rest(step, seconds)
    seconds = min(seconds, _SMOKE_SECONDS) if smoke() else seconds
    shared = Shared(referred_objects(step or _no_step))
    progress = Progress(f"tuning {checks.name_of(make_loader)}")
    with state.kept(), progress, take_turn(progress):
        progress.begin(0, 1, seconds)
        deadline = clock.CLOCK.wall() + seconds
        watch = Watch(progress, shared, seconds, deadline)
        return Search(make_loader, step, taken, candidates, watch).find()


def _no_step(batch: Any) -> None:
    """Do nothing with a batch."""
