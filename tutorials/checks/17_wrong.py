"""Plausible wrong answers to the exercises of chapter 17: the checks refuse them."""

import itertools
import math
import shutil

import torch


class WritesInPlace:
    def __init__(self, folder):
        self.folder = folder

    def save(self, step, write):
        path = self.folder / f"step-{step:08}"
        shutil.rmtree(path, ignore_errors=True)
        write(path)

    def newest(self):
        return max(self.folder.glob("step-*"), default=None)


class SortsAsText(WritesInPlace):
    def save(self, step, write):
        part = self.folder / "part"
        shutil.rmtree(part, ignore_errors=True)
        write(part)
        part.rename(self.folder / f"step-{step}")


class RemovesTheOldFirst(WritesInPlace):
    def save(self, step, write):
        for old in self.folder.iterdir():
            shutil.rmtree(old)
        write(self.folder / "part")
        (self.folder / "part").rename(self.folder / f"step-{step:08}")


def own_order(step, rank, ranks, samples, size):
    epoch, number = divmod(step, samples // size)
    order = torch.Generator().manual_seed(1000 * epoch + rank)
    numbers = torch.randperm(samples, generator=order)[rank::ranks]
    return numbers[number * size // ranks : (number + 1) * size // ranks].tolist()


def same_epochs(step, rank, ranks, samples, size):
    numbers = torch.randperm(samples, generator=torch.Generator().manual_seed(0))
    first = step * size % samples
    return numbers[first : first + size][rank::ranks].tolist()


def whatever_was_drawn(step, rank, ranks, samples, size):
    first = step * size % samples
    return torch.randperm(samples)[first : first + size][rank::ranks].tolist()


def by_steps(arrivals):
    lasts = [max(times) for times in arrivals]
    return math.ceil(max(b - a for a, b in itertools.pairwise(lasts)))


def by_the_mean(arrivals):
    waits = [max(times) - min(times) for times in arrivals]
    return math.ceil(sum(waits) / len(waits))


def too_short(arrivals):
    return math.ceil(max(max(times) - min(times) for times in arrivals))


WRONG = {
    "keeper": [WritesInPlace, SortsAsText, RemovesTheOldFirst],
    "batch": [own_order, same_epochs, whatever_was_drawn],
    "timeout": [by_steps, by_the_mean, too_short],
}
