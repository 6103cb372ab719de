"""What this machine is: each fact with its reason; what is unknown is None."""

from __future__ import annotations

import dataclasses
import functools
import json
import multiprocessing
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kit import figures, system

# Those by which PyTorch's libraries for processors choose their kernels.
_INSTRUCTION_SETS = re.compile(
    r"avx2|avx_vnni|avx512(f|_vnni|_bf16|_fp16)|amx_\w+|asimd(hp)?|i8mm|bf16|sve2?"
)
# The first of these that a processor has tells how fast it computes, and of what.
_CLASSES = {"amx_tile": "amx", "avx512_bf16": "avx512 bf16", "avx512f": "avx512"}
_CLASSES |= {"avx2": "avx2", "sve2": "sve2", "sve": "sve"}
_CLASSES |= {"bf16": "neon bf16", "asimd": "neon"}

#: A value, None where it is unknown, and where it was looked for.
Found = tuple[Any, str]


@dataclass(frozen=True, repr=False)
class Machine:
    """What a machine is; `reasons` says of each fact where it was looked for.

    Memory is in bytes. `cores` is what this process may use, a control group's quota
    rounded down to a whole core, at least 1. `accelerators` are the devices that
    PyTorch can use, each with its memory: "NVIDIA H200, 150 GB". `threads` is PyTorch's
    own number in the asking thread.
    """

    name: str
    processor: str | None
    cores: int | None
    memory_bytes: int
    shared_memory_bytes: int | None
    instruction_sets: tuple[str, ...] | None
    accelerators: tuple[str, ...] | None
    operating_system: str
    python: str
    torch: str
    threads: int
    start_method: str
    reasons: Mapping[str, str] = field(compare=False)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return each fact's value and reason, as JSON can hold them."""
        reasons = self.reasons.items()
        return {n: {"value": getattr(self, n), "reason": why} for n, why in reasons}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Machine:
        """Make a machine of what `to_dict` returned and JSON kept.

        Facts that another version of the kit knew are left out.

        >>> here = this_machine()
        >>> Machine.from_dict(here.to_dict()) == here
        True
        """
        names = [f.name for f in dataclasses.fields(cls) if f.name in data]
        values = {name: data[name]["value"] for name in names}
        for name in ("instruction_sets", "accelerators"):
            values[name] = None if values[name] is None else tuple(values[name])
        return cls(**values, reasons={name: data[name]["reason"] for name in names})

    def __repr__(self) -> str:
        rows = [f"{name:18} {value}  ({why})" for name, value, why in self._rows()]
        return "\n".join([self.name, *rows])

    def _repr_html_(self) -> str:
        return figures.html_card(f"This machine: {self.name}", self._rows())

    def _rows(self) -> list[tuple[str, str, str]]:
        rows = []
        for name, reason in [*self.reasons.items()][1:]:  # the name is the headline
            label = name.removesuffix("_bytes").replace("_", " ")
            rows.append((label, _write(name, getattr(self, name)), reason))
        return rows


def this_machine(*, root: Path = Path("/")) -> Machine:
    """Return what this machine is: the limits that hold here, not the host's.

    Files are read below `root`, so that a test can pretend. One that cannot be read
    makes its facts None; it is never an error.

    >>> this_machine().cores >= 1
    True
    """
    import torch

    found: dict[str, Found] = {
        "processor": find_processor(root),
        "cores": find_cores(root),
        "memory_bytes": system.find_memory(root),
        "shared_memory_bytes": find_shared_memory(root),
        "instruction_sets": find_instruction_sets(root),
        "accelerators": find_accelerators(),
        "operating_system": (platform.platform(), "platform.platform()"),
        "python": (platform.python_version(), "platform.python_version()"),
        "torch": (str(torch.__version__), "torch.__version__"),
        "threads": (torch.get_num_threads(), "torch.get_num_threads()"),
        "start_method": find_start_method(),
    }
    values = {name: value for name, (value, _) in found.items()}
    reasons = {name: reason for name, (_, reason) in found.items()}
    parts = ("accelerators", "processor", "cores", "instruction_sets")
    name = make_name(*(values[part] for part in parts))
    return Machine(name, **values, reasons={"name": "what decides its speed"} | reasons)


def find_processor(root: Path) -> Found:
    """Find the processor's model."""
    if sys.platform != "linux":
        return platform.processor() or None, "platform.processor()"
    return _search(root, "model name")


