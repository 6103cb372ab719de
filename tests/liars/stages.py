"""Where liars act: real time, or simulated; and the queues of devices."""

import contextlib
import functools
import itertools
import os
import subprocess
import sys
import time

import torch

from kit import clock


class _Stage(contextlib.ExitStack):
    """What is entered into this context, or started here, ends with it."""

    def start(self, script, *arguments):
        """Start a Python process; it ends with the stage at the latest."""
        command = [sys.executable, "-S", "-c", script, *map(str, arguments)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
        self.callback(end, process)
        return process


class Stage(_Stage):
    """Work takes real time here."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.begun = seconds, time.perf_counter()

    @property
    def half_over(self):
        """Whether half of the seconds that a comparison may take have passed."""
        return time.perf_counter() - self.begun > self.seconds / 2

    @functools.cached_property
    def device(self):
        """A GPU, or else a stand-in that the kit is told of, and PyTorch is not."""
        if torch.cuda.is_available():
            return CudaQueue()
        queue = SleepingQueue()
        clock.DEVICES.append(queue)
        self.callback(clock.DEVICES.remove, queue)
        return queue

    def work(self, milliseconds):
        """Do a fixed amount of plain Python, about so long on a server of today."""
        for _ in range(round(20 * milliseconds)):
            spin()

    def rest(self, milliseconds):
        """Wait without using a core."""
        time.sleep(milliseconds / 1000)

    def pin(self, cores):
        """Keep this thread, and the processes that it starts, on so many cores."""
        if not hasattr(os, "sched_setaffinity"):
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, set(sorted(before)[-cores:]))
        self.callback(os.sched_setaffinity, 0, before)


class SimulatedStage(_Stage):
    """Work moves a fake clock here (`helpers.FakeClock`, `helpers.FakeDevice`)."""

    def __init__(self, seconds, clock, device):
        super().__init__()
        self.clock, self.device = clock, FakeQueue(device)
        self.half = clock.now + seconds / 2

    @property
    def half_over(self):
        """Whether half of the seconds that a comparison may take have passed."""
        return self.clock.now > self.half

    def work(self, milliseconds, *, delay=0.0, own=0.0):
        """Let the clock go on; `delay` and `own` as `FakeClock.work` has them."""
        self.clock.work(milliseconds / 1000, delay=delay / 1000, own=own / 1000)

    rest = work


class FakeQueue:
    """`helpers.FakeDevice`, told milliseconds."""

    def __init__(self, device):
        self.enqueue = lambda milliseconds: device.enqueue(milliseconds / 1000)
        self.synchronize = device.synchronize


class SleepingQueue:
    """A device that works through its queue by itself; PyTorch does not know it."""

    def __init__(self):
        self.free_at = 0.0

    def enqueue(self, milliseconds):
        self.free_at = max(self.free_at, time.perf_counter()) + milliseconds / 1000

    def synchronize(self):
        # A sleep is late by as much as a tenth of a millisecond.
        time.sleep(max(0.0, self.free_at - time.perf_counter() - 5e-4))
        while time.perf_counter() < self.free_at:
            pass

    def reset_peak(self):
        return 0

    def peak(self):
        return 0


class CudaQueue:
    """The current CUDA device; a millisecond of work is so many multiplications."""

    def __init__(self):
        self.matrix = torch.ones(1024, 1024, device="cuda")
        self.out = torch.empty_like(self.matrix)

    def enqueue(self, milliseconds):
        for _ in range(round(10 * milliseconds)):
            torch.mm(self.matrix, self.matrix, out=self.out)

    def synchronize(self):
        self.out[0, 0].item()


def spin(turns=600):
    """Add numbers."""
    total = 0
    for number in range(turns):
        total += number % 7
    return total


def end(process):
    """End a process that was started here, and wait for it."""
    process.kill()
    process.wait()
    process.stdin.close()


def repeat(step):
    """Make an experiment of a function: its argument is the step's number in a start.

    What it returns is the number of items, one for None.
    """

    def experiment():
        for number in itertools.count():
            yield step(number) or 1

    return experiment
