"""Whether this machine is quiet enough to record: a loop compared with itself."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kit.comparison import Ratio, compare
from kit.recording.files import RecordingError

_SECONDS, _MOST = 10.0, 1.03


def train(*, batch_size: int = 64) -> Iterator[object]:
    """Train a linear layer."""
    net = torch.nn.Linear(256, 10)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    while True:
        inputs, labels = torch.randn(batch_size, 256), torch.randint(10, (batch_size,))
        loss = torch.nn.functional.cross_entropy(net(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield batch_size, {"loss": loss}


def compare_with_itself() -> Ratio:
    """Compare the README's loop with itself; the truth is 1."""
    twice = {"the README's loop": train, "the same loop": train}
    return compare(twice, seconds=_SECONDS).ratio


def check_quiet() -> str:
    """Return a sentence that says how quiet this machine is.

    Raises RecordingError where the interval of what is 1 is not within 3 % of it.
    """
    ratio = compare_with_itself()
    told = f"The README's loop compared with itself: {ratio}"
    if 1 / _MOST <= ratio.low and ratio.high <= _MOST:
        return f"{told}. The machine is quiet."
    raise RecordingError(
        f"this machine is not quiet. {told}; a recording needs an interval between "
        f"{1 / _MOST:.2f} and {_MOST:.2f}.\n"
        "End other programs, or wait until they end; then record again."
    )
