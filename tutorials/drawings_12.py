"""The pictures of chapter 12: what overlap hides, and what more GPUs are worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from costs import LINKS, Link
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kit.figures import draw_lines

#: Links between GPUs. 25 µs for slow Ethernet, and NVLink 4's latency for NVLink 3,
#: are rough: what counts here is the bandwidth.
BETWEEN_GPUS = {
    "Ethernet, 10 Gbit/s": Link(25e-6, 10e9 / 8),
    "Ethernet, 100 Gbit/s": LINKS["Ethernet, 100 Gbit/s"],
    "NVLink 3": Link(2e-6, 300e9),
}
#: ResNet-50 on eight A100 of 80 GB: the speed of eight over that of one, published.
#: https://github.com/NVIDIA/DeepLearningExamples, resnet50v1.5, PyTorch 21.03.
RESNET_ON_EIGHT = {"mixed precision": 6.72, "TF32": 7.72}


def draw_race(race: Any, link: Link, sizes: Sequence[int]) -> Axes:
    """Draw the versions' milliseconds per step, and the least that each can take.

    `sizes` are the bytes of the gradients, the first layer's first. Prints what waiting
    costs, and what of it the link takes.
    """
    alpha, beta = link
    carried = 1000 * sum(sizes) / beta
    cable = carried + 1000 * 2 * alpha * len(sizes)
    last = 1000 * (2 * alpha + sizes[0] / beta)
    ms = {}
    for trial in race.trials:
        ms[trial.knobs["prepare"].__name__] = 1000 * trial.step_seconds
    least = max(ms["alone"] + last, carried)
    bounds = {"wait": ms["alone"] + cable}
    bounds |= dict.fromkeys(["overlap", "buckets", "ddp"], least)
    added = ms["wait"] - ms["alone"]
    saved = ms["wait"] - ms["ddp"]
    own = (added - cable) / len(sizes)
    print(f"α = {1e6 * alpha:.0f} µs, β = {beta / 1e6:.0f} MB/s")
    print(f"Waiting adds {added:.0f} ms to a step. The cable needs {cable:.0f} ms,")
    if own > 0:
        print(f"which leaves {own:.2f} ms for each of {len(sizes)} messages.")
    else:
        print("so no time of a message on top of the cable is shown.")
    return race.plot(
        predict=lambda prepare: bounds[prepare.__name__],
        title=f"DDP saves {saved:.0f} of the {added:.0f} ms that waiting adds",
    )


def draw_efficiency(predict: Callable[[int, Link], float]) -> Figure:
    """Draw the predicted efficiency over 1 to 64 GPUs, and two published points.

    `predict` returns the efficiency of so many GPUs that are joined by a link. Prints
    the speed of eight, predicted and published.
    """
    numbers = [1, 2, 4, 8, 16, 32, 64]
    lines = {}
    for name, link in BETWEEN_GPUS.items():
        shares = [100 * predict(n, link) for n in numbers]
        lines[f"predicted, {name}"] = (numbers, shares, None, None, "predicted")
    for name, speed_up in RESNET_ON_EIGHT.items():
        point = ([8], [100 * speed_up / 8], None, None, "recorded")
        lines[f"published, {name}"] = point
    eight = 8 * predict(8, BETWEEN_GPUS["NVLink 3"])
    print(f"8 GPUs by the formula: {eight:.2f} times one")
    for name, speed_up in RESNET_ON_EIGHT.items():
        print(f"8 GPUs, published, {name}: {speed_up:.2f} times one")
    slow, *_, fast = (100 * predict(64, link) for link in BETWEEN_GPUS.values())
    title = f"By the formula, 64 GPUs work at {slow:.0f} % to {fast:.0f} %"
    return draw_lines(
        lines, title=title, xlabel="GPUs", ylabel="efficiency, %", logx=True
    )
