"""What a training loop writes down and counts about itself, in Python."""

from __future__ import annotations

import json
import math
import os

import numpy
import torch


def top_five_in_python(outputs, labels):
    """Count the samples whose class is among the five likeliest, sample by sample."""
    hits = 0
    for row, label in zip(outputs.tolist(), labels.tolist(), strict=True):
        ranking = sorted(range(len(row)), key=row.__getitem__, reverse=True)
        hits += label in ranking[:5]
    return hits


def top_five(outputs, labels):
    return (outputs.topk(5).indices == labels[:, None]).sum()


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


def write_weights(path, step, loss, model):
    """Append a line of JSON with the loss and every weight, safe on the disk."""
    weights = {name: value.tolist() for name, value in model.state_dict().items()}
    with open(path, "a" if step % 20 else "w") as log:
        log.write(json.dumps({"step": step, "loss": loss.item(), **weights}) + "\n")
        log.flush()
        os.fsync(log.fileno())


class PythonCarts:
    """Poles balanced on carts, moved one by one in plain Python."""

    def __init__(self, count):
        self.states = [[0.0, 0.0, 0.02 * (i % 5 - 2), 0.0] for i in range(count)]

    def observe(self):
        return torch.tensor(self.states)

    def move(self, actions):
        rewards = []
        for state, action in zip(self.states, actions.tolist(), strict=True):
            for _ in range(4):
                x, speed, angle, turning = state
                force = 10.0 if action else -10.0
                sine, cosine = math.sin(angle), math.cos(angle)
                pushed = (force + 0.05 * turning**2 * sine) / 1.1
                bend = (9.8 * sine - cosine * pushed) / (
                    0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1)
                )
                pull = pushed - 0.05 * bend * cosine / 1.1
                state[:] = (
                    x + 0.005 * speed,
                    speed + 0.005 * pull,
                    angle + 0.005 * turning,
                    turning + 0.005 * bend,
                )
            upright = abs(state[2]) < 0.2
            rewards.append(1.0 if upright else -1.0)
            if not upright:
                state[:] = [0.0, 0.0, 0.01, 0.0]
        return torch.tensor(rewards)


class TogetherCarts:
    """The same carts, moved all at once."""

    def __init__(self, count):
        angle = 0.02 * (torch.arange(count, dtype=torch.float64) % 5 - 2)
        self.states = torch.zeros(count, 4, dtype=torch.float64)
        self.states[:, 2] = angle

    def observe(self):
        return self.states.float()

    def move(self, actions):
        x, speed, angle, turning = self.states.numpy().T
        force = numpy.where(actions.numpy() == 1, 10.0, -10.0)
        for _ in range(4):
            sine, cosine = numpy.sin(angle), numpy.cos(angle)
            pushed = (force + 0.05 * turning**2 * sine) / 1.1
            bend = (9.8 * sine - cosine * pushed) / (
                0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1)
            )
            pull = pushed - 0.05 * bend * cosine / 1.1
            x, speed = x + 0.005 * speed, speed + 0.005 * pull
            angle, turning = angle + 0.005 * turning, turning + 0.005 * bend
        upright = numpy.abs(angle) < 0.2
        states = numpy.stack([x, speed, angle, turning], axis=1)
        states[~upright] = [0.0, 0.0, 0.01, 0.0]
        self.states = torch.from_numpy(states)
        return torch.from_numpy(numpy.where(upright, 1.0, -1.0)).float()
