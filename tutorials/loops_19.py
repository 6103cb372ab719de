"""What chapter 19 trains: photos, a ResNet, a GPT; and what it counts and measures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache, partial
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import pandas as pd
import torch
from hardware_18 import measure_roof, multiply
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler
from torch.utils.flop_counter import FlopCounterMode
from torchvision.transforms import v2

import kit

#: The shapes to tell apart, and of how many drawn photos: half of them show one.
CLASSES, DRAWN = ("circle", "cross", "ring", "star", "stripes"), 2048
#: The learning rate of 16 photos; when it falls to nothing, in epochs.
RATE, EPOCHS = 0.002, 6
CORES = torch.get_num_threads()
#: The accuracy of each run to a goal when it ended.
REACHED: list[float] = []
#: The seconds that decoding took in each run to a goal with kept photos.
DECODED: list[float] = []
#: The changes of the GPT.
GPT_CHANGES: dict[str, dict[str, Any]] = {
    "larger batches": {"sequences": 16},
    "fused update": {"fused": True},
    "one attention operation": {"attention": "one operation"},
}
Batch = tuple[torch.Tensor, torch.Tensor]


# Photos


class Photos(Dataset):
    """Photos of five shapes, read and decoded whenever one is asked for.

    Every fourth one is held out, and the others are for training.
    """

    def __init__(self, size: int, *, held_out: bool = False) -> None:
        small = v2.Compose(
            [v2.PILToTensor(), v2.Resize(size), v2.ToDtype(torch.float32, scale=True)]
        )
        self.photos = kit.data.PhotoDataset(kit.data.photos(DRAWN), small)
        self.labels = {self.photos.classes.index(name): n for n, name in _number()}
        own = [n for n, (_, c) in enumerate(self.photos.samples) if c in self.labels]
        self.numbers = [
            n for place, n in enumerate(own) if (place % 4 == 0) == held_out
        ]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        image, label = self.photos[self.numbers[place]]
        return image, self.labels[label]


def _number() -> Iterator[tuple[int, str]]:
    return enumerate(CLASSES)


class Kept(Dataset):
    """Photos in memory: a list of numbers gives a whole batch."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, places: list[int]) -> Batch:
        return self.images[places], self.labels[places]


def decode(photos: Photos) -> Kept:
    """Read and decode all photos with a worker for each core; return them."""
    apart = torch.Generator()  # or the loader would draw a number from everybody's
    loader = DataLoader(photos, batch_size=32, num_workers=CORES, generator=apart)
    images, labels = zip(*loader, strict=True)
    return Kept(torch.cat(images), torch.cat(labels))


@cache
def at_hand(size: int, held_out: bool = False) -> Kept:
    """Return decoded photos; they are decoded once for the whole notebook."""
    return decode(Photos(size, held_out=held_out))


def open_photos(size: int, kept: bool, goal: float | None) -> Photos | Kept:
    """Return photos to train on; kept ones are decoded anew for a run to a goal."""
    if not kept:
        return Photos(size)
    if not goal:
        return at_hand(size)
    start = perf_counter()
    photos = decode(Photos(size))
    DECODED.append(perf_counter() - start)
    return photos


def make_loader(photos: Photos | Kept, batch: int, workers: int) -> DataLoader:
    """Make a loader that shuffles; all kinds of photos come in the same order."""
    order = BatchSampler(RandomSampler(photos), batch, drop_last=True)
    options: dict[str, Any] = {"num_workers": workers}
    options["persistent_workers"] = workers > 0
    if isinstance(photos, Kept):
        return DataLoader(photos, sampler=order, batch_size=None, **options)
    return DataLoader(photos, batch_sampler=order, **options)


def flip(images: torch.Tensor) -> torch.Tensor:
    """Mirror a batch or not, by chance, left to right and top to bottom."""
    return images.flip([side for side in (2, 3) if torch.rand(()) < 0.5])


# The ResNet


