"""What the loops share: data in memory, made once, and two plain models."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from torch import nn


class Planted(NamedTuple):
    """A training loop, what slows it down, and the same training without that.

    `cause` is None where the loop is healthy; `repaired` where nothing is to repair.
    """

    name: str
    cause: str | None
    loop: Callable
    repaired: Callable | None = None


def _load_slow_loops() -> ModuleType:
    """Import the loops that lie beside the notebook which shows them."""
    path = Path(__file__).resolve().parents[3] / "tutorials" / "slow_loops.py"
    spec = importlib.util.spec_from_file_location("slow_loops", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


slow_loops = _load_slow_loops()
numbers, whole_numbers = slow_loops.numbers, slow_loops.whole_numbers
batches, mlp, Blocks = slow_loops.batches, slow_loops.mlp, slow_loops.Blocks


def shown(letter: str, name: str, cause: str | None) -> Planted:
    """Return a loop of the gallery in chapter 02, which tells its letter only."""
    loop, repaired = slow_loops.LOOPS[letter], slow_loops.REPAIRED[letter]
    return Planted(name, cause, loop, None if repaired is loop else repaired)


def cnn(channels: int, classes: int = 10) -> nn.Sequential:
    """Make a small convolutional network for images of three channels."""
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * channels, classes),
    )
