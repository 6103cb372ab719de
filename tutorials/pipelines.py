"""Pictures and counters of chapter 15: plans and runs of a pipeline, and bytes.

An action is written as PyTorch writes it: "1F0" sends micro-batch 0 forward through
stage 1, "1B0" its gradient back. Where a plan divides the way back in two, "1I0" is the
gradient of the stage's input, and "1W0" that of its weights. A plan is a list of
actions for each rank.
"""

from __future__ import annotations

import os
import socket
import statistics
import struct
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import psutil
import torch
import torch.distributed as dist
from matplotlib.figure import Figure
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from kit.figures import COLORS, Span, kit_look
from kit.figures.style import PHASE_LOOKS, ROW, describe, new_figure, paint

Plan = Sequence[Sequence[str]]
_PHASES = {"F": "forward", "B": "backward", "I": "backward", "W": ""}
_KINDS = {"forward": "forward", "backward": "backward", "": "weights' gradient"}
_RECEIVED = 128  # bytes into Linux's struct tcp_info: tcpi_bytes_received


def find_need(action: str, last: int) -> str:
    """Return the action that has to come before, "" where there is none.

    >>> find_need("1F0", last=3), find_need("1B0", last=3), find_need("3B0", last=3)
    ('0F0', '2B0', '3F0')
    """
    stage, kind, batch = int(action[0]), action[1], action[2:]
    if kind == "F":
        return f"{stage - 1}F{batch}" if stage > 0 else ""
    if kind == "W":
        return f"{stage}I{batch}"
    return f"{stage}F{batch}" if stage == last else f"{stage + 1}{kind}{batch}"


def simulate(plan: Plan, seconds: Mapping[str, float]) -> list[list[Span]]:
    """Return when each action would run if none waited longer than it has to.

    `seconds` says how long each kind takes. Messages take no time. Where ranks wait for
    each other for ever, their actions are missing.

    >>> lanes = simulate([["0F0", "0B0"], ["1F0", "1B0"]], {"F": 1, "B": 2})
    >>> [(span.start, span.stop) for span in lanes[0]]
    [(0.0, 1.0), (4.0, 6.0)]
    """
    actions = [action for order in plan for action in order]
    last = max(int(action[0]) for action in actions)
    named = 0 if last >= len(plan) else 1  # a rank with several stages names them
    lanes: list[list[Span]] = [[] for _ in plan]
    ends = {"": 0.0}
    for _ in actions:
        for order, lane in zip(plan, lanes, strict=True):
            if len(lane) == len(order):
                continue
            action = order[len(lane)]
            need = find_need(action, last)
            if need in ends:
                start = max(ends[need], lane[-1].stop if lane else 0.0)
                stop = ends[action] = start + seconds[action[1]]
                lane.append(Span(start, stop, _PHASES[action[1]], action[named:]))
    return lanes


def find_bubble(lanes: Sequence[Sequence[Span]]) -> float:
    """Return the share of the ranks' time, from first to last, that nobody uses.

    >>> find_bubble(simulate([["0F0", "0B0"], ["1F0", "1B0"]], {"F": 1, "B": 2}))
    0.5
    """
    spans = [span for lane in lanes for span in lane]
    time = max(span.stop for span in spans) - min(span.start for span in spans)
    return 1 - sum(span.stop - span.start for span in spans) / time / len(lanes)


def conduct(*score: str) -> Figure:
    """Draw when each rank does what its line says: "F0 F1 B0 B1" for rank 0, and so on.

    A forward pass takes one unit of time and a backward pass two. The title says what
    share of the time is bubble, or that the ranks wait for each other forever.

    >>> conduct("F0 B0", "F0 B0").alt.split(".")[0]
    'Bubble 50 %: 6 units of time on 2 ranks, each works for 3'
    """
    plan = []
    for rank, line in enumerate(score):
        for action in line.split():
            if action[0] not in "FB" or not action[1:].isdigit():
                raise ValueError(
                    f"{action!r} is no action: write F0 or B0, for example"
                )
        plan.append([f"{rank}{action}" for action in line.split()])
    found = simulate(plan, {"F": 1, "B": 2})
    lanes = {}
    for rank, lane in enumerate(found):
        lanes[f"rank {rank} keeps {count_kept(plan[rank])}"] = lane
    stuck = []
    for rank, (order, lane) in enumerate(zip(plan, found, strict=True)):
        if len(lane) < len(order):
            stuck.append(f"rank {rank} before {order[len(lane)][1:]}")
    if stuck:
        title = f"Forever waiting: {', '.join(stuck)}"
    else:
        end = max(lane[-1].stop for lane in found)
        work = 3 * len(plan[0]) // 2
        title = (
            f"Bubble {100 * find_bubble(found):.0f} %: {end:.0f} units of time "
            f"on {len(plan)} ranks, each works for {work}"
        )
    return draw_schedule(lanes, title, "units of time")


