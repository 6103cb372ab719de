"""The questions: pairs of experiments, the baseline and the challenger.

Each experiment is a generator function: set-up, then steps that say how many items they
handled. A step takes 0.2 to 30 ms on two cores. Nothing here imports the kit.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset
from torch.utils.flop_counter import FlopCounterMode

#: So low that a loop that learns for long does not become another loop.
_LEARNING_RATE = 1e-5


class Pair(NamedTuple):
    """A question: is the challenger faster than the baseline?

    `alone` says that a plain loop must not have both in one process: a setting, a
    compilation or a worker of one would meet the other.
    """

    name: str
    baseline_name: str
    baseline: Callable
    challenger_name: str
    challenger: Callable
    alone: bool = False


def make_mlp(inputs, hidden, outputs):
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, outputs),
    )


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)


def learn(model, optimizer, inputs, labels):
    """Train for one step, as most loops do."""
    loss = F.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# Attention


def make_attention_inputs():
    """Make queries, keys and values; the scores between them take 2 MB.

    Whether malloc asks the system for each of these anew differs between processes.
    """
    return [torch.randn(1, 8, 256, 64) for _ in range(3)]


def attention_written_out():
    """Attend as the formula says."""
    queries, keys, values = make_attention_inputs()
    scale = 1 / math.sqrt(queries.shape[-1])
    while True:
        scores = queries @ keys.transpose(-2, -1) * scale
        weights = torch.softmax(scores, dim=-1)
        outputs = weights @ values
        yield len(outputs)


def attention_in_one_call():
    """Attend with PyTorch's own function."""
    queries, keys, values = make_attention_inputs()
    while True:
        outputs = F.scaled_dot_product_attention(queries, keys, values)
        yield len(outputs)


# Gradient accumulation


def accumulate(*, parts):
    """Train on 64 items per step, which come in so many parts."""
    model = make_mlp(256, 512, 10)
    optimizer = make_optimizer(model)
    inputs = torch.randn(64, 256)
    labels = torch.randint(10, (64,))
    small_inputs = inputs.chunk(parts)
    small_labels = labels.chunk(parts)
    while True:
        optimizer.zero_grad()
        for some_inputs, some_labels in zip(small_inputs, small_labels, strict=True):
            loss = F.cross_entropy(model(some_inputs), some_labels)
            (loss / parts).backward()
        optimizer.step()
        yield len(inputs)


# Activation checkpointing


def make_blocks():
    return nn.ModuleList(
        nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256))
        for _ in range(4)
    )


def activations_kept():
    """Train four blocks and keep what they compute for the backward pass."""
    blocks = make_blocks()
    optimizer = make_optimizer(blocks)
    inputs = torch.randn(128, 256)
    while True:
        hidden = inputs
        for block in blocks:
            hidden = hidden + block(hidden)
        optimizer.zero_grad()
        hidden.square().mean().backward()
        optimizer.step()
        yield len(inputs)


def activations_computed_again():
    """Train four blocks that compute again what the backward pass needs."""
    blocks = make_blocks()
    optimizer = make_optimizer(blocks)
    inputs = torch.randn(128, 256)
    while True:
        hidden = inputs
        for block in blocks:
            hidden = hidden + checkpoint(block, hidden, use_reentrant=False)
        optimizer.zero_grad()
        hidden.square().mean().backward()
        optimizer.step()
        yield len(inputs)


# Many small parameters


