"""Loops of very many very small operations."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from .parts import Planted, batches, mlp, numbers, shown, whole_numbers


def batch_of_one():
    """Learn from one row at a time, sixteen steps before each report."""
    model = mlp(32, 64, 64, 64, 64, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    rows = batches(1, numbers(1024, 32), whole_numbers(5, 1024))
    for done, (row, label) in enumerate(rows, start=1):
        loss = F.cross_entropy(model(row), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if done % 16 == 0:
            yield 16


def batch_of_many():
    """Learn from a batch of rows at a time."""
    model = mlp(32, 64, 64, 64, 64, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    for row, label in batches(64, numbers(1024, 32), whole_numbers(5, 1024)):
        loss = F.cross_entropy(model(row), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(row)


class HandwrittenRNN(nn.Module):
    """An Elman network, a time step at a time, with PyTorch's parameter names."""

    def __init__(self, inputs, hidden):
        super().__init__()
        self.weight_ih = nn.Parameter(torch.randn(hidden, inputs) / inputs**0.5)
        self.weight_hh = nn.Parameter(torch.randn(hidden, hidden) / hidden**0.5)
        self.bias = nn.Parameter(torch.zeros(hidden))

    def forward(self, sequence):
        state = sequence.new_zeros(sequence.shape[1], len(self.bias))
        for values in sequence:
            drive = values @ self.weight_ih.t()
            state = torch.tanh(drive + state @ self.weight_hh.t() + self.bias)
        return state


class GivenRNN(nn.Module):
    """The same network as PyTorch has it, with the same weights at the start."""

    def __init__(self, inputs, hidden):
        super().__init__()
        by_hand = HandwrittenRNN(inputs, hidden)
        self.rnn = nn.RNN(inputs, hidden)
        self.rnn.weight_ih_l0.data.copy_(by_hand.weight_ih)
        self.rnn.weight_hh_l0.data.copy_(by_hand.weight_hh)
        nn.init.zeros_(self.rnn.bias_ih_l0)
        nn.init.zeros_(self.rnn.bias_hh_l0)

    def forward(self, sequence):
        return self.rnn(sequence)[1][0]


def recurrent_by_hand(*, encoder=HandwrittenRNN):
    """Predict the next value of a series with a recurrent network written by hand."""
    series, targets = numbers(640, 100, 4), numbers(640, 4)
    head, rnn = nn.Linear(12, 4), encoder(4, 12)
    optimizer = torch.optim.Adam([*rnn.parameters(), *head.parameters()], fused=True)
    for window, target in batches(16, series, targets):
        optimizer.zero_grad(set_to_none=True)
        loss = F.mse_loss(head(rnn(window.transpose(0, 1))), target)
        loss.backward()
        nn.utils.clip_grad_norm_(rnn.parameters(), 1.0)
        optimizer.step()
        yield len(window)


class ManyHeads(nn.Module):
    """A small network of its own for each of many outputs."""

    def __init__(self, heads, width):
        super().__init__()
        self.first = nn.ModuleList(nn.Linear(width, 8) for _ in range(heads))
        self.second = nn.ModuleList(nn.Linear(8, 1) for _ in range(heads))

    def forward(self, inputs):
        pairs = zip(self.first, self.second, strict=True)
        return torch.cat([b(torch.relu(a(inputs))) for a, b in pairs], dim=1)


class StackedHeads(nn.Module):
    """The same networks as two layers that hold all of them."""

    def __init__(self, heads, width):
        super().__init__()
        many = ManyHeads(heads, width)
        first, second = many.first, many.second
        self.first = nn.Parameter(torch.cat([a.weight for a in first]).detach())
        self.bias = nn.Parameter(torch.cat([a.bias for a in first]).detach())
        self.second = nn.Parameter(torch.cat([b.weight for b in second]).detach())
        self.shift = nn.Parameter(torch.cat([b.bias for b in second]).detach())

    def forward(self, inputs):
        hidden = torch.relu(F.linear(inputs, self.first, self.bias))
        hidden = hidden.unflatten(1, self.second.shape)
        return (hidden * self.second).sum(-1) + self.shift


