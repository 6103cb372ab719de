"""State that leaks from one variant into the other; machines that change."""

import itertools
import subprocess

import torch

from liars.stages import repeat

# State that leaks from one variant into the other


def leaked_autocast(stage):
    """The baseline switches autocast on and never off; the variant profits from it."""

    def step(number):
        stage.work(2.5 if torch.is_autocast_enabled("cpu") else 5)

    def leaks():
        torch.autocast("cpu", dtype=torch.bfloat16).__enter__()
        yield from repeat(step)()

    return {"leaks": leaks, "plain": repeat(step)}


def leaked_threads(stage):
    """The baseline sets the thread count and does not set it back."""
    usual = torch.get_num_threads()

    def step(number):
        stage.work(2.5 if torch.get_num_threads() == usual + 1 else 5)

    def leaks():
        torch.set_num_threads(usual + 1)
        yield from repeat(step)()

    return {"leaks": leaks, "plain": repeat(step)}


def model_trained_by_both(stage, model=None):
    """Both train one model, and a trained model has less left to do."""
    model = model or torch.nn.Linear(1, 1)
    untrained = model.weight.item()

    def train():
        easy = model.weight.item() != untrained
        while True:
            with torch.no_grad():
                model.weight += 1.0
            stage.work(2.5 if easy else 5)
            yield 1

    return {"first": lambda: train(), "second": lambda: train()}


# Waits until its input ends, which is when its variant does, then goes on for ever.
_LEFT_OVER = "import sys; sys.stdin.read()\nwhile True: pass"


def worker_left_over(stage):
    """A worker of the baseline lives on after it and slows down whoever comes next."""
    left = []

    def step(number):
        stage.work(10 if any(map(runs_on, left)) else 5)

    def leaves():
        worker = stage.start(_LEFT_OVER)
        try:
            yield from repeat(step)()
        finally:
            left.append(worker)

    return {"leaves": leaves, "plain": repeat(step)}


def runs_on(process):
    """Whether a process is alive; one that was killed just now has a second to end."""
    try:
        process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        return True
    return False


def worker_left_over_for_real(stage):
    """The baseline's worker begins to burn the one core when the baseline ends."""
    stage.pin(cores=1)

    def plain():
        while True:
            stage.work(2)
            yield 1

    def leaves():
        worker = stage.start(_LEFT_OVER)
        try:
            yield from plain()
        finally:
            worker.stdin.close()

    return {"leaves": leaves, "plain": plain}


# A machine that changes meanwhile


def throttled_half(stage):
    """The machine halves its speed half-way, and the variant is measured last."""

    def step(number):
        stage.work(4 if stage.half_over else 2)

    return {"first": repeat(step), "second": repeat(step)}


def neighbour_half_way(stage):
    """A neighbour takes half of the core from half-way on."""

    def step(number):
        if stage.half_over:
            stage.work(10, delay=5)
        else:
            stage.work(5)

    return {"first": repeat(step), "second": repeat(step)}


# Forks and leaves, so that the system adopts it: one's own children are one's own cost.
_NEIGHBOUR = """
import os, sys, threading, time
if os.fork():
    os._exit(0)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
time.sleep(float(sys.argv[1]))
while True:
    sum(range(1000))
"""


def neighbour_half_way_for_real(stage):
    """Somebody else's process begins to burn the one core half-way."""
    stage.pin(cores=1)
    starter = stage.start(_NEIGHBOUR, stage.seconds / 2)
    starter.wait()

    def step(number):
        stage.work(2)

    return {"first": repeat(step), "second": repeat(step)}


def jumping_clock(stage, seconds=50.0):
    """The clock jumps ahead by 50 s in the middle of a step, once."""
    numbers = itertools.count()

    def step(number):
        stage.work(5 + (1000 * seconds if next(numbers) == 300 else 0))

    return {"first": repeat(step), "second": repeat(step)}
