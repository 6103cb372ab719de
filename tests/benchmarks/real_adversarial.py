"""A stage where the work of adversarial experiments takes real time."""

import contextlib
import functools
import time

import torch

from kit import clock


class Stage(contextlib.ExitStack):
    """Work takes real time here.

    The device is a GPU, or else a stand-in that works through its queue by itself: the
    kit is told of it, and PyTorch is not.
    """

    def __init__(self, seconds):
        super().__init__()
        self.free_at = 0.0
        self.half = time.perf_counter() + seconds / 2

    @property
    def half_over(self):
        """Whether half of the seconds that a comparison may take have passed."""
        return time.perf_counter() > self.half

    def work(self, milliseconds):
        """Do a fixed amount of plain Python, about so long on a server of today."""
        for _ in range(round(20 * milliseconds)):
            total = 0
            for number in range(600):
                total += number % 7

    def rest(self, milliseconds):
        time.sleep(milliseconds / 1000)

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