class Residual(nn.Module):
    """Two convolutions; what comes in is added to what they make."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def make_resnet(width: int = 16) -> nn.Sequential:
    """Make a ResNet of four blocks for photos of any size.

    >>> sum(weight.numel() for weight in make_resnet().parameters())
    307989
    """
    first = nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False)
    blocks = [Residual(width, width, 1)]
    for n in (1, 2, 4):
        blocks.append(Residual(n * width, 2 * n * width, 2))
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, len(CLASSES))]
    return nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU(), *blocks, *head)


def make_optimizer(
    net: nn.Module, batch: int, steps: int, fused: bool
) -> tuple[torch.optim.Adam, torch.optim.lr_scheduler.LambdaLR]:
    """Make an optimizer and its schedule, of so many steps in an epoch.

    The rate grows with the square root of the batch. It rises for a quarter of the
    time, and falls to almost nothing by the end of the last epoch.
    """
    rate = RATE * (batch / 16) ** 0.5
    # None is the default; False would rule out more than the fused update.
    optimizer = torch.optim.Adam(net.parameters(), lr=rate, fused=fused or None)
    rise, fall = max(1.0, EPOCHS * steps / 4), max(1.0, EPOCHS * steps * 3 / 4)

    def scale(step: int) -> float:
        return max(0.001, min((step + 1) / rise, (rise + fall - step) / fall))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, scale)
    schedule.steps = EPOCHS * steps
    return optimizer, schedule


def find_accuracy(net: nn.Module, size: int) -> float:
    """Return the share of held-out photos that a network gets right."""
    kept, place = at_hand(size, held_out=True), next(net.parameters()).device
    with torch.no_grad():
        found = net.eval()(kept.images.to(place)).argmax(dim=1).cpu()
    net.train()
    return (found == kept.labels).float().mean().item()


def is_over(net: nn.Module, size: int, goal: float | None, schedule: Any) -> bool:
    """Return whether a run has reached its goal, or the end of its schedule."""
    if goal is None:
        return False
    accuracy = find_accuracy(net, size)
    ends = accuracy >= goal or schedule.last_epoch >= schedule.steps
    if ends:
        REACHED.append(accuracy)
    return ends


# A GPT


class Attention(nn.Module):
    """Causal attention of four heads, written out or as one operation."""

    def __init__(self, width: int, way: str) -> None:
        super().__init__()
        self.way = way
        self.inputs, self.outputs = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sequences, length, width = x.shape
        parts = self.inputs(x).view(sequences, length, 3, 4, width // 4)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        if self.way == "one operation":
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            scores = query @ key.transpose(-2, -1) / (width // 4) ** 0.5
            all_pairs = torch.ones(length, length, dtype=torch.bool, device=x.device)
            later = all_pairs.triu(1)
            mixed = scores.masked_fill(later, -torch.inf).softmax(-1) @ value
        return self.outputs(mixed.transpose(1, 2).reshape(sequences, length, width))


class Block(nn.Module):
    """Attention and two layers, each added to what comes in."""

    def __init__(self, width: int, way: str) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width, way))
        self.layers = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(x)
        return x + self.layers(x)


class GPT(nn.Module):
    """A small GPT that predicts the next byte of a text."""

    def __init__(self, width: int, blocks: int, length: int, way: str) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        layers = [Block(width, way) for _ in range(blocks)]
        self.layers = nn.Sequential(*layers, nn.LayerNorm(width), nn.Linear(width, 256))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.layers(self.tokens(tokens) + self.places.weight)


@cache
def load_text(device: torch.device) -> torch.Tensor:
    """Return the bytes of a text, this series' glossary."""
    text = Path(__file__).with_name("GLOSSARY.md").read_bytes()
    return torch.tensor(list(text), device=device)


