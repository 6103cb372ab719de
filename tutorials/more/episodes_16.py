"""What both sides of a call need in the appendix Episodes, and its picture."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import gymnasium
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.distributed import rpc
from torch.futures import Future

from kit.figures import COLORS, kit_look
from kit.figures.style import describe, new_figure


def join(name: str, number: int, size: int, path: str) -> None:
    """Join a group for RPC, which meets in the file `path`."""
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{path}",
        # TCP, as between machines. Over shared memory, the default on one machine, a
        # thread of each process looks for messages without a pause, on a core.
        _transports=["uv"],
    )
    # PyTorch warns about its own code, each time: only recording keeps that quiet.
    with warnings.catch_warnings(record=True):
        rpc.init_rpc(name, rank=number, world_size=size, rpc_backend_options=options)


class Game:
    """CartPole that begins again when it is over."""

    def __init__(self) -> None:
        self.game = gymnasium.make("CartPole-v1")
        self.state, _ = self.game.reset(seed=0)

    def step(self, action: int) -> Any:
        self.state, _, fell, late, _ = self.game.step(action)
        if fell or late:
            self.state, _ = self.game.reset()
        return self.state


class Policy:
    """A network that answers states one by one, or all that have asked in one pass."""

    def __init__(self, width: int, observers: int) -> None:
        self.net = nn.Sequential(
            nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.Linear(width, 2)
        )
        self.observers = observers
        self.lock = threading.Lock()
        self.waiting: list[tuple[torch.Tensor, Future[Any]]] = []
        self.passes: list[int] = []

    def answer(self, state: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.net(state)  # type: ignore[no-any-return]

    @staticmethod
    @rpc.functions.async_execution
    def gather(reference: Any, state: torch.Tensor) -> Future[Any]:
        """Return a future at once; its result is set when all have asked."""
        self = reference.local_value()
        future: Future[Any] = Future()
        with self.lock:  # calls come in on several threads
            self.waiting.append((state, future))
            if len(self.waiting) < self.observers:
                return future
            asked, self.waiting = self.waiting, []
        self.passes.append(len(asked))
        states = torch.stack([state for state, _ in asked])
        answers = self.answer(states)
        for answer, (_, waiting) in zip(answers, asked, strict=True):
            waiting.set_result(answer)
        return future


@kit_look()
def draw_families(curves: dict[bool, list[list[float]]], title: str) -> Figure:
    """Draw the running means of all seeds, with the line (True) and without."""
    figure = new_figure(title, 3.4)
    axes = figure.subplots()
    told = []
    looks = {
        True: ("with the line", "measured", "-"),
        False: ("without", "predicted", "--"),
    }
    for reset, (label, color, style) in looks.items():
        for number, means in enumerate(curves[reset]):
            name = None if number else label
            axes.plot(means, style, color=COLORS[color], lw=1.1, label=name)
        ends = ", ".join(f"{means[-1]:.0f}" for means in curves[reset])
        told.append(f"{label}, at the end: {ends}")
    axes.set(xlabel="round", ylabel="running mean of rewards", ylim=(0, None))
    axes.legend(loc="upper left")
    return describe(figure, title, *told)
