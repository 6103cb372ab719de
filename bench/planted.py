"""Diagnose small training loops, each with a planted cause, in real time.

    python bench/planted.py [NAME …] [--seconds 60]

Nine loops stand in tutorials/slow_loops.py (A to I), six more here. The table says
whether each verdict is right; the exit status is 1 if one is wrong. Nothing else may
run meanwhile: verdicts rest on real times.
"""

import argparse
import itertools
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

import kit

sys.path.append(str(Path(__file__).parents[1] / "tutorials"))
from slow_loops import LOOPS, batches, mlp, numbers, whole_numbers

ROW = "{:22} {:10} {:12} {:20} {:>7}  {}"


def fit(model, data, find_loss=F.cross_entropy, lr=0.01):
    optimizer = SGD(model.parameters(), lr=lr, fused=True)
    for inputs, targets in data:
        loss = find_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield len(inputs)


class Joined(nn.Module):
    """Modules, and the function that joins them."""

    def __init__(self, forward, *modules):
        super().__init__()
        self.join, self.parts = forward, nn.ModuleList(modules)

    def forward(self, inputs):
        return self.join(inputs)


def workers_restarted():
    """Train on short epochs, at each of which the workers start anew."""
    data = TensorDataset(numbers(256, 32), whole_numbers(10, 256))
    loader = DataLoader(data, 32, num_workers=2)
    epochs = itertools.chain.from_iterable(itertools.repeat(loader))
    yield from fit(mlp(32, 128, 10), epochs, lr=0.1)


def memory_filled():
    """Use a few rows of large buffers, which deterministic algorithms fill."""
    torch.use_deterministic_algorithms(True)
    model = mlp(256, 256, 10)

    def pad(rows):
        padded = torch.empty(16_384, 256)
        padded[: len(rows)] = rows
        return model(padded[: len(rows)])

    data = batches(64, numbers(640, 256), whole_numbers(10, 640))
    yield from fit(Joined(pad, model), data)


def library_switched_off():
    """Train convolutions without the library that computes them."""
    layers = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.Flatten())
    model.append(nn.Linear(64 * 24 * 24, 10))
    data = batches(8, numbers(64, 3, 24, 24), whole_numbers(10, 64))
    with torch.backends.mkldnn.flags(enabled=False):
        yield from fit(model, data)


def attention_in_parts():
    """Train attention over long sequences, with the one-operation form forbidden."""
    project, out = nn.Linear(64, 192), nn.Linear(64, 16)

    def attend(states):
        parts = project(states).unflatten(-1, (3, 2, 32)).permute(2, 0, 3, 1, 4)
        return out(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))

    data = batches(2, numbers(16, 1024, 64), numbers(16, 1024, 16))
    with sdpa_kernel(SDPBackend.MATH):
        yield from fit(Joined(attend, project, out), data, F.mse_loss, lr=1e-3)


def image_smoothed():
    """Remove noise from a large image by gradient descent on its total variation."""
    noisy = numbers(1, 1600, 1600)
    image = nn.Parameter(noisy.clone())

    def vary(clean, noisy):
        across = (clean[..., 1:] - clean[..., :-1]).abs().sum()
        down = (clean[..., 1:, :] - clean[..., :-1, :]).abs().sum()
        return (clean - noisy).square().sum() / 2 + 0.5 * (across + down)

    model = Joined(lambda noisy: image, nn.ParameterList([image]))
    yield from fit(model, itertools.repeat((noisy, noisy)), vary, lr=0.1)


def sort_scores():
    """Sort: useful work, neither a product nor bound by memory."""
    scores = numbers(500_000)
    while True:
        scores.sort()
        yield 1


LOOPS = LOOPS | {
    "workers_restarted": workers_restarted,
    "memory_filled": memory_filled,
    "library_switched_off": library_switched_off,
    "attention_in_parts": attention_in_parts,
    "image_smoothed": image_smoothed,
    "sort_scores": sort_scores,
}
CAUSES = {
    "A": "overhead",
    "B": "python",
    "C": "compute",
    "D": "input",
    "E": "optimizer",
    "F": "threads",
    "G": "settings",
    "H": "settings",
    "I": "threads",
    "workers_restarted": "input",
    "memory_filled": "settings",
    "library_switched_off": "settings",
    "attention_in_parts": "settings",
    "image_smoothed": "memory",
    "sort_scores": "healthy",
}


def find_saving(found):
    """Return what leaving out the verdict's cause saves, or else the best repair."""
    if found.verdict in found.savings:
        return found.savings[found.verdict]
    sure = [saving for saving in found.tried.values() if saving.is_sure]
    return max(sure, key=lambda saving: saving.value, default="–")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(LOOPS))
    parser.add_argument("--seconds", type=float, default=60.0)
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(LOOPS):
        parser.error(f"no such loop: {', '.join(sorted(unknown))}")
    torch.set_num_threads(kit.this_machine().cores)  # as chapter 03 does
    print(ROW.format("loop", "planted", "verdict", "saves", "seconds", ""))
    wrong = 0
    for name in asked.names or LOOPS:
        begun = time.perf_counter()
        found = kit.diagnose(LOOPS[name], seconds=asked.seconds)
        took = f"{time.perf_counter() - begun:.0f}"
        judged = "right" if found.verdict == CAUSES[name] else "WRONG"
        if found.verdict is None:
            judged = "cannot tell"
        wrong += judged == "WRONG"
        verdict, saving = found.verdict or "–", str(find_saving(found))
        print(ROW.format(name, CAUSES[name], verdict, saving, took, judged), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
