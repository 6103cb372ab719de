"""Adversarial experiments in real time: a stage where work takes it."""

import contextlib
import functools
import gc
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import adversarial
import torch
from calibration.neighbours import neighbour
from torch.utils.data import DataLoader, Dataset

from kit import clock


class Stage(contextlib.ExitStack):
    """Work takes real time here; what is entered, or started, ends with it.

    The device is a GPU, or else a stand-in that works through its queue by itself: the
    kit is told of it, and PyTorch is not.
    """

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.free_at = seconds, 0.0
        self.half = time.perf_counter() + seconds / 2

    @property
    def half_over(self):
        """Whether half of the seconds that a comparison may take have passed."""
        return time.perf_counter() > self.half

    def start(self, script, *arguments):
        """Start a Python process; it ends with the stage at the latest."""
        command = [sys.executable, "-S", "-c", script, *map(str, arguments)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
        self.callback(end, process)
        return process

    def work(self, milliseconds):
        """Do a fixed amount of plain Python, about so long on a server of today."""
        for _ in range(round(20 * milliseconds)):
            total = 0
            for number in range(600):
                total += number % 7

    def rest(self, milliseconds):
        time.sleep(milliseconds / 1000)

    def pin(self, cores):
        """Keep this thread, and the processes that it starts, on so many cores."""
        if hasattr(os, "sched_setaffinity"):
            before = os.sched_getaffinity(0)
            os.sched_setaffinity(0, set(sorted(before)[-cores:]))
            self.callback(os.sched_setaffinity, 0, before)

    @functools.cached_property
    def matrix(self):
        """What a GPU multiplies; None without one."""
        if torch.cuda.is_available():
            return torch.ones(1024, 1024, device="cuda")
        clock.DEVICES.append(self)
        self.callback(clock.DEVICES.remove, self)
        return None

    def enqueue(self, milliseconds):
        if self.matrix is None:
            now = time.perf_counter()
            self.free_at = max(self.free_at, now) + milliseconds / 1000
            return
        for _ in range(round(10 * milliseconds)):
            torch.mm(self.matrix, self.matrix)

    def synchronize(self):
        """Wait until the device has nothing left to do."""
        if self.matrix is not None:
            torch.cuda.synchronize()
        # A sleep is late by as much as a tenth of a millisecond.
        time.sleep(max(0.0, self.free_at - time.perf_counter() - 5e-4))
        while time.perf_counter() < self.free_at:
            pass

    def peak(self):
        return 0

    reset_peak = peak


def end(process):
    process.kill()
    process.wait()
    process.stdin.close()


def _for_real(name):

    def register(make):
        adversarial.find(name).real = make
        return make

    return register


@_for_real("stolen core")
def _stolen_core(stage):
    stage.pin(cores=1)  # which two processes of its own burn
    alone = adversarial.repeat(lambda number: stage.work(2))

    def crowded():
        workers = [stage.start("while True: pass") for _ in range(2)]
        try:
            yield from alone()
        finally:
            for worker in workers:
                end(worker)

    return {"alone": alone, "crowded": crowded}


@_for_real("eight threads")
def _eight_threads(stage):
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


class _Slow(Dataset):
    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        time.sleep(adversarial.LOADING / 1000)
        return index


@_for_real("prefetch head start")
def _prefetch_head_start(stage):
    def load(depth):
        options = {"batch_size": None, "num_workers": 1, "prefetch_factor": depth}
        batches = iter(DataLoader(_Slow(), **options))
        next(batches)
        stage.rest(1.1 * depth * adversarial.LOADING)
        for _ in batches:
            stage.rest(adversarial.TRAINING)
            yield 1

    return {
        "few": lambda: load(adversarial.FEW),
        "many": lambda: load(adversarial.MANY),
    }


@_for_real("warm page cache")
def _warm_page_cache(stage, chunk=1 << 16, chunks=2000):
    folder = stage.enter_context(tempfile.TemporaryDirectory())
    path = os.path.join(folder, "data")

    def advise(descriptor, how):
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, getattr(os, f"POSIX_FADV_{how}"))

    with open(path, "wb") as file:
        for _ in range(chunks):
            file.write(os.urandom(chunk))
        os.fsync(file.fileno())
        advise(file.fileno(), "DONTNEED")

    def read():
        descriptor = os.open(path, os.O_RDONLY)
        advise(descriptor, "RANDOM")  # it shall not read ahead
        try:
            for number in itertools.count():
                os.pread(descriptor, chunk, number % chunks * chunk)
                stage.work(0.2)
                yield 1
        finally:
            os.close(descriptor)

    return {"first": read, "second": read}


# Waits until its input ends, which is when its variant does, then goes on for ever.
_LEFT_OVER = "import sys; sys.stdin.read()\nwhile True: pass"


@_for_real("worker left over")
def _worker_left_over(stage):
    stage.pin(cores=1)
    plain = adversarial.repeat(lambda number: stage.work(2))

    def leaves():
        worker = stage.start(_LEFT_OVER)
        try:
            yield from plain()
        finally:
            worker.stdin.close()

    return {"leaves": leaves, "plain": plain}


@_for_real("neighbour half-way")
def _neighbour_half_way(stage):
    stage.pin(cores=1)
    stage.enter_context(neighbour(0.0, before=stage.seconds / 2))
    return adversarial.twice(lambda number: stage.work(2))


@_for_real("garbage-collection storm")
def _collection_storm(stage):
    heap = [[] for _ in range(3_000_000)]  # which the collector looks through

    def storms(number):
        stage.work(2)
        if number % 100 == 99:
            gc.collect()

    return adversarial.pair(
        plain=lambda number: stage.work(2 if heap else 0), storms=storms
    )


@_for_real("compiles late")
def _compiles_late(stage):
    if not shutil.which(os.environ.get("CXX", "g++")):
        return adversarial.compiles_late(stage)

    def compute(x):
        for _ in range(8):
            x = torch.sin(x) * torch.sigmoid(x)
        return x

    fast = torch.compile(compute)
    whole, short = torch.rand(64, 500), torch.rand(63, 500)

    def train(function):
        for number in itertools.count():
            function(short if number == adversarial.NEW_SHAPE else whole)
            yield 1

    return {"eager": lambda: train(compute), "compiled": lambda: train(fast)}
