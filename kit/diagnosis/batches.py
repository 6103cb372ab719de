"""What a loop's loaders give: real batches, or some that were kept from before.

Each iterator of a loader is handed out inside one of the kit's. While nothing is left
out it gives real batches and keeps some; else it gives the kept ones again, as many as
the loader has in an epoch.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kit.diagnosis.wrapping import LOADER, Work, wrapped

#: So many batches are kept at most, with so many tensors, and so many bytes; fewer
#: where workers have sent them, whose batches lie in shared memory.
_MOST_KEPT = 32
_MOST_TENSORS = 200
_MOST_BYTES = 500e6
_MOST_SHARED_BYTES = 30e6
#: What a loader with workers keeps ready for each of them, where it does not say.
_PREFETCHED = 2
#: What a batch may hold beside tensors, and is never changed in place.
_PLAIN = (int, float, complex, bool, str, bytes, type(None))


class Loading(NamedTuple):
    """How batches are loaded.

    `kind` is "workers", or "loader" in the loop's own thread, or "" where no loader of
    PyTorch was seen. `is_renewed` says that each epoch starts its workers anew.
    """

    kind: str = ""
    workers: int = 0
    is_renewed: bool = False


@dataclass(eq=False)
class Record:
    """What is known of a loader, and the batches that were kept.

    `signature` tells it from others, and `find_loader` returns it, or None once it is
    gone. `ends` are the numbers of the steps in which an epoch ended. `obstacle` says
    why batches cannot be given again.
    """

    signature: object
    find_loader: Callable[[], Any]
    #: Whether it is known when an epoch ends, without reading all of it.
    has_end: bool = False
    workers: int = 0
    #: Whether they stay from one epoch to the next.
    stays: bool = False
    #: How many batches its workers keep ready.
    prefetched: int = 0
    given: int = 0
    #: Whether all batches of an epoch were given, and no other one has begun.
    has_ended: bool = False
    ends: list[int] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)
    #: How often each tensor that is kept had been changed then.
    versions: list[tuple[Any, int]] = field(default_factory=list)
    bytes_kept: int = 0
    replayed: int = 0
    obstacle: str = ""

    def keep(self, batch: Any) -> None:
        """Keep a batch, as long as there is room."""
        if self.obstacle or len(self.kept) >= _MOST_KEPT:
            return
        try:
            self._keep(batch)
        except Exception as error:  # sparse tensors, or objects of the reader's
            self.obstacle = f"its batches cannot be kept ({type(error).__name__})"

    def _keep(self, batch: Any) -> None:
        tensors = _list_tensors(batch)
        if any(tensor.grad_fn is not None for tensor in tensors):
            self.obstacle = "its batches belong to a graph of their own"
            return
        size = self.bytes_kept + sum(tensor.nbytes for tensor in tensors)
        most = _MOST_SHARED_BYTES if self.workers else _MOST_BYTES
        is_full = size > most or len(self.versions) + len(tensors) > _MOST_TENSORS
        if self.kept and is_full:
            return
        self.kept.append(_copy_containers(batch))
        self.bytes_kept = size
        tracked = [tensor for tensor in tensors if not tensor.is_inference()]
        self.versions += [(tensor, tensor._version) for tensor in tracked]

    def forget(self) -> None:
        """Let the batches go."""
        self.kept = []
        self.versions = []
        self.bytes_kept = 0

    def check(self) -> None:
        """Note whether the loop has changed what was kept."""
        if any(tensor._version != version for tensor, version in self.versions):
            self.obstacle = "the loop changes its batches in place"

    def replay(self) -> Any:
        """Return the next kept batch, in containers of its own."""
        batch = self.kept[self.replayed % len(self.kept)]
        self.replayed += 1
        return _copy_containers(batch)


def _list_tensors(batch: Any) -> list[Any]:
    """Return the tensors of a batch, also those of objects that hold them."""
    import torch
    from torch.utils._pytree import tree_leaves

    found = []
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif not isinstance(leaf, _PLAIN):
            data = getattr(leaf, "data", None)
            inner = data if isinstance(data, Mapping) else getattr(leaf, "__dict__", {})
            values = tree_leaves(dict(inner))
            found += [each for each in values if isinstance(each, torch.Tensor)]
    return found


def _copy_containers(batch: Any) -> Any:
    """Copy what a batch is made of, but its tensors: a loop may take it apart."""
    import torch
    from torch.utils._pytree import tree_map

    def copy_leaf(leaf: Any) -> Any:
        is_plain = isinstance(leaf, (torch.Tensor, *_PLAIN))
        return leaf if is_plain else copy.copy(leaf)

    return tree_map(copy_leaf, batch)


class Loaders:
    """The loaders of one run, and whether they give kept batches."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.records: list[Record] = []
        #: Whether batches that were kept are given, and whether real ones are kept.
        self.replays = False
        self.keeps = False

    @contextlib.contextmanager
    def install(self, work: Work) -> Generator[None, None, None]:
        """Hand out iterators of the kit's."""
        from torch.utils.data import DataLoader

        with wrapped((DataLoader, "__iter__", self._hand_out)):
            yield

    def _hand_out(self, real: Callable[..., Any], loader: Any) -> Iterator[Any]:
        from torch.utils.data import BatchSampler

        length = _find_length(loader)
        record = self._find_record(loader, length)
        record.has_ended = False
        # A sampler of the reader's may give batches without an end.
        is_own = type(loader.batch_sampler) not in (BatchSampler, type(None))
        record.has_end = length is not None and (not is_own or bool(record.ends))
        record.workers = loader.num_workers
        record.stays = loader.persistent_workers
        record.prefetched = loader.num_workers * (loader.prefetch_factor or _PREFETCHED)
        return _Batches(self, record, length, lambda: real(loader))

    def _find_record(self, loader: Any, length: int | None) -> Record:
        """Return what is known of a loader, or of one that was made alike before it.

        A loader may be made anew for each epoch, and its data set with it.
        """
        collate = getattr(loader.collate_fn, "__code__", type(loader.collate_fn))
        signature = type(loader.dataset), loader.batch_size, collate, length
        for record in self.records:
            if record.find_loader() is loader:
                return record
        for record in self.records:
            is_over = record.find_loader() is None or record.has_ended
            if is_over and record.signature == signature:
                record.find_loader = weakref.ref(loader)
                return record
        self.records.append(Record(signature, weakref.ref(loader)))
        return self.records[-1]

    def note_end(self, record: Record) -> None:
        """Note that an epoch has ended in this step."""
        record.ends.append(len(self._work.steps))
        record.has_ended = True

    @property
    def used(self) -> list[Record]:
        """The loaders that have given batches, first the one that has given most."""
        used = [record for record in self.records if record.given]
        return sorted(used, key=lambda record: -record.given)

    @property
    def ready(self) -> int:
        """How many batches the workers of a loader hold ready at most."""
        return max((record.prefetched for record in self.records), default=0)

    @property
    def workers(self) -> int:
        """How many workers a loader has at most."""
        return max((record.workers for record in self.records), default=0)

    @property
    def obstacle(self) -> str:
        """Why batches cannot be given again, "" where they can."""
        if not self.used:
            return "no loader of PyTorch was seen"
        if not all(each.has_end for each in self.used):
            return "when an epoch of its loader ends is not known"
        return next((each.obstacle for each in self.used if each.obstacle), "")

    @property
    def ends(self) -> set[int]:
        """The numbers of the steps in which an epoch of the main loader has ended.

        That of another one, such as for validation, is part of a rare long step.
        """
        return {*self.used[0].ends} if self.used else set()

    def find_loading(self) -> Loading:
        """Return how batches are loaded, by the loader that has given most."""
        if not self.used:
            return Loading()
        main = self.used[0]
        if not main.workers:
            return Loading("loader")
        is_renewed = not main.stays and len(main.ends) >= 2
        return Loading("workers", main.workers, is_renewed)

    def find_epoch(self) -> int | None:
        """Return how many steps an epoch has, None where none has ended twice."""
        ends = self.used[0].ends if self.used else []
        return max(1, ends[-1] - ends[-2]) if len(ends) >= 2 else None


