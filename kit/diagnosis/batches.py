"""Loaders whose batches are in memory already: real ones, or those kept from before.

Each iterator of a loader is handed out inside one of the kit's. While nothing is left
out it gives real batches and keeps them; else it gives the kept ones again, as many as
the loader has in an epoch.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psutil

from kit.diagnosis.wrapping import LOADER, Work, wrapped

#: Kept batches take at most this share of the memory that is free, and on a device at
#: most so many are kept.
_MOST_MEMORY, _MOST_ON_DEVICE = 0.05, 4
#: What a loader with workers keeps ready for each of them, where it does not say.
_PREFETCHED = 2
#: What a batch may hold beside tensors and arrays, and is never changed in place.
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

    `length` is how many batches an epoch has, None for a stream that has not ended yet.
    `ends` are the numbers of the steps in which an epoch ended. `is_copied` says that
    what is given again are copies of the first batches, since the loop changes them in
    place, or they lie in memory that is scarce. `obstacle` says why they cannot be
    given again.
    """

    #: Returns the loader, or None once it is gone.
    find_loader: Callable[[], Any]
    length: int | None = None
    workers: int = 0
    #: Whether they stay from one epoch to the next.
    stays: bool = False
    #: How many batches its workers keep ready.
    prefetched: int = 0
    given: int = 0
    ends: list[int] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)
    #: As the first ones were before the loop could change them.
    pristine: list[Any] = field(default_factory=list)
    is_copied: bool = False
    #: How many may be kept.
    most: int = 1
    replayed: int = 0
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
        self._foreign: dict[int, _Batches] = {}
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

            for kind in (DataLoader, *list_subclasses(DataLoader)):
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
        key = id(iterator)
        if key not in self._foreign:
            record = Record(lambda: iterator)
            self.records[key] = record
            self._foreign[key] = _Batches(self, record, lambda: iterator)
        return self.give(self._foreign[key])

    def _find_record(self, loader: Any) -> Record:
        """Return what is known of a loader, or of one that was made alike before it.

        A loader may be made anew for each epoch, and its data set with it.
        """
        collate = getattr(loader, "collate_fn", None)
        dataset = getattr(loader, "dataset", None)
        kind = (
            type(loader),
            type(dataset),
            type(getattr(loader, "sampler", None)),
            getattr(loader, "batch_size", None),
            getattr(loader, "drop_last", None),
            getattr(collate, "__code__", type(collate)),
        )
        key = (*kind, id(dataset))
        if key not in self.records:
            gone = [
                known
                for known, record in self.records.items()
                if isinstance(known, tuple)
                and known[:-1] == kind
                and record.find_loader() is None
            ]
            known = self.records.pop(gone[0]) if gone else _make_record(loader)
            self.records[key] = known
        record = self.records[key]
        record.find_loader = weakref.ref(loader)
        return record

    def give(self, batches: _Batches) -> Any:
        """Return the next batch, a real one or a kept one."""
        record = batches.record
        if not self._work.is_here() or self._place.is_inside:
            return batches.read()
        is_over = record.length is not None and batches.given >= record.length
        if is_over and (batches.replayed or self.gives_kept):
            self._note_end(record)
            raise StopIteration
        kept = record.kept
        if self.gives_kept and kept:
            batch = self._replay(record, kept)
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
            if not batches.replayed:
                record.length = batches.given
            self._note_end(record)
            raise
        if self.copies_first:
            self._keep_first(record, batch)
        elif self.keeps and len(record.kept) < record.most and not record.is_copied:
            record.kept.append(batch)  # within the time of a block: no more is done
        return batch

    def _note_end(self, record: Record) -> None:
        record.ends.append(len(self._work.steps))

    # What is kept

    def begin_keeping(self, *, copies_first: bool) -> None:
        """Keep the batches that are handed out from here on.

        `copies_first` also copies them, to see whether the loop changes them in place.
        """
        self.keeps, self.copies_first = True, copies_first
        if copies_first:
            self._bytes_left = int(_MOST_MEMORY * psutil.virtual_memory().available)
            self.forget()
        for record in self.records.values():
            if not record.is_copied:
                record.kept = []

    def end_keeping(self) -> None:
        """Keep no more of them; find whether the loop has changed those."""
        self.keeps = False
        if not self.copies_first:
            return
        self.copies_first = False
        for record in self.records.values():
            pairs = zip(record.kept, record.pristine, strict=True)
            if not all(_are_equal(kept, copy) for kept, copy in pairs):
                record.is_copied = True
            if not record.is_copied:
                record.pristine = []

    def _keep_first(self, record: Record, batch: Any) -> None:
        """Keep a batch and a copy of it, while there is memory for them."""
        if record.obstacle:
            return
        try:
            tensors = _list_tensors(batch)
            if any(tensor.grad_fn is not None for tensor in tensors):
                record.obstacle = "its batches belong to a graph of their own"
                return
            size = 2 * sum(tensor.nbytes for tensor in tensors)
            is_far = any(tensor.device.type != "cpu" for tensor in tensors)
            is_scarce = is_far or any(tensor.is_shared() for tensor in tensors)
            is_full = self._bytes_left < size
            is_full = is_full or (is_far and len(record.kept) >= _MOST_ON_DEVICE)
            if is_full and record.kept:
                return
            twin = _copy(batch)
        except Exception as error:
            record.obstacle = f"its batches cannot be copied ({type(error).__name__})"
            return
        self._bytes_left -= size
        if is_scarce or _is_opaque(batch):
            record.is_copied = True
            record.kept.append(twin)
        else:
            record.kept.append(batch)
        record.pristine.append(twin)
        record.most = len(record.kept)

    def prepare(self) -> None:
        """Prepare what a block will be given: copies, where the loop changes them."""
        for record in self.records.values():
            record.replayed = 0
            if record.is_copied:
                record.kept = [_copy(batch) for batch in record.pristine]

    def _replay(self, record: Record, kept: list[Any]) -> Any:
        number = record.replayed
        record.replayed += 1
        if record.is_copied and number >= len(kept):
            return _copy(record.pristine[number % len(record.pristine)])
        return kept[number % len(kept)]

    def forget(self) -> None:
        """Let all batches go."""
        for record in self.records.values():
            record.kept, record.pristine = [], []
            record.is_copied, record.most = False, 1

    # What is known of them

    @property
    def ready(self) -> int:
        """How many batches the workers of a loader hold ready at most."""
        return max((record.prefetched for record in self.records.values()), default=0)

    @property
    def workers(self) -> int:
        """How many workers a loader has at most."""
        return max((record.workers for record in self.records.values()), default=0)

    @property
    def obstacle(self) -> str:
        """Why batches cannot be given again, "" where they can."""
        used = [record for record in self.records.values() if record.given]
        if not used:
            return "no loader of PyTorch was seen"
        return next((record.obstacle for record in used if record.obstacle), "")

    def find_loading(self) -> Loading:
        """Return how batches are loaded, by the loader that has given most."""
        used = [record for record in self.records.values() if record.given]
        if not used:
            return Loading()
        main = max(used, key=lambda record: record.given)
        if not main.workers:
            return Loading("loader")
        is_renewed = not main.stays and len(main.ends) >= 2
        return Loading("workers", main.workers, is_renewed)

    @property
    def ends(self) -> list[int]:
        """In which steps the epochs of the main loader have ended."""
        used = [record for record in self.records.values() if record.given]
        main = max(used, key=lambda record: record.given, default=None)
        return main.ends if main else []

    def find_epoch(self) -> int | None:
        """Return how many steps an epoch has, None where none has ended twice."""
        if len(self.ends) < 2:
            return None
        return max(1, self.ends[-1] - self.ends[-2])

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
        if not loaders.gives_kept:
            self._find_real()

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        return self._loaders.give(self)

    def __len__(self) -> int:
        if self.record.length is not None:
            return self.record.length
        return len(self._find_real())  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._find_real(), name)

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


