"""Race: how fast can one GPU train LeNet, step by step faster than its source?

    python lenet_race.py --seeds 10 --json ../recordings/lenet_race__here__today.json

`kit.recorded("lenet_race/train")` reads it again.

The training is that of "Dive into Deep Learning", section 13.5 (d2l.ai): LeNet, batches
of 256, learning rate 0.2, 60,000 grey images. Each variant does all that the one before
it does, and one thing more. All make the same steps: from the same weights, over the
same images in the same order, the smaller last batch included.

A speed counts only at equal accuracy: the 95 % interval of the difference in test
accuracy from the source's loop, over all seeds, must lie within a tolerance.
"""

import argparse
import importlib.util
import math
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision.datasets import FashionMNIST

import kit
from kit import statistics
from kit.errors import ExperimentError, RecordingError
from kit.figures import text_table
from kit.measuring.comparison import Comparison
from kit.recording import Recording, write
from kit.records import Trial

#: From the source's loop to the fastest: each does what all before it do, too.
LADDER = {
    "source": "a DataLoader, a copy to the device and a wait for the loss at each step",
    "resident": "all images on the device, drawn there in a new order for each epoch",
    "fused": "the optimizer's whole update as one operation",
    "bf16": "the network in bfloat16, with a float32 copy of its weights to update",
    "graph": "a whole epoch as one CUDA graph: one launch instead of thousands",
    "channels_last": "the channels of a pixel beside each other in memory",
    "search": "cuDNN tries its algorithms and takes the fastest",
    "compile": "torch.compile, which joins operations and tries kernels",
}
BATCH = 256
#: The source's own two runs, on one GPU and on two, end 0.01 apart.
TOLERANCE = 0.01
#: What `train` is told besides its variant and device.
KNOBS = ("without", "data", "images", "epochs", "lr", "workers")
#: Without instructions for bfloat16 a processor takes many times as long in it.
FEW_IMAGES = 4_000
#: An idle GPU runs at a low clock: so many epochs wake it before the race.
EPOCHS_TO_WAKE = 10


class RaceError(Exception):
    """A training that cannot go on, with the reason and what to do."""


def main(words: list[str] | None = None) -> int:
    """Race all variants; return 1 where one of them failed."""
    arguments = read_arguments(words)
    if arguments.device.type == "cuda":
        torch.cuda.set_device(arguments.device.index or 0)
    print_conditions(arguments)
    trials, failed = {}, 0
    for variant in LADDER:
        if variant not in arguments.variants or variant in arguments.without:
            continue
        if reason := why_not(variant, arguments):
            print(f"{variant} is left out: {reason}", flush=True)
            continue
        knobs = {name: getattr(arguments, name) for name in KNOBS}
        knobs |= {"variant": variant, "device": str(arguments.device)}
        try:
            measuring = {"seconds": None, "repeats": arguments.seeds}
            trials[variant] = kit.measure(train, **measuring, **knobs)
        except ExperimentError as error:
            print(f"{variant} failed: {error}", file=sys.stderr, flush=True)
            failed += 1
            if variant == "source":
                break  # there is nothing to compare with
            continue
        except KeyboardInterrupt:
            print(f"{variant} was interrupted: the race ends", flush=True)
            failed += 1
            break
        seconds = arguments.images / trials[variant].items_per_second
        print(f"{variant}: {1000 * seconds:,.1f} ms per epoch", flush=True)
        if arguments.json:  # after each variant: what was measured is kept
            write(make_recording(trials, arguments.within), arguments.json)
    if trials:
        print(f"\n{make_table(trials, arguments)}")
    return 1 if failed else 0