def make_small_parameters(*, count=300, side=24):
    """Make parameters that have gradients, as after a backward pass."""
    parameters = [nn.Parameter(torch.randn(side, side)) for _ in range(count)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return parameters


def clip_gradients(*, foreach):
    """Clip the gradients of many small parameters."""
    parameters = make_small_parameters()
    while True:
        nn.utils.clip_grad_norm_(parameters, max_norm=1.0, foreach=foreach)
        yield 1


def update_parameters(*, fused):
    """Update many small parameters, with momentum."""
    parameters = make_small_parameters()
    how = {"fused": True} if fused else {"foreach": False}
    optimizer = torch.optim.SGD(parameters, lr=1e-7, momentum=0.9, **how)
    while True:
        optimizer.step()
        yield 1


def average_in_a_loop():
    """Average many small parameters, one after the other."""
    parameters = make_small_parameters()
    averages = [torch.zeros_like(parameter) for parameter in parameters]
    while True:
        with torch.no_grad():
            for average, parameter in zip(averages, parameters, strict=True):
                average.lerp_(parameter, 0.001)
        yield 1


def average_in_one_call():
    """Average many small parameters, all of them in one call."""
    parameters = make_small_parameters()
    averages = [torch.zeros_like(parameter) for parameter in parameters]
    while True:
        with torch.no_grad():
            torch._foreach_lerp_(averages, parameters, 0.001)
        yield 1


# Gradients that are zeroed or dropped


def zero_gradients(*, set_to_none):
    """Train an MLP whose gradients take 4 MB."""
    model = make_mlp(512, 768, 64)
    optimizer = make_optimizer(model)
    inputs = torch.randn(16, 512)
    labels = torch.randint(64, (16,))
    while True:
        optimizer.zero_grad(set_to_none=set_to_none)
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        yield len(inputs)


# Tensors of arrays


def make_arrays():
    return [numpy.random.rand(128).astype(numpy.float32) for _ in range(64)]


def tensor_of_a_list():
    """Train on a list of arrays that `torch.tensor` reads."""
    model = make_mlp(128, 256, 10)
    optimizer = make_optimizer(model)
    arrays = make_arrays()
    labels = torch.randint(10, (len(arrays),))
    while True:
        inputs = torch.tensor(arrays)
        learn(model, optimizer, inputs, labels)
        yield len(inputs)


def tensor_of_a_stack():
    """Train on a list of arrays that NumPy stacks."""
    model = make_mlp(128, 256, 10)
    optimizer = make_optimizer(model)
    arrays = make_arrays()
    labels = torch.randint(10, (len(arrays),))
    while True:
        inputs = torch.from_numpy(numpy.stack(arrays))
        learn(model, optimizer, inputs, labels)
        yield len(inputs)


# The layout of images


def convolve(*, memory_format):
    """Train a small convolutional network."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    model = model.to(memory_format=memory_format)
    optimizer = make_optimizer(model)
    images = torch.randn(8, 3, 32, 32).to(memory_format=memory_format)
    labels = torch.randint(10, (len(images),))
    while True:
        learn(model, optimizer, images, labels)
        yield len(images)


# Compilation


class HandmadeGELU(nn.Module):
    """The tanh form of GELU, one operation at a time."""

    def forward(self, inputs):
        inner = math.sqrt(2 / math.pi) * (inputs + 0.044715 * inputs**3)
        return 0.5 * inputs * (1 + torch.tanh(inner))


def predict(*, compiled):
    """Predict with a small MLP whose activation is many small operations."""
    # Activations take 112 KB: from 128 KB on, malloc may ask the system for each of
    # them, in one process and not in the next.
    model = nn.Sequential(
        nn.Linear(64, 448),
        HandmadeGELU(),
        nn.Linear(448, 64),
        HandmadeGELU(),
        nn.Linear(64, 448),
        HandmadeGELU(),
        nn.Linear(448, 16),
    )
    model.requires_grad_(False)
    if compiled:
        model = torch.compile(model)
    inputs = torch.randn(64, 64)
    while True:
        outputs = model(inputs)
        yield len(outputs)


# Workers of a DataLoader


class Photos(Dataset):
    """Each item takes about a millisecond of NumPy and of plain Python.

    There are more of them than are ever read: a loader that came to its end would start
    its workers again.
    """

    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        random = numpy.random.default_rng(index)
        pixels = random.random((3, 64, 64), dtype=numpy.float32)
        flipped = pixels[:, :, ::-1]
        normal = (flipped - flipped.mean()) / flipped.std()
        label = 0
        for number in range(6000):
            label += number % 7
        return torch.from_numpy(normal), label % 10


def load(*, num_workers):
    """Take what a DataLoader brings, as fast as it comes.

    Nobody trains on it: PyTorch's threads and the workers would share two cores, and
    the answer would be how they get along.
    """
    batches = DataLoader(Photos(), batch_size=8, num_workers=num_workers)
    while True:
        for images, _ in batches:
            yield len(images)


# Modes that are switched on around the loop, and the plain loop


def train():
    """Train a small MLP."""
    model = make_mlp(128, 256, 10)
    optimizer = make_optimizer(model)
    inputs = torch.randn(64, 128)
    labels = torch.randint(10, (len(inputs),))
    while True:
        learn(model, optimizer, inputs, labels)
        yield len(inputs)


def train_with_anomaly_detection():
    """Train a small MLP while PyTorch looks for NaN."""
    with torch.autograd.set_detect_anomaly(True):
        yield from train()


def train_while_counting_operations():
    """Train a small MLP while PyTorch counts its operations."""
    with FlopCounterMode(display=False):
        yield from train()


ALL_PAIRS = [
    Pair(
        "attention",
        "written out",
        attention_written_out,
        "scaled_dot_product_attention",
        attention_in_one_call,
    ),
    Pair(
        "accumulation",
        "one batch of 64",
        partial(accumulate, parts=1),
        "four of 16",
        partial(accumulate, parts=4),
    ),
    Pair(
        "checkpointing",
        "activations kept",
        activations_kept,
        "checkpointed",
        activations_computed_again,
    ),
    Pair(
        "clipping",
        "foreach=False",
        partial(clip_gradients, foreach=False),
        "foreach=True",
        partial(clip_gradients, foreach=True),
    ),
    Pair(
        "averaging",
        "Python loop",
        average_in_a_loop,
        "_foreach_lerp_",
        average_in_one_call,
    ),
    Pair(
        "sgd",
        "for-loop",
        partial(update_parameters, fused=False),
        "fused",
        partial(update_parameters, fused=True),
    ),
    Pair(
        "zero_grad",
        "set_to_none=False",
        partial(zero_gradients, set_to_none=False),
        "set_to_none=True",
        partial(zero_gradients, set_to_none=True),
    ),
    Pair(
        "arrays",
        "torch.tensor",
        tensor_of_a_list,
        "from_numpy of numpy.stack",
        tensor_of_a_stack,
    ),
    Pair(
        "channels_last",
        "contiguous",
        partial(convolve, memory_format=torch.contiguous_format),
        "channels_last",
        partial(convolve, memory_format=torch.channels_last),
    ),
    Pair(
        "compile",
        "eager",
        partial(predict, compiled=False),
        "compiled",
        partial(predict, compiled=True),
        alone=True,
    ),
    Pair(
        "workers",
        "num_workers=0",
        partial(load, num_workers=0),
        "num_workers=2",
        partial(load, num_workers=2),
        alone=True,
    ),
    Pair(
        "anomaly",
        "plain",
        train,
        "set_detect_anomaly",
        train_with_anomaly_detection,
        alone=True,
    ),
    Pair(
        "flops",
        "plain",
        train,
        "FlopCounterMode",
        train_while_counting_operations,
        alone=True,
    ),
    Pair("itself", "one name", train, "another name", train),
]

#: Each pair by its name.
PAIRS = {pair.name: pair for pair in ALL_PAIRS}
