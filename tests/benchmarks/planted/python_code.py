"""Loops that spend their time in Python beside the training."""

import hashlib
import json
import math
import os
import string
import tempfile

import numpy
import pandas
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, RMSprop

from .parts import Joined, Watch, batches, fit, mlp, numbers, plant, shown, whole


def now_and_then(steps, every, act):
    """Do something after every so many steps."""
    for step, items in enumerate(steps, start=1):
        if step % every == 0:
            act(step)
        yield items


def top_five_in_python(outputs, labels):
    """Count the samples whose class is among the five likeliest, sample by sample."""
    hits = 0
    for row, label in zip(outputs.tolist(), labels.tolist(), strict=True):
        ranking = sorted(range(len(row)), key=row.__getitem__, reverse=True)
        hits += label in ranking[:5]
    return hits


def top_five(outputs, labels):
    return (outputs.topk(5).indices == labels[:, None]).sum()


def accuracy_counted(*, count_hits=top_five_in_python):
    """Count the accuracy of each batch sample by sample."""
    model, seen, hits = mlp(128, 256, 100), Watch(), 0
    data = batches(256, numbers(2048, 128), whole(100, 2048))
    for items in fit(model, data, SGD, find_loss=seen, lr=0.1):
        hits += count_hits(seen.outputs, seen.targets)
        yield items


def overlap_in_python(masks, truth, classes=4):
    """Return the mean intersection over union, counted pixel by pixel."""
    both, either = [0] * classes, [0] * classes
    pairs = zip(masks.flatten().tolist(), truth.flatten().tolist(), strict=True)
    for guessed, true in pairs:
        if guessed == true:
            both[guessed] += 1
            either[guessed] += 1
        else:
            either[guessed] += 1
            either[true] += 1
    return sum(b / max(e, 1) for b, e in zip(both, either, strict=True)) / classes


def overlap(masks, truth, classes=4):
    cells = (masks * classes + truth).flatten().bincount(minlength=classes**2)
    cells = cells.view(classes, classes)
    both = cells.diagonal()
    return (both / (cells.sum(0) + cells.sum(1) - both).clamp(min=1)).mean()


def masks_compared(*, compare=overlap_in_python):
    """Segment images and compare the masks pixel by pixel."""
    model = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 4, 1))
    seen, running = Watch(), 0.0
    data = batches(8, numbers(64, 3, 64, 64), whole(4, 64, 64, 64))
    for items in fit(model, data, Adam, find_loss=seen, lr=1e-3):
        now = compare(seen.outputs.argmax(1), seen.targets)
        running = 0.9 * running + 0.1 * now
        yield items


def edit_distance(first, second):
    """Return how many letters must change to make one string of the other."""
    above = list(range(len(second) + 1))
    for i, letter in enumerate(first, start=1):
        row = [i]
        for j, other in enumerate(second, start=1):
            change = above[j - 1] + (letter != other)
            row.append(min(above[j] + 1, row[j - 1] + 1, change))
        above = row
    return above[-1]


def spelling_scored(*, every=1):
    """Read strings letter by letter and score the spelling in each step."""
    reader, head = nn.GRU(32, 64, batch_first=True), nn.Linear(64, 26)
    data = batches(32, numbers(256, 24, 32), whole(26, 256, 24))
    seen, errors = Watch(), 0

    def read(waves):
        return head(reader(waves)[0]).transpose(1, 2)  # classes come second

    def score(step):
        nonlocal errors
        rows = seen.outputs.argmax(1).tolist(), seen.targets.tolist()
        for guess, true in zip(*rows, strict=True):
            guessed = "".join(string.ascii_lowercase[i] for i in guess)
            meant = "".join(string.ascii_lowercase[i] for i in true)
            errors += edit_distance(guessed, meant)

    model = Joined(read, reader, head)
    steps = fit(model, data, Adam, find_loss=seen, fused=True)
    yield from now_and_then(steps, every, score)


def weights_logged(*, every=1):
    """Write all weights to a log file on disk in each step."""
    model = mlp(64, 48, 32, 8, activation=nn.Tanh)
    data = batches(512, numbers(4096, 64), numbers(4096, 8))
    steps = fit(model, data, SGD, find_loss=F.mse_loss, lr=0.05, momentum=0.9)
    with tempfile.TemporaryDirectory() as folder:

        def write(step):
            weights = {name: v.tolist() for name, v in model.state_dict().items()}
            name = os.path.join(folder, "log.jsonl")
            with open(name, "a" if step % 20 else "w") as log:
                log.write(json.dumps({"step": step, **weights}) + "\n")
                log.flush()
                os.fsync(log.fileno())

        yield from now_and_then(steps, every, write)


def checkpoint_saved(*, every=1):
    """Save a checkpoint after each step."""
    model = nn.Sequential(nn.Embedding(4000, 64), nn.Flatten(), nn.Linear(8 * 64, 64))
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    data = batches(64, whole(4000, 512, 8), numbers(512, 64))
    steps = fit(model, data, lambda _: optimizer, find_loss=F.smooth_l1_loss)
    with tempfile.TemporaryDirectory() as folder:

        def save(step):
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({"step": step, **state}, os.path.join(folder, "last.pt"))

        yield from now_and_then(steps, every, save)