def train(
    *,
    variant: str = "source",
    without: tuple[str, ...] = (),
    data: str = "glyphs",
    images: int = 60_000,
    epochs: int = 10,
    lr: float = 0.2,
    workers: int = 0,
    device: str = "cpu",
):
    """Train LeNet by one of the ladder's variants; its accuracy after each epoch."""
    does = list(LADDER)[: list(LADDER).index(variant) + 1]
    learner = Learner({*does} - {*without}, lr, device)
    train_set, test_set = load_images(data, images)
    order = torch.Generator(device).manual_seed(torch.initial_seed())
    if "resident" in learner.does:
        run_epoch = hold_images(learner, train_set, order)
    else:
        run_epoch = read_loader(learner, train_set, order, workers)
    test_images, test_labels = test_set[:]
    test_images = learner.place(test_images)
    test_labels = test_labels.to(device)
    yield 1  # set-up is done: what follows is timed

    for epoch in range(epochs):
        losses = run_epoch()  # waits for the device
        check_losses(losses, variant, epoch, lr)
        yield images - 1
        accuracy = evaluate(learner.net, test_images, test_labels)
        yield  # leaves out the time of the evaluation
        yield 1, {"loss": math.fsum(losses) / len(losses), "accuracy": accuracy}


class Learner:
    """LeNet and its optimizer: `step` learns from one batch.

    All that a step reads or writes stays where it is in memory, and nothing in it waits
    for the device. So a CUDA graph can record it.
    """

    def __init__(self, does: set[str], lr: float, device: str) -> None:
        self.does, self.device = does, torch.device(device)
        torch.backends.cudnn.benchmark = "search" in does
        self.dtype = torch.bfloat16 if "bf16" in does else torch.float32
        self.layout = (
            torch.channels_last if "channels_last" in does else torch.contiguous_format
        )
        # Made on the CPU: a seed means the same weights everywhere.
        self.net = make_lenet().to(self.device, memory_format=self.layout)
        if "bf16" in does:
            # Most updates are too small to change a number of 8 bits: they are summed
            # in float32. Autocast would do that too, but casts every weight and every
            # gradient on its own, 20 operations in a step that has some 50.
            self.masters = [w.detach().clone() for w in self.net.parameters()]
            for master in self.masters:
                master.grad = torch.zeros_like(master)
        self.weights = list(self.net.to(self.dtype).parameters())
        if "bf16" not in does:
            self.masters = self.weights
        self.initial = [master.detach().clone() for master in self.masters]
        fused = True if "fused" in does else None
        self.optimizer = torch.optim.SGD(self.masters, lr=lr, fused=fused)
        self.compute_loss = compute_loss
        if "compile" in does:
            # No CUDA graphs of its own: here they would lie inside of another one.
            mode = "max-autotune-no-cudagraphs"
            self.compute_loss = torch.compile(compute_loss, mode=mode, dynamic=False)

    def step(self, images: Tensor, labels: Tensor) -> Tensor:
        """Learn from one batch; return the loss before it."""
        loss = self.compute_loss(self.net, images, labels)
        self.net.zero_grad()
        loss.backward()
        if self.masters is not self.weights:
            gradients = [weight.grad for weight in self.weights]
            copy_all([master.grad for master in self.masters], gradients)
        self.optimizer.step()
        if self.masters is not self.weights:
            copy_all(self.weights, self.masters)
        return loss.detach()

    def start_again(self) -> None:
        """Put the first weights back, in the same memory."""
        copy_all(self.masters, self.initial)
        if self.masters is not self.weights:
            copy_all(self.weights, self.masters)
        self.net.zero_grad()

    def place(self, images: Tensor) -> Tensor:
        """Return images on the device, as the network wants them."""
        return images.to(self.device, self.dtype, memory_format=self.layout)


