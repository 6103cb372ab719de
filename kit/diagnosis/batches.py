"""Loaders whose batches are in memory already: real ones, or those kept from before.

Each iterator of a loader is handed out inside one of the kit's. While nothing is left
out it gives real batches and keeps them; else it gives the kept ones again, as many as
the loader has in an epoch.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import psutil

from kit.diagnosis.wrapping import LOADER, Work, wrapped

#: Kept batches take at most this share of the memory that is free.
_MOST_MEMORY = 0.05
#: What a loader with workers keeps ready for each of them, where it does not say.
_PREFETCHED = 2


@dataclass(eq=False)
class Record:
    """What is known of a loader, and the batches that were kept.

    `length` is how many batches an epoch has, None for a stream that has not ended yet.
    `ends` are the numbers of the steps in which an epoch ended.
    """

    #: Returns the data set, or None once it is gone.
    find_dataset: Callable[[], Any]
    length: int | None = None
    workers: int = 0
    prefetched: int = 0
    given: int = 0
    ends: list[int] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)
    #: How many may be kept.
    most: int = 1
    #: As they were before the loop could change them in place.
    pristine: list[Any] = field(default_factory=list)
    replayed: int = 0
    #: Why its batches cannot be given again.
    obstacle: str = ""


class _Place(threading.local):
    """Whether the calling thread is inside of a loader, which may hold others."""

    is_inside = False


class Loaders:
    """The loaders of one run, and whether they give kept batches."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.records: dict[Any, Record] = {}
        #: Whether batches that were kept are given, and real ones are kept.
        self.gives_kept = self.keeps = self.copies_first = False
        #: Whether the loop changes batches in place: then it gets copies.
        self.are_changed = False
        #: How often an epoch has ended, or a real iterator was begun anew meanwhile.
        self.ends = self.renewals = 0
        self._open = weakref.WeakSet[_Batches]()
        self._foreign = weakref.WeakKeyDictionary[Any, _Batches]()
        self._place = _Place()
        self._bytes_left = 0
        self._label: Any = None
        #: Iterators of this class label themselves.
        self._labelled: Any = None

    @contextlib.contextmanager
    def install(self, work: Work) -> Generator[None, None, None]:
        """Hand out iterators of the kit's, for loaders of any class."""
        from torch.autograd.profiler import record_function
        from torch.utils.data import DataLoader, dataloader

        self._label = record_function
        self._labelled = dataloader._BaseDataLoaderIter
        with contextlib.ExitStack() as stack:
            covered = set()

            def cover(kind: type) -> None:
                """Wrap the `__iter__` of a class, and of those that it is made of."""
                for owner in kind.__mro__:
                    if owner in covered or not issubclass(owner, DataLoader):
                        continue
                    covered.add(owner)
                    if "__iter__" in vars(owner):
                        entry = owner, "__iter__", self._hand_out
                        stack.enter_context(wrapped(work, entry))

            def cover_new(real: Callable[..., Any], *given: Any, **named: Any) -> Any:
                cover(type(given[0]))
                return real(*given, **named)

            for kind in (DataLoader, *_list_subclasses(DataLoader)):
                cover(kind)
            entries = [(DataLoader, "__init__", cover_new)]
            entries.append((self._labelled, "__next__", self._give_foreign))
            stack.enter_context(wrapped(work, *entries))
            yield

    # What the loop calls

    def _hand_out(self, real: Callable[..., Any], loader: Any) -> Iterator[Any]:
        if self._place.is_inside:  # a loader that is made of another one
            return real(loader)
        return _Batches(self, self._find_record(loader), lambda: real(loader))

    def _give_foreign(self, real: Callable[..., Any], iterator: Any) -> Any:
        """Give a batch of an iterator that the reader has begun before the run."""
        if self._place.is_inside:
            return real(iterator)
        if iterator not in self._foreign:
            record = Record(lambda: iterator)
            self.records[(id(iterator),)] = record
            self._foreign[iterator] = _Batches(self, record, lambda: iterator)
        return self.give(self._foreign[iterator])

    def _find_record(self, loader: Any) -> Record:
        """Return what is known of a loader, or of one that was made alike before it.

        A loader may be made anew for each epoch, and its data set with it.
        """
        collate = loader.collate_fn
        kind = (
            type(loader),
            type(loader.dataset),
            type(loader.sampler),
            loader.batch_size,
            loader.drop_last,
            getattr(collate, "__code__", collate),
        )
        key = (*kind, id(loader.dataset))
        for known, record in self.records.items():
            is_gone = record.find_dataset() is None
            if known == key or (is_gone and known[:-1] == kind):
                del self.records[known]
                break
        else:
            record = _make_record(loader)
        record.find_dataset = _refer_to(loader.dataset)
        self.records[key] = record
        return record

    def give(self, batches: _Batches) -> Any:
        """Return the next batch, a real one or a kept one."""
        record = batches.record
        if not self._work.is_here():
            return batches.read()
        is_over = record.length is not None and batches.given >= record.length
        if is_over and (batches.replayed or self.gives_kept):
            self._note_end(record)
            raise StopIteration
        if self.gives_kept and record.kept:
            batch = self._replay(record)
            batches.replayed += 1
        else:
            batch = self._read(batches)
        batches.given += 1
        record.given += 1
        return batch

    def _read(self, batches: _Batches) -> Any:
        record = batches.record
        try:
            batch = batches.read()
        except StopIteration:
            if not batches.replayed or record.length is None:
                if not batches.replayed:
                    record.length = batches.given
                self._note_end(record)
                raise
            # The real one is behind, or was drained: the epoch goes on.
            batches.renew()
            self.renewals += 1
            batch = batches.read()
        if self.copies_first:
            self._keep_first(record, batch)
        elif self.keeps and len(record.kept) < record.most:
            record.kept.append(batch)  # within the time of a block: no more is done
        return batch

    def _note_end(self, record: Record) -> None:
        self.ends += 1
        record.ends.append(len(self._work.steps))

    # What is kept

    def begin_keeping(self, *, copies_first: bool) -> None:
        """Keep the batches that are handed out from here on.

        `copies_first` also copies them, to see whether the loop changes them in place.
        """
        self.keeps, self.copies_first = True, copies_first
        self._bytes_left = int(_MOST_MEMORY * psutil.virtual_memory().available)
        for record in self.records.values():
            record.kept = []
            if copies_first:
                record.pristine, record.most = [], 1

    def end_keeping(self) -> None:
        """Keep no more of them; find whether the loop has changed those."""
        self.keeps = False
        if not self.copies_first:
            return
        self.copies_first = False
        for record in self.records.values():
            pairs = zip(record.kept, record.pristine, strict=True)
            if not all(_are_equal(kept, copy) for kept, copy in pairs):
                self.are_changed = True
        if not self.are_changed:
            for record in self.records.values():
                record.pristine = []

    def _keep_first(self, record: Record, batch: Any) -> None:
        """Keep a batch and a copy of it, while there is memory for them."""
        tensors = _list_tensors(batch)
        if any(tensor.grad_fn is not None for tensor in tensors):
            record.obstacle = "its batches belong to a graph of their own"
        size = 2 * sum(tensor.nbytes for tensor in tensors)
        if record.obstacle or (self._bytes_left < size and record.kept):
            return
        self._bytes_left -= size
        record.kept.append(batch)
        record.pristine.append(_copy(batch))
        record.most = len(record.kept)

    def prepare(self) -> None:
        """Prepare what a block will be given: copies, where the loop changes them."""
        for record in self.records.values():
            record.replayed = 0
            if self.are_changed:
                record.kept = [_copy(batch) for batch in record.pristine]

    def _replay(self, record: Record) -> Any:
        number = record.replayed
        record.replayed += 1
        if self.are_changed and number >= len(record.kept):
            return _copy(record.pristine[number % len(record.pristine)])
        return record.kept[number % len(record.kept)]

    def forget(self) -> None:
        """Let all batches go."""
        for record in self.records.values():
            record.kept, record.pristine = [], []

    # Batches that are ready

    @property
    def ready(self) -> int:
        """How many batches the workers of a loader hold ready at most."""
        return max((record.prefetched for record in self.records.values()), default=0)

    def drain(self) -> None:
        """Take what workers hold ready: after a rest they have more than usual."""
        for batches in list(self._open):
            for _ in range(batches.record.prefetched if batches.is_begun else 0):
                try:
                    batches.read()
                except StopIteration:
                    batches.renew()
                batches.replayed += 1  # it is behind now: its epoch goes on without it

    @property
    def obstacle(self) -> str:
        """Why batches cannot be given again, "" where they can."""
        used = [record for record in self.records.values() if record.given]
        if not used:
            return "no loader of PyTorch was seen"
        return next((record.obstacle for record in used if record.obstacle), "")

    def find_epoch(self) -> int | None:
        """Return how many steps lie between two ends of the longest loader's epochs."""
        used = [record for record in self.records.values() if len(record.ends) > 1]
        if not used:
            return None
        main = max(used, key=lambda record: record.length or 0)
        return max(1, main.ends[-1] - main.ends[-2])

    def note_open(self, batches: _Batches) -> None:
        """Note an iterator that the loop has."""
        self._open.add(batches)

    def label(self, real: Iterator[Any]) -> contextlib.AbstractContextManager[Any]:
        """Return what labels the reading of a batch in a trace."""
        if isinstance(real, self._labelled):  # which does so itself
            return contextlib.nullcontext()
        return self._label(LOADER)  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def inside(self) -> Generator[None, None, None]:
        """Let a loader read as it does: another one inside of it is not handed out."""
        before = self._place.is_inside
        self._place.is_inside = True
        try:
            yield
        finally:
            self._place.is_inside = before