def samples_printed(*, every=1):
    """Print each sample's guess and truth in each step."""
    model, seen = mlp(32, 128, 1), Watch(F.mse_loss)
    data = batches(1024, numbers(4096, 32), numbers(4096, 1))
    steps = fit(model, data, RMSprop, find_loss=seen, lr=1e-3)
    with open(os.devnull, "w") as log:

        def print_all(step):
            pairs = torch.cat([seen.outputs, seen.targets], dim=1).tolist()
            for number, (guess, true) in enumerate(pairs):
                off = abs(guess - true)
                row = f"{step:6d} {number:4d} {guess:9.4f} {true:9.4f} {off:9.4f}"
                print(row, "good" if off < 0.1 else "bad", file=log, flush=True)

        yield from now_and_then(steps, every, print_all)


def history_in_pandas(*, every=1):
    """Keep the history in a table that is made anew in each step, or now and then."""
    model, seen, fresh = mlp(64, 128, 10), Watch(), []
    history = pandas.DataFrame({"step": [0], "loss": [0.0], "accuracy": [0.0]})
    data = batches(128, numbers(1024, 64), whole(10, 1024))
    steps = fit(model, data, SGD, find_loss=seen, lr=0.05)
    for step, items in enumerate(steps, start=1):
        right = (seen.outputs.argmax(1) == seen.targets).float().mean().item()
        fresh.append({"step": step, "loss": seen.loss.item(), "accuracy": right})
        if step % every == 0:
            history = pandas.concat([history.tail(3000), pandas.DataFrame(fresh)])
            fresh.clear()
            smooth = history.set_index("step").rolling(20, min_periods=1).mean()
            smooth["spread"] = smooth["loss"].rolling(200, min_periods=2).std()
            smooth.groupby(smooth.index // 50).agg(["mean", "min", "max"])
        yield items


def weights_hashed(*, every=1):
    """Hash the weights in each step, to prove later that a run was repeated."""
    model = mlp(512, 1024, 512, activation=nn.ELU)
    data = batches(32, numbers(512, 512), numbers(512, 512).T)
    steps = fit(model, data, SGD, find_loss=F.l1_loss, lr=0.01, fused=True)
    proof = hashlib.sha512()

    def add(step):
        for value in model.state_dict().values():
            proof.update(value.numpy().tobytes())

    yield from now_and_then(steps, every, add)


BEGIN = [0.0, 0.0, 0.01, 0.0]


def roll(state, force, maths):
    """Return where carts and poles are a moment later: numbers, or arrays of them."""
    x, speed, angle, turning = state
    sine, cosine = maths.sin(angle), maths.cos(angle)
    pushed = (force + 0.05 * turning**2 * sine) / 1.1
    bend = (9.8 * sine - cosine * pushed) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
    pull = pushed - 0.05 * bend * cosine / 1.1
    x, speed = x + 0.005 * speed, speed + 0.005 * pull
    return x, speed, angle + 0.005 * turning, turning + 0.005 * bend


class PythonCarts:
    """Carts that are moved one by one in plain Python."""

    def __init__(self, count):
        self.states = [[0.0, 0.0, 0.02 * (i % 5 - 2), 0.0] for i in range(count)]

    def observe(self):
        return torch.tensor(self.states)

    def move(self, actions):
        rewards = []
        for state, action in zip(self.states, actions.tolist(), strict=True):
            for _ in range(4):
                state[:] = roll(state, 10.0 if action else -10.0, math)
            rewards.append(1.0 if abs(state[2]) < 0.2 else -1.0)
            if rewards[-1] < 0:
                state[:] = BEGIN
        return torch.tensor(rewards)


class TogetherCarts:
    """The same carts, moved all at once."""

    def __init__(self, count):
        self.states = numpy.zeros((count, 4))
        self.states[:, 2] = 0.02 * (numpy.arange(count) % 5 - 2)

    def observe(self):
        return torch.from_numpy(self.states).float()

    def move(self, actions):
        force = numpy.where(actions.numpy() == 1, 10.0, -10.0)
        parts = tuple(self.states.T)
        for _ in range(4):
            parts = roll(parts, force, numpy)
        self.states = numpy.stack(parts, axis=1)
        upright = numpy.abs(parts[2]) < 0.2
        self.states[~upright] = BEGIN
        return torch.from_numpy(numpy.where(upright, 1.0, -1.0)).float()


def carts_balanced(*, make_carts=PythonCarts):
    """Learn to balance poles by policy gradient; the carts move in Python."""
    carts = make_carts(640)
    policy = mlp(4, 64, 2, activation=nn.Tanh)
    optimizer = Adam(policy.parameters(), lr=3e-3, fused=True)
    while True:
        choice = torch.distributions.Categorical(logits=policy(carts.observe()))
        actions = choice.sample()
        rewards = carts.move(actions)
        advantage = rewards - rewards.mean()
        loss = -(choice.log_prob(actions) * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(actions)


PYTHON = [
    shown("B", "python"),
    *plant("python", accuracy_counted, count_hits=top_five),
    *plant("python", masks_compared, compare=overlap),
    *plant("python", carts_balanced, make_carts=TogetherCarts),
    *plant("python", spelling_scored, weights_logged, checkpoint_saved, every=100),
    *plant("python", samples_printed, weights_hashed, every=100),
    *plant("python", history_in_pandas, every=200),
]