def make_lenet() -> nn.Sequential:
    """Make LeNet as the source has it."""
    return nn.Sequential(
        *(nn.Conv2d(1, 20, kernel_size=3), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(20, 50, kernel_size=5), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


def compute_loss(net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss of a batch; in float32, whatever the network's type."""
    return F.cross_entropy(net(images).float(), labels)


@torch.no_grad()
def copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy many tensors in one operation; types may differ."""
    torch._foreach_copy_(targets, sources)


def read_loader(
    learner: Learner, train_set, order: torch.Generator, workers: int
) -> Callable[[], list[float]]:
    """Return the source's way through an epoch; it returns the loss of each step."""
    shuffle = Shuffle(len(train_set), order)
    loader = DataLoader(train_set, BATCH, sampler=shuffle, num_workers=workers)

    def run_epoch() -> list[float]:
        losses = []
        for images, labels in loader:
            loss = learner.step(images.to(learner.device), labels.to(learner.device))
            losses.append(loss.item())  # the source waits after each batch, too
        return losses

    warm_up(learner, train_set)
    return run_epoch


class Shuffle:
    """Draw a new order for each epoch, as all variants do."""

    def __init__(self, count: int, order: torch.Generator) -> None:
        self.count, self.order = count, order

    def __iter__(self):
        return iter(draw_order(self.count, self.order).tolist())

    def __len__(self) -> int:
        return self.count


def draw_order(count: int, order: torch.Generator) -> Tensor:
    """Return the numbers of all images in a new order, on the generator's device."""
    return torch.randperm(count, generator=order, device=order.device)


def hold_images(
    learner: Learner, train_set, order: torch.Generator
) -> Callable[[], list[float]]:
    """Return a way through an epoch that leaves the device only at its end."""
    images, labels = train_set[:]
    images, labels = learner.place(images), labels.to(learner.device)
    # Every epoch uses this memory again: a graph knows nothing but addresses.
    drawn = torch.arange(len(labels), device=learner.device)
    shuffled, named = torch.empty_like(images), torch.empty_like(labels)
    batches = list(zip(shuffled.split(BATCH), named.split(BATCH), strict=True))
    losses = torch.empty(len(batches), device=learner.device)

    def learn() -> None:
        torch.index_select(images, 0, drawn, out=shuffled)
        torch.index_select(labels, 0, drawn, out=named)
        torch.stack([learner.step(*batch) for batch in batches], out=losses)

    def run_epoch() -> list[float]:
        # Outside of the graph, which would draw the same numbers again and again.
        drawn.copy_(draw_order(len(drawn), order))
        # A graph does not keep its memory alive: `learn`, named here, does.
        learn() if replay is None else replay()
        return losses.tolist()

    if "graph" not in learner.does:
        replay = None
        warm_up(learner, train_set)
        return run_epoch
    replay = capture(learner, train_set, learn)
    for _ in range(EPOCHS_TO_WAKE):
        replay()
    learner.start_again()
    return run_epoch


def warm_up(learner: Learner, train_set) -> None:
    """Make some steps with batches of either size, and put the first weights back.

    Libraries are loaded, kernels are compiled and algorithms are tried by then.
    """
    rest = len(train_set) % BATCH or BATCH
    steps = 3 if learner.device.type == "cuda" else 1
    for count in [BATCH] * steps + [rest] * steps:
        images, labels = train_set[:count]
        learner.step(learner.place(images), labels.to(learner.device))
    learner.start_again()


def capture(
    learner: Learner, train_set, learn: Callable[[], None]
) -> Callable[[], None]:
    """Record what `learn` asks of the GPU; return what asks for all of it again.

    The steps before must run on the stream that is recorded: what autograd keeps for a
    weight remembers its stream.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        warm_up(learner, train_set)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        learn()
    return graph.replay


@torch.no_grad()
def evaluate(net: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the part of the images that the network names rightly."""
    parts = zip(images.split(1000), labels.split(1000), strict=True)
    right = sum((net(x).argmax(dim=1) == y).sum() for x, y in parts)
    return right.item() / len(labels)


def check_losses(losses: list[float], variant: str, epoch: int, lr: float) -> None:
    """Raise RaceError where the training has failed, naming the first such step."""
    for step, loss in enumerate(losses):
        if not math.isfinite(loss):
            raise RaceError(
                f"{variant}: the loss is {loss} at step {step + 1} of epoch "
                f"{epoch + 1}. A lower rate than --lr {lr:g} keeps it finite, where "
                "the source's loop stays so; else this variant is wrong"
            )


def load_images(data: str, count: int):
    """Return the first images to train on, and a sixth as many to test with."""
    read = {"glyphs": kit.data.glyphs, "fashion": read_fashion}[data]
    sets = []
    for train_part, wanted in ((True, count), (False, count // 6)):
        whole = read(train_part)
        kept = whole.images[:wanted], whole.labels[:wanted]
        sets.append(kit.data.GreyImages(*kept, whole.classes))
    return sets


def read_fashion(train_part: bool) -> kit.data.GreyImages:
    """Return Fashion-MNIST, where its unpacked files are; nothing is downloaded."""
    folder = kit.data.cache_folder()
    try:
        whole = FashionMNIST(folder, train=train_part)
    except RuntimeError as error:
        raise kit.data.DataError(
            f"--data fashion: its files are not in {folder / 'FashionMNIST' / 'raw'}. "
            "https://github.com/zalandoresearch/fashion-mnist links them: unpack them "
            "there (gunzip), or take --data glyphs"
        ) from error
    images, classes = whole.data[:, None], tuple(whole.classes)
    return kit.data.GreyImages(images, whole.targets, classes)


def why_not(variant: str, arguments: argparse.Namespace) -> str:
    """Return why a variant cannot run here, and what can; empty where it can."""
    does = list(LADDER)[: list(LADDER).index(variant) + 1]
    does = [name for name in does if name not in arguments.without]
    on_cpu = arguments.device.type == "cpu"
    if not on_cpu and "bf16" in does:
        device = arguments.device
        if torch.cuda.get_device_capability(device) < (8, 0):
            name = torch.cuda.get_device_name(device)
            return (
                f"{name} has no bfloat16, that begins with compute capability 8.0. "
                "It has float32: --without bf16"
            )
    if on_cpu and "bf16" in does and arguments.images > FEW_IMAGES:
        has = kit.this_machine().instruction_sets or ()
        if not {"avx512_bf16", "amx_bf16", "bf16"} & {*has}:
            return (
                "this processor has no instructions for bfloat16, which is very slow "
                f"then: --images {FEW_IMAGES} at most. It has float32: --without bf16"
            )
    if on_cpu and variant == "search":
        return "cuDNN is for NVIDIA GPUs: --device cuda"
    if on_cpu and "graph" in does:
        return "CUDA graphs need an NVIDIA GPU, --device cuda; here: --without graph"
    if not on_cpu and "compile" in does and not importlib.util.find_spec("triton"):
        return "torch.compile needs Triton on a GPU: python -m pip install triton"
    return ""


def make_recording(trials: dict[str, Trial], within: float) -> Recording:
    """Return the trials with what they say together: of speed and of accuracy.

    Each variant has run alone, one after another. Runs of equal seed are paired.
    """
    labels, several = list(trials), list(trials.values())
    comparisons = [
        Comparison(several, labels),
        Comparison(several, labels, "accuracy", within),
    ]
    return Recording(several, comparisons if len(labels) > 1 else [], [])


def make_table(trials: dict[str, Trial], arguments: argparse.Namespace) -> str:
    """Return a row for each variant, and a sentence about the fastest equal one."""
    _, comparisons, _ = make_recording(trials, arguments.within)
    rows, best, finding = [], 1.0, "No variant is faster at equal accuracy."
    for variant, trial in trials.items():
        times = [math.log(run.seconds / run.items) for run in trial.timed_runs]
        seconds = map(statistics.exp, statistics.student_interval(times))
        mean, low, high = (1000 * arguments.images * each for each in seconds)
        time = f"{mean:,.1f} [{low:,.1f}, {high:,.1f}]"
        accuracy = statistics.student_interval(trial.last_values("accuracy"))
        right = f"{accuracy.value:.4f} [{accuracy.low:.4f}, {accuracy.high:.4f}]"
        if variant == "source":
            rows.append((variant, time, "1", right, "", ""))
            continue
        speed, difference = (c.ratios[variant] for c in comparisons)
        equal = {"same": "yes", "cannot tell": "cannot tell"}.get(
            difference.verdict, "not equal"
        )
        claimed = str(speed) if equal == "yes" else "not claimed"
        rows.append((variant, time, claimed, right, str(difference), equal))
        if equal == "yes" and speed.verdict == "faster" and speed.value > best:
            best = speed.value
            finding = (
                f"{variant}: {1000 * mean:,.1f} ms per epoch, {speed} as fast as the "
                f"source's loop, at an accuracy equal within {arguments.within:g}."
            )
    headers = ("variant", "ms per epoch", "× source", "accuracy", "difference")
    return f"{text_table((*headers, 'equal?'), rows)}\n\n{finding}"


def print_conditions(arguments: argparse.Namespace) -> None:
    """Say on what, with what and how often is raced."""
    precise = {True: "TF32", False: "float32"}
    print(kit.this_machine())
    print(
        f"\nPyTorch {torch.__version__} on {arguments.device}. The source's loop is in "
        "float32; on a GPU its convolutions multiply in "
        f"{precise[torch.backends.cudnn.allow_tf32]}, its matrix products in "
        f"{precise[torch.backends.cuda.matmul.allow_tf32]}.\n"
        f"{arguments.images:,} images of {arguments.data} to train on, "
        f"{arguments.images // 6:,} to test with; batches of {BATCH}, learning rate "
        f"{arguments.lr:g}, {arguments.epochs} epochs, {arguments.workers} workers, "
        f"seeds 0 to {arguments.seeds - 1}. Each variant runs alone, one after another."
    )
    print("Intervals hold 95 %, ratios' and differences' all together.\n")
    for variant, does in LADDER.items():
        print(f"  {variant:<14}{does}")
    print(flush=True)


def read_arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line; it ends the program where that makes no sense."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names, several = list(LADDER), {"nargs": "+", "metavar": "VARIANT"}
    parser.add_argument(
        "--variants", choices=names, default=names, **several, help=", ".join(names)
    )
    parser.add_argument(
        "--without", choices=names[2:], default=(), **several, help="no variant does it"
    )
    parser.add_argument("--epochs", type=at_least(1), default=10)
    parser.add_argument("--seeds", type=at_least(3), default=3, help="runs of each")
    parser.add_argument("--images", type=at_least(BATCH, 60_000), default=60_000)
    parser.add_argument("--data", choices=("glyphs", "fashion"), default="glyphs")
    parser.add_argument("--lr", type=float, default=0.2, help="learning rate")
    parser.add_argument(
        "--workers",
        type=at_least(0),
        default=0,
        help="of the source's loader. It had 4; images in memory are faster without",
    )
    parser.add_argument(
        "--within", type=float, default=TOLERANCE, help="what counts as equal accuracy"
    )
    usual = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", type=find_device, default=usual)
    parser.add_argument("--json", metavar="FILE", help="keep all that was measured")
    arguments = parser.parse_args(words)
    arguments.variants = {"source", *arguments.variants}
    arguments.without = tuple(arguments.without)
    return arguments


def at_least(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return what reads a whole number that is not too small, nor too large."""

    def read(text: str) -> int:
        number = int(text)
        if number < least or (most is not None and number > most):
            limits = f"{least} or more" if most is None else f"{least} to {most}"
            raise argparse.ArgumentTypeError(f"{text} is not {limits}")
        return number

    read.__name__ = "whole number"  # what argparse calls it in its messages
    return read


def find_device(text: str) -> torch.device:
    """Return a device that is there: a processor or an NVIDIA GPU."""
    try:
        device = torch.device(text)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"{text} is neither cpu nor cuda")
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise argparse.ArgumentTypeError(f"{text}: PyTorch finds {count} such GPUs")
    return device


if __name__ == "__main__":
    try:
        status = main()
    except (RecordingError, kit.data.DataError) as error:
        sys.exit(f"error: {error}")
    sys.exit(status)
