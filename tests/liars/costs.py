"""Costs that hide, and head starts that are not earned."""

import itertools
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.utils.data import DataLoader, Dataset

from liars.stages import end, repeat

# Costs that hide behind the time spent waiting for a core


def stolen_core(stage):
    """Its workers use the trainer's own core, whose waiting is taken off elsewhere."""

    def alone(number):
        stage.work(5)

    def crowded(number):
        stage.work(10, delay=5, own=5)

    return {"alone": repeat(alone), "crowded": repeat(crowded)}


def stolen_core_for_real(stage):
    """Two worker processes of its own burn the core that the trainer runs on."""
    stage.pin(cores=1)

    def alone():
        while True:
            stage.work(2)
            yield 1

    def crowded():
        workers = [stage.start("while True: pass") for _ in range(2)]
        try:
            yield from alone()
        finally:
            for worker in workers:
                end(worker)

    return {"alone": alone, "crowded": crowded}


def eight_threads(stage):
    """Its eight threads wait for each other on two cores, which looks like waiting."""

    def two(number):
        stage.work(5, own=5)

    def eight(number):
        stage.work(12, delay=7, own=12)

    return {"two": repeat(two), "eight": repeat(eight)}


def eight_threads_for_real(stage):
    """Eight threads each do what one of two does, and two cores must do it all."""
    stage.pin(cores=2)
    torch.set_num_threads(1)

    def multiply(a):
        for _ in range(10):
            torch.mm(a, a)

    def train(threads):
        a = torch.rand(128, 128)
        quietly = {"initializer": torch.set_num_threads, "initargs": (1,)}
        with ThreadPoolExecutor(threads - 1, **quietly) as helpers:
            while True:
                others = [helpers.submit(multiply, a) for _ in range(threads - 1)]
                multiply(a)
                for other in others:
                    other.result()
                yield 1

    return {"two": lambda: train(2), "eight": lambda: train(8)}


# Head starts


#: Milliseconds that a batch takes to load and to train, and how many are kept ready.
LOADING, TRAINING, FEW, MANY = 8, 4, 2, 32


def prefetch_head_start(stage):
    """A deep queue, filled before the first yield, hides that loading is the limit."""

    def load(depth):
        ready = float(depth)
        stage.rest(depth * LOADING)
        while True:
            seconds = TRAINING if ready >= 1 else LOADING * (1 - ready)
            seconds = max(TRAINING, seconds)
            ready = min(depth, ready + seconds / LOADING - 1)
            stage.work(seconds)
            yield 1

    return {"few": lambda: load(FEW), "many": lambda: load(MANY)}


class Slow(Dataset):
    """Each batch takes a while; more of them than are ever read."""

    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        time.sleep(LOADING / 1000)
        return index


def prefetch_head_start_for_real(stage):
    """A worker fills a deep queue during set-up, and warm-up does not empty it."""

    def load(depth):
        batches = DataLoader(
            Slow(), batch_size=None, num_workers=1, prefetch_factor=depth
        )
        batches = iter(batches)
        next(batches)
        stage.rest(1.1 * depth * LOADING)
        for _ in batches:
            stage.rest(TRAINING)
            yield 1

    return {"few": lambda: load(FEW), "many": lambda: load(MANY)}


def warm_page_cache(stage):
    """The first to read the file pays the disk, the second finds it in memory."""
    cached = set()

    def read(number):
        stage.work(2 if number in cached else 20)
        cached.add(number)

    return {"first": repeat(read), "second": repeat(read)}


def warm_page_cache_for_real(stage, chunk=1 << 16, chunks=2000):
    """The file is put out of memory; whoever reads it first brings it back."""
    folder = stage.enter_context(tempfile.TemporaryDirectory())
    path = os.path.join(folder, "data")
    with open(path, "wb") as file:
        for _ in range(chunks):
            file.write(os.urandom(chunk))
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def read():
        descriptor = os.open(path, os.O_RDONLY)
        if hasattr(os, "posix_fadvise"):  # it shall not read ahead
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        try:
            for number in itertools.count():
                os.pread(descriptor, chunk, number % chunks * chunk)
                stage.work(0.2)
                yield 1
        finally:
            os.close(descriptor)

    return {"first": read, "second": read}


def cached_result(stage):
    """What an earlier start has computed is kept, so later starts have less to do."""
    kept = set()

    def plain(number):
        stage.work(5)

    def keeps(number):
        stage.work(0.5 if number in kept else 5)
        kept.add(number)

    return {"plain": repeat(plain), "keeps": repeat(keeps)}


def sleeps_first(stage):
    """It sleeps before its first yield, which is no step."""

    def plain():
        while True:
            yield 1
            stage.work(5)

    def sleepy():
        stage.rest(300)
        yield from plain()

    return {"plain": plain, "sleepy": sleepy}
