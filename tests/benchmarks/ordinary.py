"""Thirty ordinary training loops in the shapes that other people write them in.

Nothing is planted in them. A diagnosis must not crash on any, and must not change what
it claims to leave as it is.
"""

import collections
import contextlib
import itertools
import queue
import threading
from functools import partial

import numpy
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

LOOPS = {}
#: Compiling takes seconds; the last one loads the compiler.
COMPILED = ("compiled", "compiled_as_one_graph", "flexible_attention")


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
def closure_of_sgd():
    yield from step_with_closure(partial(torch.optim.SGD, lr=0.01))


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
def an_ensemble_at_once():
    models = [mlp() for _ in range(4)]
    parameters, buffers = stack_module_state(models)
    optimizer = torch.optim.SGD(parameters.values(), lr=0.01)
    inputs, targets = rows(128).tensors
    skeleton = mlp().to("meta")

    def forward(parameters, buffers):
        return functional_call(skeleton, (parameters, buffers), (inputs,))

    while True:
        outputs = vmap(forward)(parameters, buffers)
        loss = sum(F.cross_entropy(each, targets) for each in outputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(inputs)


@ordinary
def compiled():
    yield from train(torch.compile(mlp()), forever(DataLoader(rows(), 64)))


@ordinary
def compiled_as_one_graph():
    model = torch.compile(mlp(), fullgraph=True)
    yield from train(model, forever(DataLoader(rows(), 64)))


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
def flexible_attention():
    from torch.nn.attention.flex_attention import flex_attention

    layer = nn.Linear(32, 3 * 32)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    texts = torch.randn(4, 2, 32, 32)
    while True:
        # Without the compiler it differentiates nothing: it stands beside the training.
        with torch.no_grad():
            flex_attention(texts, texts, texts)
        optimizer.zero_grad()
        layer(texts).square().mean().backward()
        optimizer.step()
        yield 4


@ordinary
def scaled_gradients():
    model, scaler = mlp(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs, targets in forever(DataLoader(rows(), 64)):
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(inputs), targets)).backward()
        scaler.step(optimizer)
        scaler.update()
        yield len(inputs)


@ordinary
def hooks_on_gradients():
    model, norms = mlp(), collections.deque(maxlen=10)
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-1, 1))
    model[0].register_forward_hook(lambda *given: norms.append(given[-1].norm()))
    yield from train(model, forever(DataLoader(rows(), 64)))


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


@ordinary
def parametrized_weights():
    model = mlp()
    nn.utils.parametrizations.weight_norm(model[0])
    nn.utils.parametrizations.spectral_norm(model[2])
    yield from train(model, forever(DataLoader(rows(), 64)))


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


class Shards(DataLoader):
    """A loader with an `__iter__` of its own."""

    def __iter__(self):
        for first in range(0, len(self.dataset), 64):
            yield self.dataset[first : first + 64]


@ordinary
def a_wrapped_loader():
    yield from train(mlp(), forever(Shards(rows())))


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


Batch = collections.namedtuple("Batch", "inputs targets")


class Named(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        return Batch(torch.full((64,), index / 512), index % 10)


@ordinary
def named_tuples():
    yield from train(mlp(), forever(DataLoader(Named(), 64)))


@ordinary
def dictionaries_of_arrays():
    def join(samples):
        inputs, targets = zip(*samples, strict=True)
        return {"x": torch.stack(inputs).numpy(), "y": numpy.asarray(targets)}

    data = forever(DataLoader(rows(), 64, collate_fn=join))
    pairs = ((torch.from_numpy(b["x"]), torch.from_numpy(b["y"])) for b in data)
    yield from train(mlp(), pairs)


@ordinary
def accumulated_gradients():
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    batches = forever(DataLoader(rows(), 32))
    while True:
        for inputs, targets in itertools.islice(batches, 4):
            (F.cross_entropy(model(inputs), targets) / 4).backward()
        optimizer.step()
        optimizer.zero_grad()
        yield 128


@ordinary
def one_cycle():
    model, loader = mlp(), DataLoader(rows(), 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=0.1, epochs=1, steps_per_epoch=len(loader)
        )
        for items in train(model, loader, optimizer):
            schedule.step()  # one step too many raises
            yield items


@ordinary
def one_batch_ahead():
    def look_ahead(loader):
        batches = iter(loader)
        ahead = next(batches)
        for following in batches:
            yield ahead
            ahead = following
        yield ahead

    loader = DataLoader(rows(), 64, shuffle=True)
    yield from train(mlp(), forever_of(look_ahead, loader))


def forever_of(make, loader):
    while True:
        yield from make(loader)


@ordinary
def recomputed_activations():
    class Recomputed(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = mlp()

        def forward(self, inputs):
            return checkpoint(self.parts, inputs, use_reentrant=False)

    yield from train(Recomputed(), forever(DataLoader(rows(), 64)))


@ordinary
def averaged_weights():
    model = mlp()
    average = AveragedModel(model)
    for items in train(model, forever(DataLoader(rows(), 64))):
        average.update_parameters(model)
        yield items


@ordinary
def sixteen_bits():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs, targets in forever(DataLoader(rows(), 16)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(inputs)


@ordinary
def gradient_penalty():
    model = mlp(classes=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs, _ in forever(DataLoader(rows(), 64)):
        inputs.requires_grad_(True)
        (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
        optimizer.zero_grad()
        (slope.norm(dim=1) - 1).square().mean().backward()
        optimizer.step()
        yield len(inputs)


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


@ordinary
def two_workers():
    loader = DataLoader(rows(), 64, num_workers=2, persistent_workers=True)
    yield from train(mlp(), forever(loader))


@ordinary
def sharpness_aware():
    model = mlp()
    parameters = [*model.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    for inputs, targets in forever(DataLoader(rows(), 64)):
        F.cross_entropy(model(inputs), targets).backward()
        with torch.no_grad():
            moves = [0.05 * p.grad / (p.grad.norm() + 1e-9) for p in parameters]
            torch._foreach_add_(parameters, moves)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        with torch.no_grad():
            torch._foreach_sub_(parameters, moves)
        optimizer.step()
        optimizer.zero_grad()
        yield len(inputs)


@ordinary
def a_function_of_its_own():
    class Squared(torch.autograd.Function):
        @staticmethod
        def forward(context, values):
            context.save_for_backward(values)
            return values * values

        @staticmethod
        def backward(context, gradient):
            (values,) = context.saved_tensors
            return 2 * values * gradient

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = mlp()

        def forward(self, inputs):
            return self.parts(Squared.apply(inputs))

    yield from train(Net(), forever(DataLoader(rows(), 64)))


@ordinary
def batches_changed_in_place():
    data = forever(DataLoader(rows(), 64))
    normed = ((inputs.sub_(0.5).div_(0.25), targets) for inputs, targets in data)
    yield from train(mlp(), normed)