class _Batches:
    """An iterator of a loader, as the loop has it."""

    def __init__(
        self, loaders: Loaders, record: Record, begin: Callable[[], Iterator[Any]]
    ) -> None:
        self._loaders, self.record, self._begin = loaders, record, begin
        self._real: Iterator[Any] | None = None
        #: How many batches the loop got of it, and how many of these were kept ones.
        self.given = self.replayed = 0
        loaders.note_open(self)
        if not loaders.gives_kept:
            self._find_real()

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        return self._loaders.give(self)

    def __len__(self) -> int:
        return len(self._find_real())  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._find_real(), name)

    @property
    def is_begun(self) -> bool:
        """Whether there is a real iterator."""
        return self._real is not None

    def _find_real(self) -> Iterator[Any]:
        if self._real is None:
            with self._loaders.inside():
                self._real = self._begin()
        return self._real

    def read(self) -> Any:
        """Read a real batch."""
        real = self._find_real()
        with self._loaders.inside(), self._loaders.label(real):
            return next(real)

    def renew(self) -> None:
        """Begin to read anew."""
        self._real = None


def _make_record(loader: Any) -> Record:
    record = Record(_refer_to(loader.dataset))
    with contextlib.suppress(TypeError, NotImplementedError):
        if not hasattr(loader.dataset, "__iter__"):
            record.length = len(loader)
    record.workers = loader.num_workers
    if record.workers:
        record.prefetched = record.workers * (loader.prefetch_factor or _PREFETCHED)
    return record