def train_gpt(
    *,
    sequences: int = 4,
    fused: bool = False,
    attention: str = "written out",
    bits: int = 32,
    backend: str = "",
) -> Iterator[tuple[int, dict[str, torch.Tensor]]]:
    """Train a small GPT on text; an item is a token."""
    device = kit.device()
    width, blocks, length = (128, 4, 128) if device.type == "cpu" else (512, 8, 512)
    torch.set_num_threads(CORES)
    net = GPT(width, blocks, length, attention).to(device)
    model = torch.compile(net, backend=backend) if backend else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.001, fused=fused or None)
    text, along = load_text(device), torch.arange(length + 1, device=device)
    while True:
        starts = torch.randint(len(text) - length, (sequences, 1), device=device)
        chosen = text[starts + along]
        with torch.autocast(device.type, torch.bfloat16, enabled=bits == 16):
            outputs = model(chosen[:, :-1])
            loss = F.cross_entropy(outputs.flatten(0, 1), chosen[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield sequences * length, {"loss": loss}


# What the device can do


def has_16_bits(device: torch.device) -> bool:
    """Return whether a device has instructions for bfloat16."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def add_16_bits(changes: dict[str, dict[str, Any]]) -> None:
    """Add 16 bits to changes where the device has instructions for them."""
    if has_16_bits(kit.device()):
        changes["16 bits"] = {"bits": 16}
    else:
        print("16 bits are left out: this device has no instructions for bfloat16.")


def measure_peak(device: torch.device) -> float:
    """Return the FLOP per second of a large product, in 16 bits where there are any."""
    torch.set_num_threads(CORES)
    dtype = torch.bfloat16 if has_16_bits(device) else torch.float32
    size = 1024 if device.type == "cpu" else 4096
    size = 64 if kit.quick else size
    return measure_roof(multiply(size=size, dtype=dtype), calls=100)


def count_flops(steps: Iterator[Any]) -> float:
    """Return the FLOP of an item, of products, convolutions and attention."""
    for _ in islice(steps, 2):  # the first yield of a loop may only start the clock
        pass
    with FlopCounterMode(display=False) as counter:
        items, _ = next(steps)
    return counter.get_total_flops() / items


def time_first_step(steps: Iterator[Any]) -> float:
    """Return the seconds of a loop's first step, without its start."""
    start = perf_counter()
    step = next(steps)
    if step is None:  # only the clock has started
        start = perf_counter()
        step = next(steps)
    step[1]["loss"].item()
    return perf_counter() - start


#: What a diagnosis prints for each change.
CALLS = {
    "workers": "num_workers",
    "kept photos": "dataset[i]",
    "fused update": "fused=True",
    "larger batches": "batch",
    "channels last": "channels_last",
    "loss read seldom": ".item()",
    "16 bits": "bfloat16",
    "compiling": "torch.compile",
}


def name_changes(diagnosis: Any) -> str:
    """Return our names of those changes that a diagnosis prints as next steps."""
    text = "\n".join(diagnosis.next_steps())
    named = [name for name, call in CALLS.items() if call in text]
    return ", ".join(named) or "none of our changes"


# Ladders, tables and sentences


def make_ladder(loop: Any, changes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return loops by name: the plain one, and one more change in each.

    >>> ladder = make_ladder(dict, {"a": {"x": 1}, "b": {"y": 2}})
    >>> [loop() for loop in ladder.values()]
    [{}, {'x': 1}, {'x': 1, 'y': 2}]
    """
    ladder, knobs = {"plain": loop}, {}
    for name, change in changes.items():
        knobs = {**knobs, **change}
        ladder[f"+ {name}"] = partial(loop, **knobs)
    return ladder


def leave_out(loop: Any, changes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the loop with all changes, and a loop without each of them.

    >>> loops = leave_out(dict, {"a": {"x": 1}, "b": {"y": 2}})
    >>> [loop() for loop in loops.values()]
    [{'x': 1, 'y': 2}, {'y': 2}, {'x': 1}]
    """
    loops = {"last": [*make_ladder(loop, changes).values()][-1]}
    for left in changes:
        others = {name: change for name, change in changes.items() if name != left}
        loops[f"without {left}"] = [*make_ladder(loop, others).values()][-1]
    return loops


def count_photos(race: Any, label: str) -> float:
    """Return how many photos the runs of a loop needed, on average."""
    runs = [run for run in race.trials[race.labels.index(label)].runs if run.steps]
    return sum(run.items for run in runs) / len(runs)


def print_race(race: Any, climb: Any) -> None:
    """Print how long two loops took to the goal, and what else differs."""
    seconds = []
    for label, trial in zip(race.labels, race.trials, strict=True):
        timed = [run.seconds for run in trial.runs if run.steps]
        seconds.append(sum(timed) / len(timed))
        photos = count_photos(race, label)
        print(f"{label}: {seconds[-1]:.1f} s, {photos:,.0f} photos on average")
    first, last = seconds
    slow, *_, quick = [trial.items_per_second for trial in climb.trials]
    print(f"From {first:.1f} s to {last:.1f} s: {first / last:.1f} times as fast.")
    print(f"By photos per second, the ladder gains {quick / slow:.1f} times.")
    if DECODED:
        once = sum(DECODED) / len(DECODED)
        print(f"Decoding once took {once:.1f} s of the {last:.1f}.")
    lowest = min(REACHED, default=0.0)
    print(f"The lowest accuracy at the end of a run is {lowest:.0%}.")


#: Recorded on an H100: a file, and the numbers of the faster and the slower trial.
RECORDED = {
    "a product of 8,192² numbers: bfloat16 for float32": ("products", 3, 0),
    "an update alone: fused for PyTorch's default": ("optimizer", 2, 1),
    "attention alone: one operation for several": ("attention", 1, 0),
    "a chain of small operations: compiled": ("fused", 1, 0),
    "a small network's step: replayed as a CUDA graph": ("graphs", 1, 0),
    "a large network's step: the loss never read": ("wait_large", 0, 1),
}


def list_recorded() -> pd.DataFrame:
    """Return what single changes gained on an H100, as it was recorded."""
    rows = {}
    for change, (name, new, old) in RECORDED.items():
        found = kit.load(Path(__file__).parent / "more" / "h100" / f"{name}.json")
        rates = [trial.items_per_second for trial in found.trials]
        rows[change] = f"{rates[new] / rates[old]:.2f} ×"
    return pd.DataFrame({"gain": rows})


def tabulate(found: Any, flops: Any, peak: float, items: str) -> pd.DataFrame:
    """Return each loop's rate, its gain over the one before, and its MFU.

    `flops` returns the FLOP of an item from a loop's knobs.
    """
    rates = pd.Series([t.items_per_second for t in found.trials], found.labels)
    counted = [flops(trial.knobs) for trial in found.trials]
    table = pd.DataFrame({f"{items} a second": rates.round()})
    table["gain"] = (rates / rates.shift()).round(2)
    table["MFU"] = [f"{share:.1%}" for share in rates * counted / peak]
    return table


def first_losses(loop: Any) -> list[float]:
    """Return the losses of a loop's first three steps, from a fixed seed."""
    torch.manual_seed(0)
    steps = (step for step in loop() if step)
    return [metrics["loss"].item() for _, metrics in islice(steps, 3)]


def find_earned(
    changes: dict[str, dict[str, Any]], left_out: Any
) -> dict[str, dict[str, Any]]:
    """Return the changes without which the last loop is slower, and print them."""
    verdicts = {name: left_out.ratios[f"without {name}"].verdict for name in changes}
    earned = {name: changes[name] for name in changes if verdicts[name] == "slower"}
    print("They earn their place:", ", ".join(earned) or "none")
    print("No clear gain:", ", ".join(changes.keys() - earned.keys()) or "none")
    return earned


def print_bounds(found: Any, flops: dict[int, float], peak: float) -> None:
    """Print what a loop can gain at most, of all but arithmetic, and of arithmetic."""
    arithmetic = found.shares["forward"] + found.shares["backward"]
    rate = found.knobs["batch"] / found.step_seconds
    mfu = rate * flops[found.knobs["size"]] / peak
    print(f"Forward and backward are {arithmetic:.0%} of a step.")
    print(f"All else for nothing: {1 / arithmetic:.2f} × at most.")
    print(f"All products at the peak, and nothing else: {1 / mfu:.1f} × at most.")


def pair_gains(table: pd.DataFrame, left_out: Any) -> dict[str, tuple[float, float]]:
    """Return two gains of each change: when it came, and in the end."""
    gains = {}
    for label, ratio in left_out.ratios.items():
        name = label.removeprefix("without ")
        gains[name] = table.loc[f"+ {name}", "gain"], 1 / ratio.value
    return gains


def print_decoding(climb: Any, left_out: Any) -> None:
    """Print what decoding takes per photo, in the plain loop and back in the last."""
    plain, kept = [1000 / trial.items_per_second for trial in climb.trials[:2]]
    last = 1000 / left_out.baseline.items_per_second
    without = last / left_out.ratios["without kept photos"].value
    for what, slow, quick in (
        ("Decoding in the plain loop", plain, kept),
        ("Decoding, put back into the last loop", without, last),
    ):
        share = 1 - quick / slow
        print(f"{what}: {slow - quick:.2f} ms a photo, ", end="")
        print(f"{share:.0%} of {slow:.2f} ms: a gain of {1 / (1 - share):.2f}.")


def print_orders(**tables: pd.DataFrame) -> None:
    """Print the changes of some ladders by what they gained when they came."""
    for name, table in tables.items():
        gains = table["gain"].dropna().sort_values(ascending=False)
        listed = [f"{label[2:]} {gain:.2f}" for label, gain in gains.items()]
        print(f"{name}: {', '.join(listed)}")


def judge_overlap(one: Any, other: Any, both: Any) -> str:
    """Say whether two gains overlap: whether both together gain less than the product.

    The interval of both over the product comes from the three intervals, on the log
    scale, as if they were independent. They share the baseline, so it is too wide.
    """
    ratios = one, other, both
    product = one.value * other.value
    half = math.hypot(*(math.log(ratio.high / ratio.low) / 2 for ratio in ratios))
    value = both.value / product
    low, high = value * math.exp(-half), value * math.exp(half)
    verdict = "They overlap" if high < 1 else "Cannot tell whether they overlap"
    numbers = f"{one.value:.2f} × {other.value:.2f} = {product:.2f}"
    numbers += f", and both together gain {both.value:.2f}"
    return f"{verdict}: {numbers}, {value:.2f} of it [{low:.2f}, {high:.2f}]."


def judge_compiling(first: float, found: Any, needed: float) -> str:
    """Say whether compiling pays within a training of so many photos."""
    ratio = found.ratio
    begin = f"The first step took {first:.0f} s, and then the loop has "
    begin += f"{ratio.value:.2f} × the speed [{ratio.low:.2f}, {ratio.high:.2f}]"
    if ratio.verdict != "faster":
        return f"{begin}: no clear gain that could pay for it."
    plain, compiled = [trial.items_per_second for trial in found.trials]
    least = first / (1 / plain - 1 / compiled)
    pays = "pays" if least < needed else "does not pay"
    end = f"our training needs {needed:,.0f}, so here it {pays}"
    return f"{begin}. It pays from {least:,.0f} photos; {end}."