def count_kept(order: Sequence[str]) -> int:
    """Return for how many micro-batches a rank keeps activations, at most.

    >>> count_kept(["0F0", "0F1", "0B0", "0B1"])
    2
    """
    now = most = 0
    for action in order:
        now += {"F": 1, "B": -1}.get(action[1], 0)
        most = max(most, now)
    return most


def draw_plans(plans: Mapping[str, Plan]) -> Figure:
    """Draw named plans above each other, and say in the title what each leaves idle.

    A rank's forward passes take 8 units of time for the whole batch and its backward
    passes 16, half of that for the input. They are divided among micro-batches and the
    rank's stages.
    """
    lanes, ends, idle = {}, {}, []
    for name, plan in plans.items():
        actions = {action for order in plan for action in order if action[1] == "F"}
        turn = 8 * len(plan) / len(actions)
        found = simulate(plan, {"F": turn, "B": 2 * turn, "I": turn, "W": turn})
        idle.append(f"{name} {100 * find_bubble(found):.0f} %")
        for rank, lane in enumerate(found):
            lanes[f"{name}, rank {rank}"] = lane
            ends[f"{name}, rank {rank}"] = find_end(found)
    title = f"Planned bubble: {', '.join(idle)}"
    return draw_schedule(lanes, title, "units of time", ends)


def find_end(lanes: Sequence[Sequence[Span]]) -> float:
    """Return when the last of some ranks is done."""
    return max(span.stop for lane in lanes for span in lane)


def draw_run(done: Sequence[Sequence[Span]]) -> Figure:
    """Draw what ranks did below the same schedule without messages and waiting.

    The planned actions take as long as those of the run do in the mean.
    """
    seconds: dict[str, list[float]] = {}
    plan = []
    for rank, lane in enumerate(done):
        for span in lane:
            seconds.setdefault(span.label[0], []).append(span.stop - span.start)
        plan.append([f"{rank}{span.label}" for span in lane])
    means = {kind: statistics.mean(times) for kind, times in seconds.items()}
    planned = simulate(plan, means)
    lanes = {f"plan, rank {rank}": lane for rank, lane in enumerate(planned)}
    lanes |= {f"run, rank {rank}": lane for rank, lane in enumerate(done)}
    title = (
        f"Bubble: planned {100 * find_bubble(planned):.0f} %, "
        f"in the run {100 * find_bubble(done):.0f} %"
    )
    ends = {}
    for name in lanes:
        ends[name] = find_end(planned if name.startswith("plan") else done)
    return draw_schedule(lanes, title, "seconds", ends)


@kit_look()
def draw_schedule(
    lanes: Mapping[str, Sequence[Span]],
    title: str,
    unit: str,
    ends: Mapping[str, float] | None = None,
) -> Figure:
    """Draw one row of blocks for each rank, and mark where it has nothing to do.

    `ends` says up to when a row counts, where it is not the end of all.
    """
    figure = new_figure(title, ROW * len(lanes) + 1.1)
    axes = figure.subplots()
    spans = [span for lane in lanes.values() for span in lane]
    end = max([span.stop for span in spans], default=1.0)
    told, kinds = [], {}
    for row, (name, lane) in enumerate(lanes.items()):
        words, free = [], 0.0
        last = ends[name] if ends else end
        for span in [*lane, Span(last, last, "", "")]:
            gap = span.start - free
            if gap > 0.001 * end:
                look = {"facecolor": COLORS["zone"], "edgecolor": COLORS["predicted"]}
                look |= {"hatch": "////", "linewidth": 0}
                axes.barh(row, gap, 0.66, free, **look)
                kinds["bubble"] = axes.patches[-1]
                words.append(f"bubble {free:.3g} to {span.start:.3g}")
            free = max(free, span.stop)
        for span in lane:
            length = span.stop - span.start
            bar = axes.barh(row, length, 0.66, span.start)[0]
            paint(bar, span.phase)
            bar.set(edgecolor=COLORS["card"], linewidth=1, hatch=None)
            kinds[_KINDS[span.phase]] = bar
            if 6 * length / end > 0.04 + 0.08 * len(span.label):  # inches
                place = span.start + length / 2, row
                color = PHASE_LOOKS[span.phase][1]
                axes.text(*place, span.label, ha="center", va="center", color=color)
            words.append(f"{span.label} {span.start:.3g} to {span.stop:.3g}")
        told.append(f"{name}: {', '.join(words)}")
    axes.set(xlim=(0, end), ylim=(len(lanes) - 0.5, -0.5), xlabel=unit)
    axes.set_yticks(range(len(lanes)), list(lanes), color=COLORS["ink"])
    axes.grid(visible=False, axis="y")
    names = sorted(kinds)
    handles = [kinds[name] for name in names]
    figure.legend(handles, names, loc="outside lower left", ncols=4)
    return describe(figure, title, *told)


# A real pipeline, timed