def find_cores(root: Path) -> Found:
    """Count the cores in the affinity mask that the tightest quota leaves."""
    allowed, reason = _count_allowed_cores()
    quota = system.find_quota(root)
    if quota is None or allowed is None:
        return allowed, f"{reason}; no control group sets a quota"
    cores = min(allowed, max(1, int(quota[0])))
    return cores, f"{allowed} {reason}; a quota of {quota[0]:.3g} cores in {quota[1]}"


def _count_allowed_cores() -> Found:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)), "in this process's affinity mask"
    return os.cpu_count(), "by os.cpu_count(): this system has no affinity mask"


def find_shared_memory(root: Path) -> Found:
    """Find the size of /dev/shm, through which loaders' workers send batches."""
    try:
        return shutil.disk_usage(root / "dev/shm").total, "the size of /dev/shm"
    except OSError:
        return None, "there is no /dev/shm"


def find_instruction_sets(root: Path) -> Found:
    """Find those of the processor's instruction sets that matter to PyTorch."""
    flags, reason = _search(root, "(?:flags|Features)")
    has = flags and tuple(filter(_INSTRUCTION_SETS.fullmatch, flags.split()))
    return has, f"{reason}: those that matter to PyTorch"


def find_accelerators() -> Found:
    """Find the devices that PyTorch can use, without initialising one."""
    import torch

    try:
        kind = torch.accelerator.current_accelerator()
        count = torch.accelerator.device_count() if kind else 0
        told = []
        if count and kind.type == "mps":
            told = [("Apple GPU", torch.mps.recommended_max_memory())]
        elif count:
            told = _name_devices(kind, count)
    except (RuntimeError, AssertionError, AttributeError, OSError) as error:
        return None, f"PyTorch cannot tell: {error}".splitlines()[0]
    found = tuple(f"{name}, {figures.format_bytes(memory)}" for name, memory in told)
    return found, "torch.accelerator"


def _name_devices(kind: Any, count: int) -> list[tuple[str, int]]:
    """Return name and memory of each device.

    PyTorch would initialise CUDA for that, and a process that is forked afterwards
    could not use it. So while it is not initialised, a process of its own asks.
    """
    import torch

    module = torch.get_device_module(kind)
    if kind.type != "cuda" or module.is_initialized():
        ask = module.get_device_properties
        return [(ask(i).name, ask(i).total_memory) for i in range(count)]
    return _ask_in_another_process(count)


@functools.cache
def _ask_in_another_process(count: int) -> list[tuple[str, int]]:
    """Ask PyTorch for names and memory in a process that ends with the answer."""
    code = (
        "import json, torch\n"
        "ask = torch.cuda.get_device_properties\n"
        f"found = [(ask(i).name, ask(i).total_memory) for i in range({count})]\n"
        "print(json.dumps(found))"
    )
    command = [sys.executable, "-c", code]
    try:
        answer = subprocess.check_output(command, text=True, timeout=60)
    except subprocess.SubprocessError as error:
        raise RuntimeError(f"asking for their names failed: {error}") from error
    return [(name, memory) for name, memory in json.loads(answer)]


def find_start_method() -> Found:
    """Find how Python starts processes; asking leaves the choice open."""
    chosen = multiprocessing.get_start_method(allow_none=True)
    default = multiprocessing.get_all_start_methods()[0]
    return chosen or default, f"as chosen, or the default, which is {default}"


def make_name(
    accelerators: tuple[str, ...] | None,
    processor: str | None,
    cores: int | None,
    instruction_sets: tuple[str, ...] | None,
) -> str:
    """Name a machine by what decides its speed, fit for a file."""
    if accelerators:
        words = accelerators[0].partition(",")[0]
        words = f"{len(accelerators)} {words}" if len(accelerators) > 1 else words
    else:
        noise = r"(?i)\((R|TM)\)|\bCPU\b|@.*|\bProcessor\b|\d+-Core"
        words = re.sub(noise, " ", processor or platform.machine())
        words += f" {cores} core{'s' * (cores > 1)} " if cores else " "
        has = instruction_sets or ()
        words += next((name for flag, name in _CLASSES.items() if flag in has), "")
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def _search(root: Path, name: str) -> Found:
    """Find what /proc/cpuinfo says under a name, of the first processor."""
    text = system.read_text(root, "proc/cpuinfo")
    found = re.search(rf"^{name}[ \t]*:[ \t]*(\S.*?)[ \t]*$", text, re.MULTILINE)
    return found and found[1], "/proc/cpuinfo"


def _write(name: str, value: Any) -> str:
    if value is None:
        return "unknown"
    if name.endswith("_bytes"):
        return figures.format_bytes(value)
    return ("; ".join(value) or "none") if isinstance(value, tuple) else str(value)