def many_tiny_layers(*, heads=ManyHeads):
    """Predict many properties, each with tiny layers of its own."""
    model = heads(96, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    for inputs, targets in batches(32, numbers(640, 16), numbers(640, 96)):
        loss = F.huber_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(inputs)


def pull_pairs_in_a_loop(points, labels):
    """Return the contrastive loss, pair by pair."""
    loss, pairs = torch.zeros(()), 0
    for i in range(len(points)):
        for j in range(i):
            distance = (points[i] - points[j]).square().sum()
            close = labels[i] == labels[j]
            loss = loss + (distance if close else F.relu(1 - distance))
            pairs += 1
    return loss / pairs


def pull_pairs(points, labels):
    distances = (points[:, None] - points).square().sum(-1)
    close = labels[:, None] == labels
    losses = torch.where(close, distances, F.relu(1 - distances))
    return losses[torch.ones_like(close).tril(-1)].mean()


def pairs_in_a_loop(*, contrast=pull_pairs_in_a_loop):
    """Learn an embedding from pairs that are compared one by one."""
    model = mlp(64, 64, 8, activation=nn.Tanh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for inputs, labels in batches(24, numbers(480, 64), whole_numbers(4, 480)):
        loss = contrast(F.normalize(model(inputs)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(inputs)


def mix_node_by_node(states, edges):
    return torch.stack([states[neighbours].mean(0) for neighbours in edges])


def mix_nodes(states, edges):
    return states[edges].mean(1)


def graph_node_by_node(*, mix=mix_node_by_node):
    """Train a graph network that visits its nodes one after the other."""
    features, classes = numbers(150, 24), whole_numbers(6, 150)
    edges = whole_numbers(150, 150, 6)
    layers = nn.ModuleList([nn.Linear(48, 24), nn.Linear(48, 6)])
    optimizer = torch.optim.Adam(layers.parameters(), lr=0.01, fused=True)
    while True:
        states = features
        for layer in layers:
            messages = mix(states, edges)
            states = layer(torch.cat([F.relu(states), messages], dim=1))
        loss = F.cross_entropy(states, classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(states)


def attend_head_by_head(query, key, value):
    """Attend a sequence and a head at a time."""
    attended = torch.empty_like(query)
    for i in range(query.shape[0]):
        for head in range(query.shape[1]):
            scores = query[i, head] @ key[i, head].t() / query.shape[-1] ** 0.5
            attended[i, head] = scores.softmax(-1) @ value[i, head]
    return attended


def heads_in_a_loop(*, attend=attend_head_by_head):
    """Train a tiny transformer whose heads attend one after the other."""
    embed, mix = nn.Embedding(100, 32), nn.Linear(32, 96)
    head = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 100))
    parts = nn.ModuleList([embed, mix, head])
    optimizer = torch.optim.AdamW(parts.parameters(), lr=1e-3, fused=True)
    for words, following in batches(
        16, whole_numbers(100, 320, 12), whole_numbers(100, 320, 12)
    ):
        states = embed(words)
        split = [
            t.unflatten(-1, (4, 8)).transpose(1, 2) for t in mix(states).chunk(3, -1)
        ]
        states = states + attend(*split).transpose(1, 2).flatten(2)
        loss = F.cross_entropy(head(states).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(words)


_TABLE = [
    ("a recurrent network by hand", recurrent_by_hand, {"encoder": GivenRNN}),
    ("many tiny layers", many_tiny_layers, {"heads": StackedHeads}),
    ("pairs in a loop", pairs_in_a_loop, {"contrast": pull_pairs}),
    ("a graph, node by node", graph_node_by_node, {"mix": mix_nodes}),
    (
        "attention, head by head",
        heads_in_a_loop,
        {"attend": F.scaled_dot_product_attention},
    ),
]
OVERHEAD = [
    Planted("a batch of one", "overhead", batch_of_one, batch_of_many),
    shown("A", "samples in a loop", "overhead"),
    *(Planted(name, "overhead", bad, partial(bad, **fix)) for name, bad, fix in _TABLE),
]
