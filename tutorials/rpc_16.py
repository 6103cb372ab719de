"""Chapter 16's group of three processes, and what they call in each other.

Both sides of a call import what travels by name, so it is a file and not a cell.
"""

from __future__ import annotations

import copy
import functools
import itertools
import statistics
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import autograd, rpc
from torch.distributed.optim import DistributedOptimizer

import kit

# A group


def start_group() -> Any:
    """Start two ranks, and make a group for RPC of them and this notebook.

    Each process waits in `init_rpc` until all have called it: so the notebook does that
    in a thread, while the ranks join. Returns the ranks.
    """
    ranks = kit.start_ranks(2)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool:
        own = pool.submit(_join, "notebook", 0, f"{folder}/meet")
        ranks.run(_join_from_rank, f"{folder}/meet")
        own.result()
    return ranks


def _join_from_rank(path: str) -> None:
    torch.set_num_threads(1)
    _join(f"worker{dist.get_rank()}", 1 + dist.get_rank(), path)


def _join(name: str, number: int, path: str) -> None:
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{path}",
        # TCP, as between machines. Over shared memory, the default on one machine, a
        # thread of each process looks for messages without a pause, on a core.
        _transports=["uv"],
    )
    # PyTorch warns about its own code, each time: only recording keeps that quiet.
    with warnings.catch_warnings(record=True):
        rpc.init_rpc(name, rank=number, world_size=3, rpc_backend_options=options)


# What a call takes


def do_nothing(numbers: torch.Tensor) -> None:
    """Be the smallest Python function to call."""


class _Stamps:
    """The moments at which it was made, packed and unpacked."""

    def __init__(self) -> None:
        self.times = [time.perf_counter()]

    def stamp(self) -> None:
        self.times.append(time.perf_counter())

    def __getstate__(self) -> list[float]:
        self.stamp()
        return self.times

    def __setstate__(self, times: list[float]) -> None:
        self.times = times
        self.stamp()


def _send_back(stamps: _Stamps) -> _Stamps:
    return stamps


def take_apart(count: int, name: str = "worker0") -> list[float]:
    """Call a Python function and return how long each part of a call took, in ms.

    The parts: pack here, the way there, unpack, run and pack there, the way back,
    unpack here. All processes of one machine read the same clock. Each part is the
    median of `count` calls.
    """
    calls = []
    for _ in range(count):
        back = rpc.rpc_sync(name, _send_back, args=(_Stamps(),))
        back.stamp()
        starts, stops = back.times[:-1], back.times[1:]
        calls.append([1000 * (b - a) for a, b in zip(starts, stops, strict=True)])
    return [statistics.median(part) for part in zip(*calls, strict=True)]


# A parameter server

IMAGES = 1024  # in a batch


class Server:
    """Keeps the weights. `put_and_get` takes a gradient and returns new weights."""

    def __init__(self) -> None:
        self.model = make_net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.lock = threading.Lock()
        self.version = 0
        self.start = time.perf_counter()
        self.seconds: list[float] = []
        self.losses: list[float] = []
        self.staleness: list[int] = []

    def get(self) -> tuple[int, list[torch.Tensor]]:
        return self.version, [p.detach().clone() for p in self.model.parameters()]

    def put_and_get(
        self, version: int, gradients: Sequence[torch.Tensor], loss: float
    ) -> tuple[int, list[torch.Tensor]]:
        with self.lock:  # calls come in on several threads
            self.staleness.append(self.version - version)
            for p, gradient in zip(self.model.parameters(), gradients, strict=True):
                p.grad = gradient
            self.optimizer.step()
            self.version += 1
            self.seconds.append(time.perf_counter() - self.start)
            self.losses.append(loss)
            return self.get()

    def describe(self) -> str:
        """Say how many updates there were, and how late gradients came."""
        counts = Counter(self.staleness).most_common(3)
        shares = [f"{late} for {n / self.version:.0%}" for late, n in counts]
        mean = statistics.mean(self.staleness)
        return (
            f"{self.version} updates; gradients came {mean:.1f} versions late on "
            f"average ({', '.join(shares)})"
        )


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)
    )


@functools.cache
def load_images() -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = kit.data.glyphs(train=False)[:]
    return images, labels


def train_for(server: Any, number: int, seconds: float) -> None:
    """Train on a server's weights for some seconds, with batches of its own."""
    images, labels = load_images()
    generator = torch.Generator().manual_seed(number)
    net = make_net()
    version, weights = server.rpc_sync().get()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for p, new in zip(net.parameters(), weights, strict=True):
            p.data = new
        batch = torch.randint(len(images), [IMAGES], generator=generator)
        loss = F.cross_entropy(net(images[batch]), labels[batch])
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        version, weights = server.rpc_sync().put_and_get(
            version, gradients, loss.item()
        )


