"""A loader without its work: the first batches, handed out again and again."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kit.diagnosis.effects import Effect

#: So many batches are kept, if they fit into so many bytes.
_MOST_BATCHES, _MOST_BYTES = 8, 500_000_000


def repeat_batches(
    loader: Any, real: Callable[..., Any], effect: Effect
) -> Iterator[Any]:
    """Yield a few batches again and again; later lives take those of the first."""
    try:
        length = len(loader)
    except TypeError:
        length = None
    key = type(loader.dataset), length, loader.batch_size
    kept = _find_kept(effect.what.batches.setdefault(key, []), loader.dataset, effect)
    if kept.length is None:
        source = real(loader)
        for batch in source:
            kept.keep(batch)
            if kept.is_full():
                break
        else:
            length = len(kept.batches)
        del source
        # Persistent workers would go on without being asked for anything.
        vars(loader)["_iterator"] = None
        kept.length = math.inf if length is None else length
    return kept.repeat()


@dataclass
class _Kept:
    """Batches that one loader gave, and whose they are now.

    They are handed out as they came, even where a step changes them in place.
    """

    owner: Callable[[], Any] = lambda: None
    effect: Effect | None = None
    batches: list[Any] = field(default_factory=list)
    tensors: list[list[tuple[Any, Any, int]]] = field(default_factory=list)
    length: float | None = None

    def keep(self, batch: Any) -> None:
        found = [(t, t.clone(), t._version) for t in _tensors(batch)]
        self.batches.append(batch)
        self.tensors.append(found)

    def is_full(self) -> bool:
        each = sum(tensor.nbytes for tensor, *_ in self.tensors[0])
        count = len(self.batches)
        return count >= _MOST_BATCHES or count * each > _MOST_BYTES

    def repeat(self) -> Iterator[Any]:
        count = 0
        while self.batches and count < (self.length or 0):
            place = count % len(self.batches)
            for tensor, pristine, version in self.tensors[place]:
                if tensor._version != version:
                    tensor.data.copy_(pristine)
            yield self.batches[place]
            count += 1


def _find_kept(entries: list[_Kept], dataset: Any, effect: Effect) -> _Kept:
    """Return what is kept of a loader over this data set, or over its predecessor.

    A data set that is gone, or that an earlier effect had, has made room for this one.
    """
    for kept in entries:
        if kept.owner() is dataset:
            kept.effect = effect
            return kept
    for kept in entries:
        if kept.effect is not effect or kept.owner() is None:
            break
    else:
        kept = _Kept()
        entries.append(kept)
    kept.effect = effect
    try:
        kept.owner = weakref.ref(dataset)
    except TypeError:  # a list, say
        kept.owner = lambda: dataset
    return kept


def _tensors(batch: Any) -> Iterator[Any]:
    if isinstance(batch, Mapping):
        for value in batch.values():
            yield from _tensors(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from _tensors(value)
    elif hasattr(batch, "_version") and hasattr(batch, "nbytes"):
        yield batch