def _make_record(loader: Any) -> Record:
    from torch.utils.data import IterableDataset

    record = Record(weakref.ref(loader))
    with contextlib.suppress(Exception):  # its own class may know no length
        if not isinstance(loader.dataset, IterableDataset):
            record.length = len(loader)
    record.workers = getattr(loader, "num_workers", 0)
    record.stays = getattr(loader, "persistent_workers", False)
    ready = getattr(loader, "prefetch_factor", None) or _PREFETCHED
    record.prefetched = record.workers * ready
    return record


def list_subclasses(kind: type) -> Iterator[type]:
    """Yield all classes that are made of one."""
    for each in kind.__subclasses__():
        yield each
        yield from list_subclasses(each)


# What a batch is made of


def _list_leaves(batch: Any) -> list[Any]:
    from torch.utils._pytree import tree_leaves

    return tree_leaves(batch)


def _is_opaque(batch: Any) -> bool:
    """Return whether a batch has parts that may hold tensors of their own."""
    import numpy
    import torch

    known = (torch.Tensor, numpy.ndarray, numpy.generic, *_PLAIN)
    return not all(isinstance(leaf, known) for leaf in _list_leaves(batch))


def _list_tensors(batch: Any) -> list[Any]:
    """Return the tensors of a batch, also those of objects that hold them."""
    import torch

    found = []
    for leaf in _list_leaves(batch):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif not isinstance(leaf, _PLAIN):
            data = getattr(leaf, "data", None)
            inner = data if isinstance(data, Mapping) else getattr(leaf, "__dict__", {})
            values = _list_leaves(dict(inner))
            found += [each for each in values if isinstance(each, torch.Tensor)]
    return found


def _copy(batch: Any) -> Any:
    """Copy a batch; pinned tensors stay pinned."""
    import torch
    from torch.utils._pytree import tree_map

    def copy_leaf(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            twin = leaf.detach().clone().requires_grad_(leaf.requires_grad)
            return twin.pin_memory() if leaf.is_pinned() else twin
        return leaf if isinstance(leaf, _PLAIN) else copy.deepcopy(leaf)

    return tree_map(copy_leaf, batch)


def _are_equal(one: Any, other: Any) -> bool:
    """Return whether two batches are equal in all their parts, as far as that is known.

    Other containers, devices or types are a change; so is what cannot be compared.
    """
    from torch.utils._pytree import tree_flatten

    (these, shape), (those, other_shape) = tree_flatten(one), tree_flatten(other)
    if shape != other_shape:
        return False
    try:
        return all(_are_alike(a, b) for a, b in zip(these, those, strict=True))
    except Exception:
        return False


def _are_alike(one: Any, other: Any) -> bool:
    import numpy
    import torch

    if isinstance(one, torch.Tensor):
        own = one.device, one.dtype, one.shape
        is_same = own == (other.device, other.dtype, other.shape)
        return is_same and torch.equal(_without_nan(one), _without_nan(other))
    if isinstance(one, numpy.ndarray):
        return one.dtype == other.dtype and numpy.array_equal(one, other)
    return True


def _without_nan(tensor: Any) -> Any:
    tensor = tensor.detach()
    return tensor.nan_to_num() if tensor.is_floating_point() else tensor
