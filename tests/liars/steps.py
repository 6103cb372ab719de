"""Steps that are not alike, and devices with a queue."""

import gc
import itertools
import os
import shutil

import torch

from liars.stages import repeat

# Devices with a queue


def never_synchronised(stage):
    """It only enqueues its work, so its steps seem to take no time."""

    def waits(number):
        stage.device.enqueue(5)
        stage.device.synchronize()

    def enqueues(number):
        stage.device.enqueue(10)

    return {"waits": repeat(waits), "enqueues": repeat(enqueues)}


def item_in_one(stage):
    """`.item()` makes one variant wait in each step for what both have to do."""

    def plain(number):
        stage.device.enqueue(5)

    def reads(number):
        stage.device.enqueue(5)
        stage.device.synchronize()  # as reading a tensor does

    return {"plain": repeat(plain), "reads": repeat(reads)}


# Steps that are not alike


def unequal_work(stage):
    """Its steps are longer and handle more, now few items, now many."""

    def even(number):
        stage.work(0.8)
        return 32

    def uneven(number):
        items = 8 if number % 2 else 120
        stage.work(items * 0.02)
        return items

    return {"even": repeat(even), "uneven": repeat(uneven)}


def fewer_items(stage):
    """It says 64 items and handles 48."""

    def honest(number):
        stage.work(4)
        return 64

    def boasts(number):
        stage.work(3)
        return 64

    return {"honest": repeat(honest), "boasts": repeat(boasts)}


def growing_step(stage):
    """Its first steps are short, and each takes longer than the one before."""

    def even(number):
        stage.work(5)

    def grows(number):
        stage.work(3 + 0.03 * number)

    return {"even": repeat(even), "grows": repeat(grows)}


_COLLECT_EVERY = 100


def collection_storm(stage):
    """Garbage is collected every hundred steps, which a typical step does not show."""

    def plain(number):
        stage.work(2)

    def storms(number):
        stage.work(2 + 60 * (number % _COLLECT_EVERY == _COLLECT_EVERY - 1))

    return {"plain": repeat(plain), "storms": repeat(storms)}


def collection_storm_for_real(stage):
    """Every hundred steps the collector looks through half a million objects."""
    heap = [[] for _ in range(500_000)]

    def plain(number):
        stage.work(2 if heap else 0)

    def storms(number):
        stage.work(2)
        if number % _COLLECT_EVERY == _COLLECT_EVERY - 1:
            gc.collect()

    return {"plain": repeat(plain), "storms": repeat(storms)}


_NEW_SHAPE = 12


def compiles_late(stage):
    """It compiles in its first step, and again where a batch has another shape."""

    def eager(number):
        stage.work(5)

    def compiled(number):
        stage.work(300 if number in (1, _NEW_SHAPE) else 2.5)

    return {"eager": repeat(eager), "compiled": repeat(compiled)}


def compiles_late_for_real(stage):
    """`torch.compile` compiles in the first step and for the first shorter batch."""
    if not shutil.which(os.environ.get("CXX", "g++")):
        return compiles_late(stage)

    def compute(x):
        for _ in range(8):
            x = torch.sin(x) * torch.sigmoid(x)
        return x

    fast = torch.compile(compute)
    whole, short = torch.rand(64, 500), torch.rand(63, 500)

    def train(function):
        for number in itertools.count():
            function(short if number == _NEW_SHAPE else whole)
            yield 1

    return {"eager": lambda: train(compute), "compiled": lambda: train(fast)}


_RARE = 200


def rare_step(stage):
    """Every two-hundredth step takes a hundred times as long as the others."""

    def even(number):
        stage.work(1)

    def rare(number):
        stage.work(100 if number % _RARE == _RARE - 1 else 1)

    return {"even": repeat(even), "rare": repeat(rare)}


def shrinking_data(stage):
    """Whoever takes a batch leaves less data behind, so later steps are shorter."""
    left = [256.0]

    def step(number):
        items = max(8, int(left[0]))
        left[0] *= 0.998
        stage.work(0.5 + items * 0.02)
        return items

    return {"first": repeat(step), "second": repeat(step)}
