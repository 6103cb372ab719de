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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import psutil
import torch
from matplotlib.figure import Figure

from kit.figures import Span, draw_timeline

Plan = Sequence[Sequence[str]]
_PHASES = {"F": "forward", "B": "backward", "I": "backward", "W": ""}
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


def draw_plans(plans: Mapping[str, Plan]) -> Figure:
    """Draw named plans above each other, and say in the title what each leaves idle.

    A rank's ways forward take 80 ms for the whole batch and its ways back 160 ms, half
    of that for the input. They are divided among micro-batches and the rank's stages.
    """
    lanes, idle = {}, []
    for name, plan in plans.items():
        actions = {action for order in plan for action in order if action[1] == "F"}
        turn = 0.08 * len(plan) / len(actions)
        found = simulate(plan, {"F": turn, "B": 2 * turn, "I": turn, "W": turn})
        idle.append(f"{name} {100 * find_bubble(found):.0f} %")
        lanes |= {f"{name}, rank {rank}": lane for rank, lane in enumerate(found)}
    return draw_timeline(lanes, title=f"Planned bubble: {', '.join(idle)}")


def draw_run(plan: Plan, runs: Sequence[Sequence[Any]]) -> Figure:
    """Draw what ranks did above what they had planned, over one time axis.

    `runs` has (begin, end, action) for each action of each rank. The plan's actions
    take as long as those of the run do in the mean.
    """
    begun = min(begin for run in runs for begin, *_ in run)
    done: list[list[Span]] = []
    seconds: dict[str, list[float]] = {}
    for run in runs:
        lane = []
        for begin, end, action in run:
            kind = action[1]
            lane.append(Span(begin - begun, end - begun, _PHASES[kind], action[1:]))
            seconds.setdefault(kind, []).append(end - begin)
        done.append(lane)
    means = {kind: statistics.mean(times) for kind, times in seconds.items()}
    planned = simulate(plan, means)
    lanes = {f"planned, rank {rank}": lane for rank, lane in enumerate(planned)}
    lanes |= {f"run, rank {rank}": lane for rank, lane in enumerate(done)}
    title = f"Bubble: planned {100 * find_bubble(planned):.0f} %, in the run"
    return draw_timeline(lanes, title=f"{title} {100 * find_bubble(done):.0f} %")


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
