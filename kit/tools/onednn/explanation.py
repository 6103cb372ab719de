"""Which code computed a function on the CPU, oneDNN's or PyTorch's own, and why."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kit.diagnosis import trace
from kit.figures import html_table, text_table
from kit.tools.onednn.log import Kernel, record_kernels, refuse_without
from kit.tools.onednn.names import TYPES

#: Operations of PyTorch's, and primitives of oneDNN's, that do the same.
_PRODUCTS = {"mm", "bmm", "mv", "dot", "linear", "matmul", "addmm", "addmv", "baddbmm"}
_PRODUCTS |= {"inner_product", "gemm", "_scaled_mm", "_int_mm"}
_RECURRENT = {"lstm", "gru", "rnn", "mkldnn_rnn_layer"}
#: Operations that compute nothing.
_STILL = re.compile(
    r"empty|as_strided|view|reshape|^t$|transpose|expand|select|slice|resize|detach"
    r"|unsqueeze|squeeze|permute|resolve_|_has_|_nnpack|alias|narrow|unbind|lift"
)


@dataclass(frozen=True)
class Line:
    """One line of an explanation: what was computed, by which code, and why by that.

    `seconds` are those of all `count` times.
    """

    primitive: str
    implementation: str
    types: str
    count: int
    seconds: float
    reason: str


@dataclass(frozen=True, repr=False)
class Explanation:
    """What code ran for a function: oneDNN's kernels first, then PyTorch's own code."""

    kernels: tuple[Line, ...]
    others: tuple[Line, ...]
    title: str

    @property
    def lines(self) -> tuple[Line, ...]:
        """All lines, those of oneDNN first."""
        return self.kernels + self.others

    def _table(self) -> tuple[list[str], list[list[object]]]:
        head = ["what", "code", "types", "times", "share", "why"]
        whole = sum(line.seconds for line in self.lines) or 1
        rows = [
            [
                *(line.primitive, line.implementation, line.types, line.count),
                *(f"{100 * line.seconds / whole:.0f} %", line.reason),
            ]
            for line in self.lines
        ]
        return head, rows

    def __repr__(self) -> str:
        return "\n".join([self.title, *[text_table(*self._table())] * bool(self.lines)])

    def _repr_html_(self) -> str:
        return html_table(*self._table(), title=self.title)


def explain_kernels(function: Callable[[], Any]) -> Explanation:
    """Run a function twice, and say which code computed it on the CPU, and why.

    The first time is to warm up: kernels that are made at run time are made then. Times
    are those of the second. PyTorch's profiler tells what ran without oneDNN. A reason
    that cannot be known is "unknown". Raises ExperimentError where PyTorch is built
    without oneDNN or a profiler is at work already, and what the function raises.

    >>> import torch
    >>> explain_kernels(torch.ones(3, 3).exp).title
    'oneDNN was not called: PyTorch has loops of its own for exp, in any type'
    """
    caller = "explain_kernels"
    refuse_without(caller)
    trace.refuse_second_profiler(f"{caller}()")
    function()
    with trace.profiling(shapes=True, caller=f"{caller}()") as raw:
        kernels = record_kernels(function)
    events = [e for e in raw if str(e.device_type()).endswith("CPU")]
    ours = _gather_kernels(kernels)
    known = {(_kind_of(k.primitive), _main_type(k.types)) for k in kernels}
    theirs, rest = _gather_operations(events, known)
    title = _write_title(ours, theirs, rest, on_device=len(events) < len(raw))
    return Explanation(ours, theirs + rest, title)


def _main_type(types: str) -> str:
    """Return the type of what goes in."""
    return types.partition(",")[0].rpartition(" ")[2]


def _gather_kernels(kernels: Iterable[Kernel]) -> tuple[Line, ...]:
    """Make a line of each distinct kernel, that with the most time first."""
    groups = defaultdict(list)
    for k in kernels:
        groups[k.primitive, k.implementation, k.types, k.reason].append(k.seconds)
    lines = [
        Line(*names, len(seconds), sum(seconds), reason)
        for (*names, reason), seconds in groups.items()
    ]
    return tuple(sorted(lines, key=lambda line: -line.seconds))


def _gather_operations(
    events: list[Any], known: set[tuple[str, str]]
) -> tuple[tuple[Line, ...], tuple[Line, ...]]:
    """Make lines of what PyTorch computed without oneDNN, and one of everything else.

    `known` are kinds and types that oneDNN has computed.
    """
    operations = [e for e in events if e.name().startswith("aten::")]
    heavy = _innermost([e for e in operations if _kind_of(_short(e))])
    groups = defaultdict(list)
    for event in heavy:
        found = _short(event), _kind_of(_short(event)), _type_of(event)
        if found[1:] not in known:
            groups[found].append(event.duration_ns() / 1e9)
    lines = [
        Line(kind, name, types, len(times), sum(times), explain_absence(kind, types))
        for (name, kind, types), times in groups.items()
    ]
    # Of everything else, what was called first: "softmax", not what that calls.
    rest = _outermost(
        [
            e
            for e in operations
            if not _STILL.search(_short(e))
            and not any(_is_in(e, h) or _is_in(h, e) for h in heavy)
        ]
    )
    seconds: Counter[str] = Counter()
    for event in rest:
        seconds[_short(event)] += event.duration_ns() / 1e9
    if not rest:
        return tuple(sorted(lines, key=lambda line: -line.seconds)), ()
    most = [name for name, _ in seconds.most_common(3)]
    names = ", ".join(most) + " …" * (len(seconds) > 3)
    types = ", ".join(sorted({_type_of(e) for e in rest} - {""}))
    reason = "PyTorch's own loops: it asks oneDNN for none of these, in any type"
    other = Line("the rest", names, types, len(rest), sum(seconds.values()), reason)
    return tuple(sorted(lines, key=lambda line: -line.seconds)), (other,)


def _short(event: Any) -> str:
    return str(event.name()).removeprefix("aten::")


def _kind_of(name: str) -> str:
    """Return what an operation or a primitive computes; nothing if it is cheap."""
    if "conv" in name:
        return "convolution"
    if name in _RECURRENT:
        return "recurrent layer"
    return "matrix product" if name.removeprefix("mkldnn_") in _PRODUCTS else ""


def _type_of(event: Any) -> str:
    """Return the type of an operation's first tensor."""
    return next((TYPES[t] for t in event.dtypes() if t in TYPES), "")


