"""Loops that spend their time in Python beside the training."""

from __future__ import annotations

import hashlib
import os
import string
import tempfile
from functools import partial

import pandas
import torch
from torch import nn
from torch.nn import functional as F

from .bookkeeping import (
    PythonCarts,
    TogetherCarts,
    edit_distance,
    overlap,
    overlap_in_python,
    top_five,
    top_five_in_python,
    write_weights,
)
from .parts import Planted, batches, mlp, numbers, shown, whole_numbers


def accuracy_counted(*, count_hits=top_five_in_python):
    """Count the accuracy of each batch sample by sample."""
    model = mlp(128, 256, 100)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hits = total = 0
    for inputs, labels in batches(256, numbers(2048, 128), whole_numbers(100, 2048)):
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hits += count_hits(outputs.detach(), labels)
        total += len(labels)
        yield len(labels)


def masks_compared(*, compare=overlap_in_python):
    """Segment images and compare the masks pixel by pixel."""
    model = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    images, truth = numbers(64, 3, 64, 64), whole_numbers(4, 64, 64, 64)
    running = 0.0
    for image, mask in batches(8, images, truth):
        scores = model(image)
        loss = F.cross_entropy(scores, mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running = 0.9 * running + 0.1 * compare(scores.argmax(1), mask)
        yield len(image)


def spelling_scored(*, score_every=1):
    """Read strings letter by letter and score the spelling in each step."""
    model = nn.GRU(32, 64, batch_first=True)
    head = nn.Linear(64, 26)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], fused=True)
    waves, letters = numbers(256, 24, 32), whole_numbers(26, 256, 24)
    errors = 0
    for step, (wave, text) in enumerate(batches(32, waves, letters), start=1):
        scores = head(model(wave)[0])
        loss = F.cross_entropy(scores.flatten(0, 1), text.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % score_every == 0:
            guesses = scores.argmax(-1).tolist()
            for guess, true in zip(guesses, text.tolist(), strict=True):
                guessed = "".join(string.ascii_lowercase[i] for i in guess)
                meant = "".join(string.ascii_lowercase[i] for i in true)
                errors += edit_distance(guessed, meant)
        yield len(wave)


def weights_logged(*, log_every=1):
    """Write all weights to a log file on disk in each step."""
    model = mlp(64, 48, 32, 8, activation=nn.Tanh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.MSELoss()
    with tempfile.TemporaryDirectory() as folder:
        for step, (inputs, targets) in enumerate(
            batches(512, numbers(4096, 64), numbers(4096, 8)), start=1
        ):
            loss = criterion(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % log_every == 0:
                write_weights(os.path.join(folder, "log.jsonl"), step, loss, model)
            yield len(inputs)


def checkpoint_saved(*, save_every=1):
    """Save a checkpoint after each step."""
    model = nn.Sequential(nn.Embedding(4000, 64), nn.Flatten(), nn.Linear(8 * 64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "last.pt")
        for step, (words, targets) in enumerate(
            batches(64, whole_numbers(4000, 512, 8), numbers(512, 64)), start=1
        ):
            loss = F.smooth_l1_loss(model(words), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % save_every == 0:
                state = {
                    "step": step,
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                }
                torch.save(state, path)
            yield len(words)


def samples_printed(*, print_every=1):
    """Print each sample's guess and truth in each step."""
    model = mlp(32, 128, 1)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    with open(os.devnull, "w") as log:
        for step, (inputs, targets) in enumerate(
            batches(1024, numbers(4096, 32), numbers(4096, 1)), start=1
        ):
            outputs = model(inputs)
            loss = F.mse_loss(outputs, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % print_every == 0:
                pairs = torch.cat([outputs.detach(), targets], dim=1).tolist()
                for number, (guess, true) in enumerate(pairs):
                    off = abs(guess - true)
                    row = f"{step:6d} {number:4d} {guess:9.4f} {true:9.4f} {off:9.4f}"
                    print(row, "good" if off < 0.1 else "bad", file=log, flush=True)
            yield len(inputs)


def history_in_pandas():
    """Keep the history in a table that is made anew in each step."""
    model = mlp(64, 128, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    history = pandas.DataFrame({"step": [0], "loss": [0.0], "accuracy": [0.0]})
    for step, (inputs, labels) in enumerate(
        batches(128, numbers(1024, 64), whole_numbers(10, 1024)), start=1
    ):
        outputs = model(inputs)
        loss = F.cross_entropy(outputs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        accuracy = (outputs.argmax(1) == labels).float().mean().item()
        row = {"step": [step], "loss": [loss.item()], "accuracy": [accuracy]}
        history = pandas.concat([history.tail(3000), pandas.DataFrame(row)])
        smooth = history.set_index("step").rolling(20, min_periods=1).mean()
        smooth["spread"] = smooth["loss"].rolling(200, min_periods=2).std()
        smooth.groupby(smooth.index // 50).agg(["mean", "min", "max"])
        yield len(inputs)


def history_in_a_list():
    """Keep the history in a list, and make a table of it now and then."""
    model = mlp(64, 128, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    history = []
    for step, (inputs, labels) in enumerate(
        batches(128, numbers(1024, 64), whole_numbers(10, 1024)), start=1
    ):
        outputs = model(inputs)
        loss = F.cross_entropy(outputs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        accuracy = (outputs.argmax(1) == labels).float().mean().item()
        history = [*history[-3000:], (step, loss.item(), accuracy)]
        if step % 200 == 0:
            table = pandas.DataFrame(history, columns=["step", "loss", "accuracy"])
            smooth = table.set_index("step").rolling(20, min_periods=1).mean()
            smooth["spread"] = smooth["loss"].rolling(200, min_periods=2).std()
            smooth.groupby(smooth.index // 50).agg(["mean", "min", "max"])
        yield len(inputs)


def weights_hashed(*, hash_every=1):
    """Hash the weights in each step, to prove later that a run was repeated."""
    model = mlp(512, 1024, 512, activation=nn.ELU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    proof = hashlib.sha512()
    for step, (inputs, targets) in enumerate(
        batches(32, numbers(512, 512), numbers(512, 512).T), start=1
    ):
        loss = F.l1_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % hash_every == 0:
            for value in model.state_dict().values():
                proof.update(value.numpy().tobytes())
        yield len(inputs)


def carts_balanced(*, make_carts=PythonCarts):
    """Learn to balance poles by policy gradient; the carts move in Python."""
    carts = make_carts(640)
    policy = mlp(4, 64, 2, activation=nn.Tanh)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3, fused=True)
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


_TABLE = [
    ("top five counted in Python", accuracy_counted, {"count_hits": top_five}),
    ("masks compared in Python", masks_compared, {"compare": overlap}),
    ("spelling scored in Python", spelling_scored, {"score_every": 100}),
    ("weights logged to disk", weights_logged, {"log_every": 100}),
    ("a checkpoint each step", checkpoint_saved, {"save_every": 100}),
    ("samples printed", samples_printed, {"print_every": 100}),
    ("weights hashed", weights_hashed, {"hash_every": 100}),
    ("carts moved in Python", carts_balanced, {"make_carts": TogetherCarts}),
]
PYTHON = [
    *(Planted(name, "python", bad, partial(bad, **fix)) for name, bad, fix in _TABLE),
    Planted("history in pandas", "python", history_in_pandas, history_in_a_list),
    shown("B", "quantiles in NumPy", "python"),
]
