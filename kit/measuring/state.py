"""What a run finds, and must not leave behind: random states, children, compiled code.

Settings are in `settings`, models and optimizers of the reader's in `shared`.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import operator
import os
import random
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from kit import clock, system
from kit.measuring import settings
from kit.measuring.failures import walk_causes

#: Threads that belong to all: the kit's own, and those that compile for PyTorch.
_COMMON_THREADS = ("kit ", "InductorSubproc")

#: What shifts the memory of a run: so many blocks of at most so many bytes, and up to
#: so many pages. A freed block of over 128 KB would raise malloc's thresholds, which
#: decide whether the loop's own tensors cost page faults; pages that are mapped do not.
_BLOCKS, _LARGEST_BLOCK, _MOST_PAGES = 4, 60_000, 3_000

#: Where a look for child processes is expensive, so often at most.
_SECONDS_BETWEEN_LOOKS = 1.0

Random = dict[str, Any]
_Accessors = dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]


# Random numbers


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and PyTorch's generators alike."""
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def capture_random() -> Random:
    """Read the states of all random generators."""
    return {name: read() for name, (read, _) in _list_generators().items()}


def restore_random(states: Random) -> None:
    """Set random generators to states that were read."""
    for name, (_, set_to) in _list_generators().items():
        if name in states:
            set_to(states[name])


def _list_generators() -> _Accessors:
    import numpy
    import torch

    found: _Accessors = {
        "python": (random.getstate, random.setstate),
        "numpy": (numpy.random.get_state, numpy.random.set_state),
        "cpu": (torch.get_rng_state, torch.set_rng_state),
    }
    if clock.find_initialised():
        module, names = torch.get_device_module(), ["get_rng_state", "set_rng_state"]
        if hasattr(module, "get_rng_state_all"):
            names = [f"{name}_all" for name in names]
        found["accelerator"] = operator.attrgetter(*names)(module)
    return found


# What is there before a start


class Surroundings:
    """What a run finds: settings, random states, threads and child processes.

    Where `other` are those of a run that goes on, the settings are those that were
    there before both. As long as it is kept, some memory is taken: in one process the
    same code finds the same memory in every run, and how that suits the caches would
    become the verdict. That holds for addresses and for the machine's pages behind
    them: where two variants alternate, each gets back what it has freed. The sizes come
    from the system: a reader's seeds, and the order of their random numbers, have
    nothing to do with it.
    """

    def __init__(self, other: Surroundings | None = None) -> None:
        self.settings = other.settings if other else settings.capture()
        self.random = capture_random()
        self._threads = set(threading.enumerate())
        others = self._threads - {threading.current_thread()}
        self._other_threads = {thread.native_id or 0 for thread in others}
        self._children = system.find_children(self._other_threads)
        self._looked = -math.inf
        draw = random.SystemRandom().randint
        self._blocks = [bytearray(draw(1, _LARGEST_BLOCK)) for _ in range(_BLOCKS)]
        self._pages = mmap.mmap(-1, draw(1, _MOST_PAGES) * mmap.PAGESIZE)
        for start in range(0, len(self._pages), mmap.PAGESIZE):
            self._pages[start] = 1  # the system gives a page to whoever writes to it

    def has_changed_settings(self) -> bool:
        """Return whether another start would find other settings than this one."""
        return settings.capture() != self.settings

    def find_children(self) -> dict[int, str]:
        """Return the names of child processes that this thread has started since."""
        new = system.find_children(self._other_threads) - self._children
        return {pid: system.name_process(pid) for pid in new}

    def has_company(self) -> bool:
        """Return whether there are new children or threads that are not common."""
        new = set(threading.enumerate()) - self._threads
        # A thread of C++ that has run Python is a dummy.
        own = [x for x in new if not isinstance(x, threading._DummyThread)]
        if any(not thread.name.startswith(_COMMON_THREADS) for thread in own):
            return True
        # Without `waitid` (macOS) a look walks through all processes of the machine.
        now = clock.CLOCK.wall()
        is_cheap = hasattr(os, "waitid")
        if not is_cheap and now - self._looked < _SECONDS_BETWEEN_LOOKS:
            return False
        self._looked = now
        return bool(self.find_children())


def end_loaders(error: BaseException | None) -> None:
    """End the workers of loaders that the frames behind an error hold.

    Left to the garbage collector, shutting workers down takes seconds, and those that
    are forked later would inherit them. The frames stay: `%debug` shows what was there.
    """
    from torch.utils.data import DataLoader, dataloader

    iterators = getattr(dataloader, "_MultiProcessingDataLoaderIter", ())
    for each in walk_causes(error):
        for frame, _ in traceback.walk_tb(each.__traceback__):
            for value in [*frame.f_locals.values()]:
                if isinstance(value, DataLoader):
                    vars(value)["_iterator"] = None
                elif isinstance(value, iterators):
                    value._shutdown_workers()


def renew_dynamo() -> bool:
    """Reset `torch.compile` where its cache is half full; return whether it was.

    Compiled code that guards on an object of the run, such as an optimizer, is compiled
    anew in each run. At `recompile_limit` Dynamo gives up and runs it uncompiled, for
    the rest of the process.
    """
    if "torch._dynamo" not in sys.modules:
        return False
    import torch

    with contextlib.suppress(AttributeError, ImportError):  # private names
        from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
        from torch._dynamo import config, convert_frame

        codes = [found() for found in list(convert_frame.input_codes.seen)]
        counts = [len(_debug_get_cache_entry_list(code)) for code in codes if code]
        if max(counts, default=0) >= config.recompile_limit / 2:
            torch.compiler.reset()
            return True
    return False