def _is_in(inner: Any, outer: Any) -> bool:
    begun, end = outer.start_ns(), outer.start_ns() + outer.duration_ns()
    same_thread = inner.start_thread_id() == outer.start_thread_id()
    return bool(same_thread and begun <= inner.start_ns() <= end)


def _innermost(events: list[Any]) -> list[Any]:
    """Return the events that contain no other one of them."""
    events = _sort(events)
    return [
        event
        for event, other in itertools.zip_longest(events, events[1:])
        if other is None or not _is_in(other, event)
    ]


def _outermost(events: list[Any]) -> list[Any]:
    """Return the events that no other one of them contains."""
    found: list[Any] = []
    for event in _sort(events):
        if not found or not _is_in(event, found[-1]):
            found.append(event)
    return found


def _sort(events: list[Any]) -> list[Any]:
    """Sort events so that what lies within one comes right after it."""
    return sorted(
        events, key=lambda e: (e.start_thread_id(), e.start_ns(), -e.duration_ns())
    )


def explain_absence(kind: str, types: str) -> str:
    """Say why PyTorch did not ask oneDNN for this kind of operation in this type.

    >>> explain_absence("convolution", "float64")
    'oneDNN has no float64 on a CPU, so PyTorch falls back to code of its own'
    """
    import torch

    own = "so PyTorch falls back to code of its own"
    if kind == "matrix product" and types in ("float32", "float64"):
        mkl = torch.backends.mkl.is_available()
        whose = "Intel's MKL" if mkl else "the BLAS library that it is built with"
        return f"PyTorch asks {whose} for these"
    if not torch.backends.mkldnn.enabled:
        return f"oneDNN is switched off (torch.backends.mkldnn.enabled), {own}"
    if types == "float64":
        return f"oneDNN has no float64 on a CPU, {own}"
    if types in ("bfloat16", "float16") and _can_do(types) is False:
        return f"this processor lacks the instructions for {types}, {own}"
    return "PyTorch took code of its own, and why is unknown"


def _can_do(types: str) -> bool | None:
    """Return whether PyTorch would give this type to oneDNN here; None: unknown."""
    import torch

    name = {"bfloat16": "bf16", "float16": "fp16"}[types]
    with contextlib.suppress(AttributeError, RuntimeError):
        # What PyTorch's own compiler asks before it makes use of oneDNN.
        return bool(getattr(torch.ops.mkldnn, f"_is_mkldnn_{name}_supported")())
    return None


def _write_title(
    ours: tuple[Line, ...],
    theirs: tuple[Line, ...],
    rest: tuple[Line, ...],
    *,
    on_device: bool,
) -> str:
    if ours:
        whole = sum(line.seconds for line in (*ours, *theirs, *rest)) or 1
        first, share = ours[0], 100 * ours[0].seconds / whole
        return (
            f"{share:.0f} % of the time is {first.primitive} in {first.types} by "
            f"oneDNN's {first.implementation}: {first.reason}"
        )
    if theirs:
        first = theirs[0]
        return f"oneDNN was not called for {first.primitive}s: {first.reason}"
    if on_device:
        return "oneDNN was not called: this ran on an accelerator, and it is for CPUs"
    if rest:
        names = rest[0].implementation
        own = f"PyTorch has loops of its own for {names}, in any type"
        return f"oneDNN was not called: {own}"
    return "oneDNN was not called, and PyTorch computed nothing on the CPU"
