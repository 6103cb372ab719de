"""One search for the settings of a loader, from the first look to the answer."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kit import clock, machine, system
from kit.experiment import ExperimentError
from kit.figures import format_bytes
from kit.hints import shared_memory_hint
from kit.machine import this_machine
from kit.progress import Stopped
from kit.stats import Estimate
from kit.tuning import checks, faults, prediction, probes
from kit.tuning.loop import Loop, count_bytes, count_items, index_batches, is_stream
from kit.tuning.probes import Probes, Watch
from kit.tuning.reasons import STREAM_NOTE, write_reason
from kit.tuning.result import LoaderTuning
from kit.variant import let_go

#: Loaders with workers are started at most so often.
_MOST_STARTS = 3
#: Shares of the time: single samples, one worker, no workers, the step, each check.
_SAMPLES, _ONE, _NONE, _STEP, _CHECK = 0.03, 0.1, 0.06, 0.04, 0.15
#: Where the batches of one worker would take a larger share, less is probed.
_SLOW_SHARE, _SLOW_BATCHES = 0.2, 4
#: Where others use more cores than this, the report says so.
_OTHERS_CORES = 0.2
#: A worker that gives nothing for so long hangs; processes that are not forked import
#: their libraries first. Slow batches have more.
_PATIENCE, _PATIENCE_WITH_IMPORTS, _PATIENCE_PER_BATCH = 6.0, 25.0, 3.0


class Search:
    """Looks at a loader, probes it, predicts how fast it would be, verifies."""

    def __init__(
        self,
        make_loader: Callable[..., Any],
        step: Callable[[Any], object] | None,
        taken: Sequence[str],
        candidates: Sequence[int] | None,
        watch: Watch,
    ) -> None:
        self._make_loader, self._step, self._taken = make_loader, step, taken
        self._asked, self._watch = candidates, watch
        self._name = checks.name_of(make_loader)
        self._shared_memory = machine.find_shared_memory(Path("/"))[0]
        self._patience = _PATIENCE
        self._loader: Any = None
        self._batch: Any = None
        self._measured: dict[int, Estimate] = {}
        self._probes = Probes(1, 0, this_machine().cores or 1)

    def find(self) -> LoaderTuning:
        """Look, probe, predict, verify."""
        before = system.read_load()
        self._look()
        if self._may_have(1):
            self._probe_worker()
        self._probe_here()
        candidates = self._list_candidates()
        predicted = self._predict(candidates)
        self._measured = {n: r for n, r in self._measured.items() if n in predicted}
        while (workers := self._next(predicted)) is not None:
            self._measure(workers)
        chosen = prediction.choose(predicted, self._measured)
        settings, after = self._settings(chosen), system.read_load()
        return LoaderTuning(
            settings=settings,
            predicted=predicted,
            measured=dict(sorted(self._measured.items())),
            regret=prediction.bound_regret(chosen, predicted, self._measured),
            probes=self._probes,
            reason=self._reason(settings, predicted) + _tell_others(before, after),
            seconds=after.wall - before.wall,
            starts=self._watch.starts,
        )

    def _reason(
        self, settings: Mapping[str, object], predicted: Mapping[int, float]
    ) -> str:
        if not prediction.fits(self._probes, 1, 1, self._shared_memory):
            size = format_bytes(self._probes.batch_bytes)
            hint = shared_memory_hint()
            return f"Batches of {size} from a worker have no room. {hint}"
        reason = write_reason(self._probes, settings, predicted, self._measured)
        return f"{reason} {STREAM_NOTE}" if is_stream(self._loader) else reason

    def _settings(self, workers: int) -> dict[str, object]:
        """Return what `make_loader` gets: all it takes, as DataLoader allows it."""
        keep = prediction.choose_persistence(self._probes, workers)
        ahead = prediction.choose_prefetch(self._probes, workers, self._shared_memory)
        values = {
            "num_workers": workers,
            "prefetch_factor": ahead if workers else None,
            "persistent_workers": keep,
        }
        return {name: values[name] for name in self._taken}

    def _loop(self, workers: int) -> Loop:
        settings = self._settings(workers)
        return Loop(self._name, self._make_loader, settings, self._step, self._patience)

    def _look(self) -> None:
        """Check the loaders, read a sample or two.

        What they take tells how long a worker may take before it hangs.
        """
        self._watch.say("looking at the data set")
        each = 0.0
        kinds = [number for number in (0, 1) if self._may_have(number)]
        for workers in kinds or [1]:
            loop = self._loop(workers)
            with _explained(loop):
                loader = self._make_loader(**loop.settings)
                checks.check_loader(loader, self._name, loop.settings)
            self._loader = loader if self._loader is None else self._loader
        loop.dataset, samples = loader.dataset, []
        with _explained(loop):
            indices = next(iter(index_batches(self._loader)), [])
            for index in indices[:2]:
                begun = clock.CLOCK.wall()
                with faults.named(loader.dataset, index):
                    samples.append(probes.read_sample(loader.dataset, index))
                each = clock.CLOCK.wall() - begun
        forked = checks.start_method(loader) == "fork"
        self._patience = _PATIENCE if forked else _PATIENCE_WITH_IMPORTS
        self._patience += _PATIENCE_PER_BATCH * each * len(indices)
        size = max(map(count_bytes, samples), default=0) * len(indices)
        batches = checks.length_of(loader) or math.inf
        self._note(batch_bytes=size, batches_per_epoch=batches)

    def _may_have(self, workers: int) -> bool:
        """Return whether so many workers may be chosen; 1 stands for any."""
        if self._asked is None:
            return True
        return workers in self._asked or (workers == 1 and max(self._asked) > 1)

    def _note(self, **found: Any) -> None:
        self._probes = dataclasses.replace(self._probes, **found)

    def _probe_worker(self) -> None:
        if not prediction.fits(self._probes, 1, 1, self._shared_memory):
            return
        loop, seconds = self._loop(1), _ONE * self._watch.seconds
        self._watch.starts += 1
        with _explained(loop):
            found, measured = probes.probe_worker(loop, self._watch, seconds)
        self._note(**found, alone_seconds=found["load_seconds"])
        self._batch = loop.batch
        if measured is not None and (self._asked is None or 1 in self._asked):
            self._measured[1] = measured

    def _probe_here(self) -> None:
        """Probe this process: samples, batches without workers, the step."""
        seconds, loop = self._watch.seconds, self._loop(0)
        slow = _SLOW_BATCHES * self._probes.load_seconds > _SLOW_SHARE * seconds
        if not slow:
            self._watch.say("timing single samples")
            loop.dataset = self._loader.dataset
            with _explained(loop):
                sample, collate = probes.probe_samples(
                    self._loader, _SAMPLES * seconds, index_batches(self._loader)
                )
            self._note(sample_seconds=sample, collate_seconds=collate)
        if self._may_have(0) and not slow:
            with _explained(loop):
                alone, measured = probes.probe_alone(loop, self._watch, _NONE * seconds)
            self._batch = loop.batch
            self._note(
                alone_seconds=alone,
                batch_size=count_items(loop.batch, self._loader.batch_size),
                batch_bytes=count_bytes(loop.batch),
            )
            if measured is not None:
                self._measured[0] = measured
        if self._step is not None and self._batch is not None:
            loop.failed_in_step = True  # nothing else can fail from here
            with _explained(loop):
                took, cores = probes.probe_step(
                    self._step, self._batch, self._watch, _STEP * seconds
                )
            self._note(step_seconds=took, step_cores=cores)

    def _list_candidates(self) -> list[int]:
        usual = prediction.list_candidates(self._probes, self._shared_memory)
        if self._asked is None:
            return usual
        if math.isnan(self._probes.load_seconds):
            fitting = [n for n in self._asked if n == 0]
        else:
            fitting = [
                n
                for n in self._asked
                if n == 0 or prediction.fits(self._probes, n, 1, self._shared_memory)
            ]
        if not fitting:
            raise ExperimentError(
                f"tune_loader(): num_workers={self._asked}: batches of "
                f"{format_bytes(self._probes.batch_bytes)} from so many workers have "
                f"no room.\n{shared_memory_hint()}"
            )
        return fitting

    def _predict(self, candidates: Sequence[int]) -> dict[int, float]:
        keeps = getattr(self._loader, "persistent_workers", False)
        return {
            n: prediction.predict_rate(
                self._probes,
                n,
                persistent=bool(self._settings(n).get("persistent_workers", keeps)),
            )
            for n in candidates
        }

    def _next(self, predicted: Mapping[int, float]) -> int | None:
        """Return the number of workers to measure next, None where it is enough."""
        workers = prediction.choose_next(predicted, self._measured)
        if workers is None:
            return None
        if workers and self._watch.starts >= _MOST_STARTS:
            return None
        batch = self._probes.load_seconds if workers else self._probes.alone_seconds
        starting = prediction.starting_seconds(self._probes, max(workers, 1))
        needed = 3 * batch + starting + _CHECK / 3 * self._watch.seconds
        return workers if needed < self._watch.left else None

    def _measure(self, workers: int) -> None:
        loop, watch = self._loop(workers), self._watch
        watch.starts += workers > 0
        with _explained(loop):
            self._measured[workers] = probes.measure_workers(
                loop, watch, min(_CHECK * watch.seconds, 0.6 * watch.left)
            )


def _tell_others(before: system.Load, after: system.Load) -> str:
    """Say where other programs were too busy for the figures to last."""
    cores = system.describe_load(before, after)["others_cores"]
    if cores < _OTHERS_CORES:
        return ""
    return (
        f" Other programs kept {cores:.1f} cores busy meanwhile: run this again when "
        "they rest."
    )


@contextlib.contextmanager
def _explained(loop: Loop) -> Generator[None, None, None]:
    """Put what goes wrong with a loader in words; an interrupt passes."""
    try:
        yield
    except Stopped:
        raise
    except Exception as error:
        cause = error.__cause__ if isinstance(error, ExperimentError) else error
        if cause is None:
            raise
        explained = faults.explain(cause, loop)
        let_go(error)
        raise explained from explained.__cause__
