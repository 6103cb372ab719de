"""Ten ordinary training loops in the shapes that other people write them in.

Nothing is planted in them. A diagnosis must not crash on any, and must not change what
it claims to leave as it is.
"""

import contextlib
import queue
import threading
from functools import partial

import torch
from torch import nn
from torch.func import functional_call, grad
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

LOOPS = {}


def ordinary(loop):
    """Note a loop as an ordinary one."""
    LOOPS[loop.__name__] = loop
    return loop


def mlp(width=128, classes=10):
    layers = [nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, classes))


def rows(count=512):
    """Rows of numbers with a class each, in memory."""
    return TensorDataset(torch.randn(count, 64), torch.randint(10, (count,)))


def forever(loader):
    while True:
        yield from loader


def train(model, data, optimizer=None, find_loss=F.cross_entropy):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs, targets in data:
        optimizer.zero_grad()
        find_loss(model(inputs), targets).backward()
        optimizer.step()
        yield len(inputs)


def step_with_closure(make):
    """Let the optimizer call forward and backward itself."""
    model, (inputs, targets) = mlp(), rows().tensors
    optimizer = make(model.parameters())

    def close():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        return loss

    while True:
        optimizer.step(close)
        yield len(inputs)


@ordinary
def closure_of_lbfgs():
    yield from step_with_closure(partial(torch.optim.LBFGS, max_iter=4))


@ordinary
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


@ordinary
def functional_gradients():
    model = mlp()
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    inputs, targets = rows().tensors

    def find_loss(parameters):
        return F.cross_entropy(functional_call(model, parameters, inputs), targets)

    while True:
        gradients = grad(find_loss)(parameters)
        parameters = {n: p - 0.01 * gradients[n] for n, p in parameters.items()}
        yield len(inputs)


@ordinary
def sparse_embedding():
    table, head = nn.Embedding(5000, 64, sparse=True), nn.Linear(64, 10)
    dense = torch.optim.SGD(head.parameters(), lr=0.01)
    sparse = torch.optim.SparseAdam(table.parameters())
    words = TensorDataset(torch.randint(5000, (512, 8)), torch.randint(10, (512,)))
    for text, targets in forever(DataLoader(words, 64)):
        loss = F.cross_entropy(head(table(text).mean(1)), targets)
        dense.zero_grad(), sparse.zero_grad()
        loss.backward()
        dense.step(), sparse.step()
        yield len(text)


@ordinary
def two_loaders_over_one_data_set():
    data, model = rows(), mlp()

    def as_pairs(samples):
        return {"first": torch.stack([inputs for inputs, _ in samples])}

    plain, paired = DataLoader(data, 64), DataLoader(data, 64, collate_fn=as_pairs)
    both = zip(forever(plain), forever(paired), strict=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for (inputs, targets), pair in both:
        loss = F.cross_entropy(model(inputs), targets)
        loss = loss + (model(pair["first"]) - model(inputs)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(inputs)


@ordinary
def batches_with_a_graph():
    encoder, model = nn.Linear(64, 64), mlp()
    optimizer = torch.optim.SGD([*encoder.parameters(), *model.parameters()], lr=0.01)

    def encode(samples):
        inputs, targets = zip(*samples, strict=True)
        return encoder(torch.stack(inputs)), torch.stack(targets)

    data = forever(DataLoader(rows(), 64, collate_fn=encode))
    yield from train(model, data, optimizer)


@ordinary
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


@ordinary
def a_stream_with_validation():
    model, held_out = mlp(), torch.randn(4096, 64)
    while True:
        yield from train(model, DataLoader(Stream(), batch_size=None))
        with torch.no_grad():
            model(held_out).argmax(1)


@ordinary
def a_thread_that_prefetches():
    ready, over = queue.Queue(maxsize=2), threading.Event()

    def fill():
        for batch in forever(DataLoader(rows(), 64)):
            while not over.is_set():
                with contextlib.suppress(queue.Full):
                    ready.put(batch, timeout=0.1)
                    break
            if over.is_set():
                return

    threading.Thread(target=fill, daemon=True).start()
    try:
        yield from train(mlp(), iter(ready.get, None))
    finally:
        over.set()


@ordinary
def packed_sequences():
    cell, head = nn.LSTM(64, 32, batch_first=True), nn.Linear(32, 10)
    optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()])
    series = [torch.randn(length, 64) for length in range(4, 36)]
    loader = DataLoader(series, 8, collate_fn=list, shuffle=True)
    for batch in forever(loader):
        packed = nn.utils.rnn.pack_sequence(batch, enforce_sorted=False)
        _, (hidden, _) = cell(packed)
        loss = F.cross_entropy(head(hidden[-1]), torch.zeros(8, dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(batch)
