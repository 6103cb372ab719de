"""The pictures of chapter 12: what overlap hides, and what more GPUs are worth."""

from __future__ import annotations

from collections.abc import Callable
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
RESNET_ON_EIGHT = {"mixed precision": 16621 / 2470, "TF32": 7248 / 938}
#: Tokens per second and GPU, published: nanotron's Ultra-Scale Playbook, 2025.
PLAYBOOK = {8: 40150, 16: 37610, 32: 35368, 64: 31112, 128: 26446, 256: 15700}


def draw_race(race: Any, cable: float, last: float, *, messages: int) -> Axes:
    """Draw the versions' milliseconds per step, and the least that each can take.

    `cable` is what the link takes for all gradients, one by one, `last` for those of
    the first layer, both in seconds. Prints what waiting costs.
    """
    ms = {}
    for trial in race.trials:
        ms[trial.knobs["prepare"].__name__] = 1000 * trial.step_seconds
    cable_ms = 1000 * cable
    least = max(ms["alone"] + 1000 * last, cable_ms)
    bounds = {"wait": ms["alone"] + cable_ms}
    bounds |= dict.fromkeys(["overlap", "buckets", "ddp"], least)
    added = ms["wait"] - ms["alone"]
    hidden = ms["wait"] - ms["ddp"]
    own = (added - cable_ms) / messages
    print(f"Waiting adds {added:.0f} ms to a step. The cable takes {cable_ms:.0f} of them.")
    print(f"The rest is {own:.2f} ms for each of {messages} messages.")
    return race.plot(
        predict=lambda prepare: bounds[prepare.__name__],
        title=f"DDP hides {hidden:.0f} of the {added:.0f} ms that waiting adds",
    )


def draw_efficiency(predict: Callable[[int, Link], float]) -> Figure:
    """Draw the predicted efficiency over 1 to 64 GPUs, and two published points.

    `predict` returns the efficiency of so many GPUs that are joined by a link.
    """
    numbers = [1, 2, 4, 8, 16, 32, 64]
    lines = {}
    for name, link in BETWEEN_GPUS.items():
        shares = [100 * predict(n, link) for n in numbers]
        lines[f"predicted, {name}"] = (numbers, shares, None, None, "predicted")
    for name, speed_up in RESNET_ON_EIGHT.items():
        point = ([8], [100 * speed_up / 8], None, None, "recorded")
        lines[f"published, {name}"] = point
    slow, *_, fast = (100 * predict(64, link) for link in BETWEEN_GPUS.values())
    title = f"By the formula, 64 GPUs work at {slow:.0f} % to {fast:.0f} %"
    return draw_lines(
        lines, title=title, xlabel="GPUs", ylabel="efficiency, %", logx=True
    )
