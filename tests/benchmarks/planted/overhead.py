"""Loops of very many very small operations, or of too few or too many threads."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW

from .parts import Joined, batches, clip_to_one, fit, mlp, numbers, plant, shown, whole


def batch_of_one(*, batch_size=1):
    """Learn from one row at a time, sixteen steps before each report; or together."""
    data = batches(batch_size, numbers(1024, 32), whole(5, 1024))
    steps = fit(mlp(32, 64, 64, 64, 64, 5), data, SGD, lr=0.01, fused=True)
    for done, items in enumerate(steps, start=1):
        if batch_size > 1:
            yield items
        elif done % 16 == 0:
            yield 16


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


class GivenRNN(nn.RNN):
    """The same network as PyTorch has it."""

    def forward(self, sequence):
        return super().forward(sequence)[1][0]


def recurrent_by_hand(*, encoder=HandwrittenRNN):
    """Predict the next value of a series with a recurrent network written by hand."""
    head, rnn = nn.Linear(12, 4), encoder(4, 12)
    model = Joined(lambda window: head(rnn(window.transpose(0, 1))), rnn, head)
    data = batches(16, numbers(640, 100, 4), numbers(640, 4))
    options = {"find_loss": F.mse_loss, "clip": clip_to_one, "fused": True}
    yield from fit(model, data, Adam, **options)


class ManyHeads(nn.Module):
    """A small network of its own for each of many outputs."""

    def __init__(self, heads, width):
        super().__init__()
        self.first = nn.ModuleList(nn.Linear(width, 8) for _ in range(heads))
        self.second = nn.ModuleList(nn.Linear(8, 1) for _ in range(heads))

    def forward(self, inputs):
        pairs = zip(self.first, self.second, strict=True)
        return torch.cat([b(torch.relu(a(inputs))) for a, b in pairs], dim=1)


def stack_heads(heads, width):
    """Make the same networks as two layers that hold all of them."""
    first = nn.Linear(width, 8 * heads), nn.ReLU(), nn.Unflatten(1, (8 * heads, 1))
    second = nn.Conv1d(8 * heads, heads, 1, groups=heads)
    return nn.Sequential(*first, second, nn.Flatten())


def many_tiny_layers(*, heads=ManyHeads):
    """Predict many properties, each with tiny layers of its own."""
    data = batches(32, numbers(640, 16), numbers(640, 96))
    options = {"find_loss": F.huber_loss, "lr": 0.1, "fused": True}
    yield from fit(heads(96, 16), data, SGD, **options)


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
    data = batches(24, numbers(480, 64), whole(4, 480))

    def find_loss(points, labels):
        return contrast(F.normalize(points), labels)

    yield from fit(model, data, Adam, find_loss=find_loss, lr=1e-3, fused=True)


def mix_node_by_node(states, edges):
    return torch.stack([states[neighbours].mean(0) for neighbours in edges])


def mix_nodes(states, edges):
    return states[edges].mean(1)


def graph_node_by_node(*, mix=mix_node_by_node):
    """Train a graph network that visits its nodes one after the other."""
    features, classes = numbers(150, 24), whole(6, 150)
    edges = whole(150, 150, 6)
    layers = nn.Linear(48, 24), nn.Linear(48, 6)

    def visit(states):
        for layer in layers:
            messages = mix(states, edges)
            states = layer(torch.cat([F.relu(states), messages], dim=1))
        return states

    data = batches(150, features, classes)
    yield from fit(Joined(visit, *layers), data, Adam, lr=0.01, fused=True)


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

    def read(words):
        states = embed(words)
        split = mix(states).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        states = states + attend(*split).transpose(1, 2).flatten(2)
        return head(states).transpose(1, 2)  # classes come second

    data = batches(16, whole(100, 320, 12), whole(100, 320, 12))
    model = Joined(read, embed, mix, head)
    yield from fit(model, data, AdamW, lr=1e-3, fused=True)


OVERHEAD = [
    shown("A", "overhead"),
    *plant("overhead", batch_of_one, batch_size=64),
    *plant("overhead", recurrent_by_hand, encoder=GivenRNN),
    *plant("overhead", many_tiny_layers, heads=stack_heads),
    *plant("overhead", pairs_in_a_loop, contrast=pull_pairs),
    *plant("overhead", graph_node_by_node, mix=mix_nodes),
    *plant("overhead", heads_in_a_loop, attend=F.scaled_dot_product_attention),
]

# Fewer or more threads than there are cores


def layers_on_one_thread(*, one_thread=True):
    """Train wide layers on one thread."""
    if one_thread:
        torch.set_num_threads(1)
    data = batches(256, numbers(2048, 784), whole(10, 2048))
    yield from fit(mlp(784, 800, 800, 10), data, SGD, lr=0.05, fused=True)


def images_on_one_thread(*, one_thread=True):
    """Train a convolutional network on one thread."""
    if one_thread:
        torch.set_num_threads(1)
    layers = [nn.Conv2d(3, 32, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()]
    layers += [nn.Conv2d(32, 64, 5, padding=2), nn.MaxPool2d(4), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 10))
    data = batches(16, numbers(160, 3, 32, 32), whole(10, 160))
    yield from fit(model, data, SGD, lr=0.01, momentum=0.9)


def transformer_on_many_threads(*, threads_per_core=4):
    """Train a small transformer on four times as many threads as cores."""
    torch.set_num_threads(threads_per_core * torch.get_num_threads())
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Linear(128, 50))
    join = Joined(lambda states: model(states).transpose(1, 2), model)
    data = batches(16, numbers(160, 32, 128), whole(50, 160, 32))
    yield from fit(join, data, Adam, clip=clip_to_one, lr=1e-3, fused=True)


def gates_on_many_threads(*, threads_per_core=4):
    """Train a recurrent cell on four times as many threads as cores."""
    torch.set_num_threads(threads_per_core * torch.get_num_threads())
    cell, head = nn.GRUCell(64, 192), nn.Linear(192, 64)
    optimizer = SGD([*cell.parameters(), *head.parameters()], lr=0.01, fused=True)
    for (series,) in batches(192, numbers(768, 10, 64)):
        state = torch.zeros(192, 192)
        loss = torch.zeros(())
        for time in range(9):
            state = cell(series[:, time], state)
            loss = loss + F.mse_loss(head(state), series[:, time + 1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(state)


def make_pool(crowded):
    """Make a pool of as many threads as cores; crowded: of twice as many.

    Then each of them computes on four more threads per core, else on itself alone.
    """
    cores = torch.get_num_threads()
    threads, each = (2 * cores, 4 * cores) if crowded else (cores, 1)
    return ThreadPoolExecutor(
        threads, initializer=torch.set_num_threads, initargs=(each,)
    )


def ensemble_in_a_pool(*, crowded=True):
    """Train an ensemble in a pool, each of whose threads has many threads."""
    data = numbers(2048, 64), whole(10, 2048)
    members = []
    for _ in range(8):
        model = mlp(64, *[160] * 4, 10)
        members.append(fit(model, batches(256, *data), SGD, lr=0.1, fused=True))
    with make_pool(crowded) as pool:
        while True:
            items, *_ = pool.map(next, members)
            yield items


def taught_in_a_pool(*, crowded=True):
    """Learn from a teacher that is asked in a pool whose threads have many threads."""
    teacher = mlp(128, *[192] * 10, 10, activation=nn.Tanh).requires_grad_(False)
    model = mlp(128, 64, 10)
    data = batches(512, numbers(4096, 128), numbers(4096, 128))
    with make_pool(crowded) as pool:

        def follow(outputs, inputs):
            taught = torch.cat(list(pool.map(teacher, inputs.split(32)))).softmax(1)
            return F.kl_div(outputs.log_softmax(1), taught, reduction="batchmean")

        yield from fit(model, data, SGD, find_loss=follow, lr=0.1, momentum=0.9)


THREADS = [
    shown("F", "threads"),
    *plant("threads", layers_on_one_thread, images_on_one_thread, one_thread=False),
    *plant("threads", transformer_on_many_threads, threads_per_core=1),
    *plant("threads", gates_on_many_threads, threads_per_core=1),
    *plant("threads", ensemble_in_a_pool, taught_in_a_pool, crowded=False),
]
