"""The training loop that is measured: a loader, a step, and when batches came."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import (
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from typing import Any

import psutil

from kit import clock, system
from kit.experiment import Experiment
from kit.hints import name_dead_worker

#: Looks at the processor time of workers lie so far apart, in seconds.
_SECONDS_BETWEEN_LOOKS = 0.05
_PAGE_BYTES = 4096
#: A worker that was killed ends within so long, even on a busy machine.
_SECONDS_TO_END = 5.0


@dataclass
class Epoch:
    """When an epoch was begun, its workers started, its batches came, its end.

    `looks` are (number of batches, processor seconds of workers) on the way.
    """

    begun: float
    started: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    looks: list[tuple[int, float]] = field(default_factory=list)
    ended: float | None = None

    def intervals(self) -> list[float]:
        """Return the seconds between batches; the first batch has none."""
        pairs = zip(self.arrivals, self.arrivals[1:], strict=False)
        return [after - before for before, after in pairs]


@dataclass
class Loop:
    """A training loop over `make_loader(**settings)`, for ever.

    While `stepping`, it does the step on each batch; else it only takes batches over,
    and looks how much processor time their workers use. `pause(seconds)` lets workers
    get two batches ahead; how long the second takes to come over is kept.
    """

    name: str
    make_loader: Callable[..., Any]
    settings: Mapping[str, object]
    step: Callable[[Any], object] | None
    timeout: float
    stepping: bool = False
    epochs: list[Epoch] = field(default_factory=list)
    carries: list[float] = field(default_factory=list)
    batch: Any = None
    dataset: Any = None
    batch_size: int | None = None
    prefetch_factor: int | None = None
    workers: str = ""
    failed_in_step: bool = False
    _pause: float = 0.0
    _looked: float = 0.0

    @property
    def call(self) -> str:
        """How the loader is made, as a reader would write it."""
        return f"{self.name}(num_workers={self.settings['num_workers']})"

    def experiment(self) -> Experiment:
        """Return the loop as the clock drives it."""
        title = "Take batches from a loader."
        return Experiment(self.run, self.name, title, fixed=self.settings)

    def pause(self, seconds: float) -> None:
        """Let workers go on for so long before the next batch is asked for."""
        self._pause = seconds

    def run(self) -> Generator[int, None, None]:
        """Yield the number of samples of each batch."""
        # Only this frame holds the loader: workers that persist end when it does.
        loader = self.make_loader(**self.settings)
        self.dataset, self.batch_size = loader.dataset, loader.batch_size
        self.prefetch_factor = loader.prefetch_factor
        if loader.num_workers and not 0 < loader.timeout < self.timeout:
            loader.timeout = self.timeout
        older = system.find_children()
        while True:
            self.epochs.append(Epoch(clock.CLOCK.wall()))
            batches = iter(loader)
            self.epochs[-1].started = clock.CLOCK.wall()
            while True:
                try:
                    self.batch = self._take(batches)
                except StopIteration:
                    break
                except Exception as error:
                    workers = system.find_children() - older
                    self.workers = _describe(workers)
                    if "timed out" in str(error):
                        _end(workers)
                    raise name_dead_worker(error) from error.__cause__
                items = count_items(self.batch, self.batch_size)
                if self.stepping and self.step is not None:
                    self.failed_in_step = True
                    self.step(self.batch)
                    self.failed_in_step = False
                yield items
            # Workers that persist are asked for the next epoch, others go.
            self.epochs[-1].ended = clock.CLOCK.wall()
            if not self.epochs[-1].arrivals:
                return

    def _take(self, batches: Iterator[Any]) -> Any:
        epoch, pause, self._pause = self.epochs[-1], self._pause, 0.0
        if pause:
            time.sleep(pause)
            self._receive(batches)
            epoch.arrivals.append(clock.CLOCK.wall())
            # Its worker is at work again now, and this process awake, as beside a step.
        asked = clock.CLOCK.wall()
        batch = self._receive(batches)
        now = clock.CLOCK.wall()
        if pause:
            self.carries.append(now - asked)
        epoch.arrivals.append(now)
        if not self.stepping and now - self._looked > _SECONDS_BETWEEN_LOOKS:
            self._looked = now
            epoch.looks.append((len(epoch.arrivals), system.read_children_seconds()))
        return batch

    def _receive(self, batches: Iterator[Any]) -> Any:
        batch = next(batches)
        if self.step is not None:
            touch(batch)
        return batch


def is_stream(loader: Any) -> bool:
    """Return whether a loader's samples have no index."""
    from torch.utils.data import IterableDataset

    return isinstance(loader.dataset, IterableDataset)


def index_batches(loader: Any) -> Iterable[Sequence[Any]]:
    """Return the indices of one batch after the other; none where there are none."""
    if is_stream(loader):
        return []
    if loader.batch_sampler is None:
        return ([index] for index in loader.sampler)
    return loader.batch_sampler


def leaves(batch: Any) -> Iterator[Any]:
    """Yield the tensors and arrays in a batch, whatever it is made of."""
    if hasattr(batch, "nbytes") and hasattr(batch, "shape"):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from leaves(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from leaves(value)
    elif hasattr(batch, "__dataclass_fields__"):
        yield from leaves(list(vars(batch).values()))


def count_items(batch: Any, batch_size: int | None) -> int:
    """Return how many samples a batch holds: the length of its first tensor.

    Where that is no number of samples, it is the loader's batch size.
    """
    most = batch_size or 1
    for leaf in leaves(batch):
        if len(leaf.shape) and 0 < leaf.shape[0] <= most:
            return int(leaf.shape[0])
        break
    return most


def count_bytes(batch: Any) -> int:
    """Return the bytes of the tensors and arrays in a batch."""
    return sum(int(leaf.nbytes) for leaf in leaves(batch))


def touch(batch: Any) -> None:
    """Read a number of each page of a batch, as a step does.

    The first to touch memory that came from a worker pays for its pages.
    """
    for leaf in leaves(batch):
        if getattr(leaf, "is_cuda", False) or not leaf.nbytes:
            continue
        if not hasattr(leaf, "element_size"):
            continue
        apart = max(1, _PAGE_BYTES // leaf.element_size())
        leaf.detach().reshape(-1)[::apart].clone()


def _end(pids: set[int]) -> None:
    """End workers that hang, without PyTorch's complaint that they were killed."""
    main = threading.current_thread() is threading.main_thread()
    deaf = main and hasattr(signal, "SIGCHLD")
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL) if deaf else None
    try:
        system.end(pids)
        until = clock.CLOCK.wall() + _SECONDS_TO_END
        while not all(map(_has_ended, pids)) and clock.CLOCK.wall() < until:
            time.sleep(0.01)
    finally:
        if handler is not None:
            signal.signal(signal.SIGCHLD, handler)


def _has_ended(pid: int) -> bool:
    """Return whether a child's last thread has ended: its signal was sent then."""
    if not hasattr(os, "waitid"):
        return pid not in system.find_alive({pid})
    try:
        flags = os.WEXITED | os.WNOWAIT | os.WNOHANG
        return os.waitid(os.P_PID, pid, flags) is not None
    except ChildProcessError:  # waited for already, or a child's child
        return True


def _describe(pids: set[int]) -> str:
    """Name worker processes with what they are doing."""
    told = []
    for pid in sorted(pids):
        with contextlib.suppress(psutil.Error):
            told.append(f"{pid} ({psutil.Process(pid).status()})")
    return ", ".join(told[:4]) + (" …" if len(told) > 4 else "")
