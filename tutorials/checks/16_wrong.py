"""Plausible wrong answers to the exercises of chapter 16: the checks refuse them."""

import torch
from torch.distributed import autograd, rpc
from torch.distributed.optim import DistributedOptimizer


def asks_twice(server, compute, steps):
    weights = server.get()
    for _ in range(steps):
        server.put(compute(weights))
        weights = server.get()


def loses_the_last(server, compute, steps):
    weights = server.get()
    for step in range(steps):
        gradient = compute(weights)
        if step < steps - 1:
            weights = server.put_and_get(gradient)


def asks_once(server, compute, steps):
    weights = server.get()
    for _ in range(steps):
        server.put(compute(weights))


class KeepsAllReferences:
    def __init__(self, remote):
        self.remote, self.films, self.total, self.best = remote, [], 0, None

    def play(self, number):
        film = self.remote(number)
        self.films.append(film)
        self.total += film.rpc_sync().score()
        self.best = max(self.films, key=lambda film: film.rpc_sync().score())
        return self.total / len(self.films)


class FetchesTheFilm:
    def __init__(self, remote):
        self.remote, self.scores, self.best = remote, [], None

    def play(self, number):
        film = self.remote(number).to_here()
        if not self.scores or film.score() > max(self.scores):
            self.best = film
        self.scores.append(film.score())
        return sum(self.scores) / len(self.scores)


def forgets_the_table(table, rows, weight, tokens, targets):
    with autograd.context() as context:
        found = table.rpc_sync().forward(tokens) @ weight
        autograd.backward(context, [(found - targets).square().mean()])
        DistributedOptimizer(torch.optim.SGD, [rpc.RRef(weight)], lr=0.1).step(context)


def calls_before_the_context(table, rows, weight, tokens, targets):
    loss = (table.rpc_sync().forward(tokens) @ weight - targets).square().mean()
    loss.backward()
    both = [rows, rpc.RRef(weight)]
    with autograd.context() as context:
        DistributedOptimizer(torch.optim.SGD, both, lr=0.1).step(context)


WRONG = {
    "messages": [asks_twice, loses_the_last, asks_once],
    "leak": [KeepsAllReferences, FetchesTheFilm],
    "gradient": [forgets_the_table, calls_before_the_context],
}
