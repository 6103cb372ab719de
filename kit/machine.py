"""What this machine is, and the device to train on; what is unknown is None."""

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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kit import system
from kit.figures import format_bytes

if TYPE_CHECKING:
    import torch

# Those by which PyTorch's libraries for processors choose their kernels.
_INSTRUCTION_SETS = re.compile(
    r"avx2|avx_vnni|avx512(f|_vnni|_bf16|_fp16)|amx_\w+|asimd(hp)?|i8mm|bf16|sve2?"
)
# The first of these that a processor has tells how fast it computes, and of what.
_CLASSES = {
    "amx_tile": "amx",
    "avx512_bf16": "avx512 bf16",
    "avx512f": "avx512",
    "avx2": "avx2",
    "sve2": "sve2",
    "sve": "sve",
    "bf16": "neon bf16",
    "asimd": "neon",
}


def device() -> torch.device:
    """Return the accelerator of this machine, or the CPU where there is none.

    >>> str(device()).partition(":")[0] in ("cpu", "cuda", "mps", "xpu")
    True
    """
    import torch

    # Without the check it is what this build of PyTorch was made for.
    found = torch.accelerator.current_accelerator(check_available=True)
    return found or torch.device("cpu")


@dataclass(frozen=True, repr=False)
class Machine:
    """What a machine is, for this process.

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

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Machine:
        """Make a machine of what `dataclasses.asdict` returned and JSON kept.

        Facts that another version of the kit knew are left out.

        >>> here = this_machine()
        >>> Machine.from_dict(dataclasses.asdict(here)) == here
        True
        """
        values = {}
        for field in dataclasses.fields(cls):
            value = data.get(field.name)
            if isinstance(value, dict):  # recordings until format 6 kept a reason, too
                value = value["value"]
            values[field.name] = tuple(value) if isinstance(value, list) else value
        return cls(**values)

    def __repr__(self) -> str:
        lines = [self.name]
        for field in dataclasses.fields(self)[1:]:
            label = field.name.removesuffix("_bytes").replace("_", " ")
            lines.append(f"  {label:16} {self._write(field.name)}")
        return "\n".join(lines)

    def _write(self, name: str) -> str:
        value = getattr(self, name)
        if value is None:
            return "unknown"
        if name.endswith("_bytes"):
            return format_bytes(value)
        if isinstance(value, tuple):
            return "; ".join(value) or "none"
        return str(value)


def this_machine() -> Machine:
    """Return what this machine is: the limits that hold here, not the host's.

    >>> this_machine().cores >= 1
    True
    """
    import torch

    processor, instruction_sets = find_processor()
    facts = {
        "processor": processor,
        "cores": find_cores(),
        "instruction_sets": instruction_sets,
        "accelerators": find_accelerators(),
    }
    return Machine(
        name=make_name(**facts),
        **facts,
        memory_bytes=system.find_memory(),
        shared_memory_bytes=find_shared_memory(),
        operating_system=platform.platform(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        threads=torch.get_num_threads(),
        start_method=find_start_method(),
    )


def find_processor() -> tuple[str | None, tuple[str, ...] | None]:
    """Find the processor's model, and those instruction sets that matter to PyTorch."""
    text = system.read_text("/proc/cpuinfo")
    found = {}
    for name in ("model name", "flags", "Features"):
        match = re.search(rf"^{name}[ \t]*:[ \t]*(\S.*?)[ \t]*$", text, re.MULTILINE)
        found[name] = match and match[1]
    model = found["model name"]
    if sys.platform != "linux":
        model = platform.processor() or None
    flags = found["flags"] or found["Features"]
    if flags is None:
        return model, None
    return model, tuple(filter(_INSTRUCTION_SETS.fullmatch, flags.split()))


def find_cores() -> int | None:
    """Count the cores in the affinity mask that the tightest quota leaves."""
    if hasattr(os, "sched_getaffinity"):
        allowed: int | None = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count()
    quota = system.find_quota()
    if quota is None or allowed is None:
        return allowed
    return min(allowed, max(1, int(quota)))


def find_shared_memory() -> int | None:
    """Find the size of /dev/shm, through which loaders' workers send batches."""
    try:
        return shutil.disk_usage("/dev/shm").total
    except OSError:
        return None


def find_accelerators() -> tuple[str, ...] | None:
    """Find the devices that PyTorch can use, without initialising one."""
    import torch

    try:
        kind = torch.accelerator.current_accelerator()
        count = torch.accelerator.device_count() if kind else 0
        named = []
        if count and kind.type == "mps":
            named = [("Apple GPU", torch.mps.recommended_max_memory())]
        elif count:
            named = _name_devices(kind, count)
    except (RuntimeError, AssertionError, AttributeError, OSError):
        return None
    return tuple(f"{name}, {format_bytes(memory)}" for name, memory in named)


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


def find_start_method() -> str:
    """Find how Python starts processes; asking leaves the choice open."""
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


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
