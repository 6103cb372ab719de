"""Ten ordinary training loops in the shapes that other people write them in."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
from torch.func import functional_call, grad
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset


def mlp(classes=10):
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, classes))


def rows():
    """Return rows of numbers with a class each."""
    return TensorDataset(torch.randn(512, 64), torch.randint(10, (512,)))


def forever(loader):
    while True:
        yield from loader


def train(model, data, *optimizers):
    if not optimizers:
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.01)]
    for inputs, targets in data:
        for optimizer in optimizers:
            optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        for optimizer in optimizers:
            optimizer.step()
        yield len(targets)


def closure_of_lbfgs():
    model, (inputs, targets) = mlp(), rows().tensors
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

    def close():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        return loss

    while True:
        optimizer.step(close)
        yield len(inputs)


def generator_and_critic():
    generator, critic = mlp(classes=64), mlp(classes=1)
    make = torch.optim.Adam(generator.parameters())
    judge = torch.optim.Adam(critic.parameters())
    for real, _ in forever(DataLoader(rows(), 64)):
        made = generator(torch.randn(64, 64))
        loss = critic(made.detach()).mean() - critic(real).mean()
        judge.zero_grad()
        loss.backward()
        judge.step()
        make.zero_grad()
        (-critic(made).mean()).backward()
        make.step()
        yield 64


def functional_gradients():
    model, (inputs, targets) = mlp(), rows().tensors
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def find_loss(parameters):
        return F.cross_entropy(functional_call(model, parameters, inputs), targets)

    while True:
        gradients = grad(find_loss)(parameters)
        parameters = {n: p - 0.01 * gradients[n] for n, p in parameters.items()}
        yield len(inputs)


def sparse_embedding():
    table, head = nn.EmbeddingBag(5000, 64, sparse=True), nn.Linear(64, 10)
    words = TensorDataset(torch.randint(5000, (512, 8)), torch.randint(10, (512,)))
    sparse = torch.optim.SparseAdam(table.parameters())
    dense = torch.optim.SGD(head.parameters(), lr=0.01)
    model = nn.Sequential(table, head)
    yield from train(model, forever(DataLoader(words, 64)), sparse, dense)


def two_loaders_over_one_data_set():
    data = rows()

    def as_pairs(samples):
        return {"first": torch.stack([inputs for inputs, _ in samples])}

    plain = forever(DataLoader(data, 64))
    paired = forever(DataLoader(data, 64, collate_fn=as_pairs))
    both = zip(plain, paired, strict=True)
    yield from train(mlp(), ((x + pair["first"], y) for (x, y), pair in both))


def batches_with_a_graph():
    encoder = nn.Linear(64, 64)

    def encode(samples):
        inputs, targets = zip(*samples, strict=True)
        return encoder(torch.stack(inputs)), torch.stack(targets)

    yield from train(mlp(), forever(DataLoader(rows(), 64, collate_fn=encode)))


def updates_inside_the_backward_pass():
    model = mlp()
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.01)

        def update(_, optimizer=optimizer):
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(update)
    for inputs, targets in forever(DataLoader(rows(), 64)):
        F.cross_entropy(model(inputs), targets).backward()
        yield len(inputs)


class Stream(IterableDataset):
    def __iter__(self):
        for _ in range(8):
            yield torch.randn(64, 64), torch.randint(10, (64,))


def a_stream_with_validation():
    model, held_out = mlp(), torch.randn(4096, 64)
    while True:
        yield from train(model, DataLoader(Stream(), batch_size=None))
        with torch.no_grad():
            model(held_out).argmax(1)


def a_thread_that_prefetches():
    batches = forever(DataLoader(rows(), 64))

    def prefetch(pool):
        ready = pool.submit(next, batches)
        while True:
            batch = ready.result()
            ready = pool.submit(next, batches)
            yield batch

    with ThreadPoolExecutor(1) as pool:
        yield from train(mlp(), prefetch(pool))


def packed_sequences():
    cell, head = nn.LSTM(64, 32), nn.Linear(32, 10)
    optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()])
    series = [torch.randn(length, 64) for length in range(4, 36)]

    def pack(batch):
        packed = nn.utils.rnn.pack_sequence(batch, enforce_sorted=False)
        return packed, torch.zeros(8, dtype=torch.long)

    def predict(packed):
        _, (hidden, _) = cell(packed)
        return head(hidden[-1])

    loader = DataLoader(series, 8, collate_fn=pack, shuffle=True)
    yield from train(predict, forever(loader), optimizer)


LOOPS = [
    closure_of_lbfgs,
    generator_and_critic,
    functional_gradients,
    sparse_embedding,
    two_loaders_over_one_data_set,
    batches_with_a_graph,
    updates_inside_the_backward_pass,
    a_stream_with_validation,
    a_thread_that_prefetches,
    packed_sequences,
]