def _refer_to(dataset: Any) -> Callable[[], Any]:
    """Return what returns a data set, until it is gone where it may go."""
    try:
        return weakref.ref(dataset)
    except TypeError:
        return lambda: dataset


def _list_subclasses(kind: type) -> Iterator[type]:
    for each in kind.__subclasses__():
        yield each
        yield from _list_subclasses(each)


def _list_tensors(batch: Any) -> list[Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]


def _copy(batch: Any) -> Any:
    """Copy the tensors and arrays of a batch; pinned ones stay pinned."""
    import numpy
    import torch
    from torch.utils._pytree import tree_map

    def copy_leaf(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            twin = leaf.detach().clone().requires_grad_(leaf.requires_grad)
            return twin.pin_memory() if leaf.is_pinned() else twin
        return leaf.copy() if isinstance(leaf, numpy.ndarray) else leaf

    return tree_map(copy_leaf, batch)


def _are_equal(one: Any, other: Any) -> bool:
    """Return whether all tensors and arrays of two batches have the same bits."""
    import numpy
    import torch
    from torch.utils._pytree import tree_leaves

    for a, b in zip(tree_leaves(one), tree_leaves(other), strict=True):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            if a.layout != torch.strided or a.is_quantized:
                continue
            if a.is_floating_point():
                a, b = a.detach().nan_to_num(), b.detach().nan_to_num()
            if not torch.equal(a, b):
                return False
        elif isinstance(a, numpy.ndarray) and not numpy.array_equal(a, b):
            return False
    return True