def take_apart(gain: Any, step: Sequence[Sequence[Span]]) -> str:
    """Say where two ranks with four micro-batches lose what the formula promises.

    `gain` is the measured ratio to one rank with the whole batch, and `step` is a step
    of the two.
    """
    bubble = find_bubble(step)
    reached = 2 * (1 - bubble)
    longer = reached / gain.value
    lines = [
        "formula:  bubble 20 %, so 2 × 0.80 = 1.60 × as fast",
        f"this run: bubble {100 * bubble:.0f} %, so 2 × {1 - bubble:.2f} "
        f"= {reached:.2f} × as fast",
        f"measured: {gain.value:.2f} × as fast, so actions take {longer:.2f} × as long "
        "as on one rank",
    ]
    return "\n".join(lines)


class NotedStage(PipelineStage):
    """A stage that notes when each of its actions began and ended, without waiting."""

    spans: list[tuple[float, float, str]]

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **more: Any) -> Any:
        """Send a micro-batch forward."""
        begun = time.perf_counter()
        result = super().forward_one_chunk(fwd_chunk_id, *args, **more)
        self.spans.append((begun, time.perf_counter(), f"F{fwd_chunk_id}"))
        return result

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **more: Any) -> Any:
        """Send the gradient of a micro-batch back."""
        begun = time.perf_counter()
        result = super().backward_one_chunk(bwd_chunk_id, *args, **more)
        self.spans.append((begun, time.perf_counter(), f"B{bwd_chunk_id}"))
        return result


def time_pipeline(
    make: Callable[..., Any], size: int, width: int, m: int, steps: int = 9
) -> list[list[tuple[float, float, str]]]:
    """Run GPipe's schedule on this rank; return each step's (begin, end, action)."""
    rank, n = dist.get_rank(), dist.get_world_size()
    net, x, y = make(size, width)
    each = len(net) // n
    part = net[rank * each : (rank + 1) * each]
    stage = NotedStage(part, rank, n, x.device)
    schedule = ScheduleGPipe(stage, m, loss_fn=torch.nn.functional.mse_loss)
    noted = []
    for _ in range(1 + steps):  # the first one also gets ready
        stage.spans = []
        dist.barrier()
        schedule.step(x, target=y)
        noted.append(stage.spans)
    return noted[1:]


def pick_step(runs: Sequence[Sequence[Any]]) -> list[list[Span]]:
    """Return the spans of each rank in the step whose bubble is the median."""
    steps = []
    for noted in zip(*runs, strict=True):
        begun = min(begin for spans in noted for begin, _, _ in spans)
        lanes = []
        for spans in noted:
            lane = []
            for begin, end, action in spans:
                phase = _PHASES[action[0]]
                lane.append(Span(begin - begun, end - begun, phase, action))
            lanes.append(lane)
        steps.append(lanes)
    steps.sort(key=find_bubble)
    return steps[len(steps) // 2]


def count_received() -> int:
    """Return how many bytes this process has received by TCP; only Linux counts them.

    The system's kernel counts them for each open connection: what a message holds, and
    neither addresses nor acknowledgements. Elsewhere it returns 0.
    """
    if sys.platform != "linux":
        return 0
    total = 0
    for connection in psutil.Process().net_connections("tcp"):
        with socket.socket(fileno=os.dup(connection.fd)) as one:
            facts = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
            total += struct.unpack_from("Q", facts, _RECEIVED)[0]
    return total


class _Held:
    """A tensor that a graph keeps; it counts itself for as long as it is kept."""

    def __init__(self, tally: dict[str, int], tensor: torch.Tensor) -> None:
        self.tally, self.tensor = tally, tensor
        tally["now"] += tensor.nbytes
        tally["most"] = max(tally.values())

    def __del__(self) -> None:
        self.tally["now"] -= self.tensor.nbytes


def count_held(run: Callable[..., object], *args: Any) -> int:
    """Call a function; return the most bytes that autograd kept at any moment of it.

    Parameters of the modules among its arguments are not counted. What several
    operations save counts for each of them.
    """
    modules = [each for each in args if isinstance(each, torch.nn.Module)]
    own = {_find(p) for module in modules for p in module.parameters()}
    tally = {"now": 0, "most": 0}

    def pack(tensor: torch.Tensor) -> torch.Tensor | _Held:
        return tensor if _find(tensor) in own else _Held(tally, tensor)

    def unpack(kept: torch.Tensor | _Held) -> torch.Tensor:
        return kept.tensor if isinstance(kept, _Held) else kept

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        run(*args)
    return tally["most"]


def _find(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def read_plan(orders: Mapping[int, Iterable[object]]) -> list[list[str]]:
    """Return the plan of a schedule's `pipeline_order`, without gaps and reductions."""
    plan = []
    for rank in sorted(orders):
        words = [str(action) for action in orders[rank]]
        plan.append([word for word in words if word[1] in _PHASES and "_" not in word])
    return plan