def serve(trainers: int, seconds: float) -> Server:
    """Keep the weights here while so many trainers use them; return the server."""
    names = [f"worker{number}" for number in range(trainers)]
    for name in names:
        rpc.rpc_sync(name, load_images)
    server = Server()
    reference = rpc.RRef(server)
    work = []
    for number, name in enumerate(names):
        words = (reference, number, seconds)
        work.append(rpc.rpc_async(name, train_for, args=words, timeout=seconds + 60))
    torch.futures.wait_all(work)
    return server


# A model in two places

TOKENS, WIDTH, HIDDEN, LAYERS = 10, 2, 3, 4  # those of the tutorial


class Part(nn.Module):
    """A part of a model, which can live in another process."""

    def parameter_rrefs(self) -> list[Any]:
        return [rpc.RRef(p) for p in self.parameters()]


class EmbeddingTable(Part):
    """The first layer, as in the tutorial, without what moved it to a GPU and back."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(TOKENS, WIDTH)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.drop(self.encoder(tokens))


class Decoder(Part):
    """The last layer, as in the tutorial."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.decoder = nn.Linear(HIDDEN, TOKENS)
        nn.init.zeros_(self.decoder.bias)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)

    def forward(self, hidden: torch.Tensor) -> Any:
        return self.decoder(self.drop(hidden))


class RNNModel:
    """The tutorial's model: its LSTM is here, its other parts are on `server`."""

    def __init__(self, server: str, dropout: float = 0.5) -> None:
        torch.manual_seed(0)
        self.table = rpc.remote(server, EmbeddingTable, args=(dropout,))
        self.lstm = nn.LSTM(WIDTH, HIDDEN, LAYERS, dropout=dropout)
        self.decoder = rpc.remote(server, Decoder, args=(dropout,))

    def __call__(self, tokens: torch.Tensor, hidden: Any) -> tuple[Any, Any]:
        embedded = self.table.rpc_sync().forward(tokens)
        output, hidden = self.lstm(embedded, hidden)
        return self.decoder.rpc_sync().forward(output), hidden

    def parameter_rrefs(self) -> list[Any]:
        own = [rpc.RRef(p) for p in self.lstm.parameters()]
        first = self.table.rpc_sync().parameter_rrefs()
        return first + own + self.decoder.rpc_sync().parameter_rrefs()

    def learn_here(self, lr: float = 0.05) -> list[float]:
        """Train copies of all parts in this process; return the losses."""
        table, decoder = self.table.to_here(), self.decoder.to_here()
        parts = nn.ModuleList([table, copy.deepcopy(self.lstm), decoder])
        optimizer = torch.optim.SGD(parts.parameters(), lr=lr)
        table, lstm, decoder = parts
        hidden = first_hidden()
        losses = []
        for tokens, targets in make_pieces():
            hidden = [state.detach() for state in hidden]
            output, hidden = lstm(table(tokens), hidden)
            loss = find_loss(decoder(output), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def time_step(self, count: int) -> dict[str, float]:
        """Return how long the parts of a step take, in ms: medians of `count` steps."""
        optimizer = make_optimizer(self, lr=0.0)
        pieces = itertools.cycle(make_pieces())
        rows = []
        for tokens, targets in itertools.islice(pieces, count):
            moments = [time.perf_counter()]
            with autograd.context() as context:
                output, _ = self(tokens, first_hidden())
                loss = find_loss(output, targets)
                moments.append(time.perf_counter())
                autograd.backward(context, [loss])
                moments.append(time.perf_counter())
                optimizer.step(context)
                moments.append(time.perf_counter())
            moments.append(time.perf_counter())
            pairs = itertools.pairwise(moments)
            rows.append([1000 * (stop - start) for start, stop in pairs])
        names = "forward", "backward", "optimizer", "end of context"
        medians = map(statistics.median, zip(*rows, strict=True))
        return dict(zip(names, medians, strict=True))


def make_optimizer(model: RNNModel, lr: float = 0.05) -> DistributedOptimizer:
    # PyTorch warns about its own code: only recording keeps that quiet.
    with warnings.catch_warnings(record=True):
        parameters = model.parameter_rrefs()
        return DistributedOptimizer(torch.optim.SGD, parameters, lr=lr)


def first_hidden() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(LAYERS, 3, HIDDEN), torch.zeros(LAYERS, 3, HIDDEN)


def find_loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, 1), targets.flatten())


def make_pieces(count: int = 5) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield tokens and their successors: pieces of three streams, one after another.

    A piece has five tokens of each stream, and begins where the one before it ends.
    """
    steps = torch.arange(5 * count + 1)[:, None]
    stream = (steps // 2 + torch.arange(3)) % TOKENS  # each token comes twice
    return zip(stream[:-1].split(5), stream[1:].split(5), strict=True)