class _Batches:
    """An iterator of a loader, as the loop has it."""

    def __init__(
        self,
        loaders: Loaders,
        record: Record,
        length: int | None,
        begin: Callable[[], Iterator[Any]],
    ) -> None:
        self._loaders = loaders
        self._record = record
        self._length = length
        self._begin = begin
        self._real: Iterator[Any] | None = None
        self._given = 0
        self._has_replayed = False
        if not loaders.replays:
            self._find_real()  # its workers begin now

    def __iter__(self) -> _Batches:
        return self

    def __len__(self) -> int:
        return len(self._find_real())  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._find_real(), name)

    def __next__(self) -> Any:
        loaders, record = self._loaders, self._record
        is_over = self._length is not None and self._given >= self._length
        if is_over and (self._has_replayed or loaders.replays):
            loaders.note_end(record)
            raise StopIteration
        if loaders.replays and record.kept:
            batch = record.replay()
            self._has_replayed = True
        else:
            batch = self._read()
        self._given += 1
        record.given += 1
        record.has_ended = self._given == self._length
        return batch

    def _read(self) -> Any:
        from torch.autograd.profiler import record_function

        real = self._find_real()
        try:
            with record_function(LOADER):
                batch = next(real)
        except StopIteration:
            self._loaders.note_end(self._record)
            raise
        if self._loaders.keeps:
            self._record.keep(batch)
        return batch

    def _find_real(self) -> Iterator[Any]:
        if self._real is None:
            self._real = self._begin()
        return self._real


def _find_length(loader: Any) -> int | None:
    """Return how many batches an epoch has, None where the loader cannot tell."""
    try:
        return len(loader)
    except Exception:  # a data set of the reader's may raise anything
        return None
