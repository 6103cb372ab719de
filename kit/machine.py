"""What this machine is: each fact with its reason; what is unknown is None."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from kit import figures, system

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
# The first of these environment variables, or else files, that is there tells.
_CONTAINERS = {
    "BINDER_LAUNCH_HOST": "binder",
    "COLAB_RELEASE_TAG": "colab",
    "KUBERNETES_SERVICE_HOST": "kubernetes",
    "run/.containerenv": "podman",
    ".dockerenv": "docker",
}
_ABSENT = {"compiler", "container", "torch"}  # None means none, not unknown

Found = tuple[Any, str]


@dataclass(frozen=True)
class Fact:
    """A value, None where it is unknown, and how it was found."""

    value: Any
    reason: str


@dataclass(frozen=True)
class Accelerator:
    """One device that PyTorch can use beside the processor; memory in bytes."""

    name: str
    memory_bytes: int | None


def find_processor(root: Path) -> Found:
    """Find the processor's model."""
    if sys.platform != "linux":
        return platform.processor() or None, "platform.processor()"
    model = _search(root, "proc/cpuinfo", r"model name[ \t]*:[ \t]*(\S.*?)")
    return model, f"{'the' if model else 'no'} model name in /proc/cpuinfo"


def find_instruction_sets(root: Path) -> Found:
    """Find those of the processor's instruction sets that matter to PyTorch."""
    flags = _search(root, "proc/cpuinfo", r"(?:flags|Features)[ \t]*:[ \t]*(\S.*?)")
    if flags is None:
        return None, "no flags in /proc/cpuinfo"
    has = tuple(flag for flag in flags.split() if _INSTRUCTION_SETS.fullmatch(flag))
    return has, "those of the flags in /proc/cpuinfo that matter to PyTorch"


def find_accelerators(root: Path) -> Found:
    """Find the devices that PyTorch can use, without taking memory on them."""
    # Counting does not initialise CUDA. Asking for names does, but without a context,
    # which would take memory; a process forked afterwards cannot use CUDA.
    import torch

    try:
        kind = torch.accelerator.current_accelerator()
        if kind is None:
            return (), "this build of PyTorch supports none"
        count = torch.accelerator.device_count()
        if kind.type == "mps":
            found = [Accelerator("Apple GPU", torch.mps.recommended_max_memory())]
        else:
            module = torch.get_device_module(kind)
            devices = [module.get_device_properties(i) for i in range(count)]
            found = [Accelerator(d.name, d.total_memory) for d in devices]
    except (RuntimeError, AssertionError, AttributeError) as error:
        return None, f"PyTorch cannot tell: {error}".splitlines()[0]
    reason = f"torch.{kind.type} finds {count}"
    if count:
        reason += "; asking initialises it in this process and makes no context"
    return tuple(found[:count]), reason


def find_cores(root: Path) -> Found:
    """Count the cores in the affinity mask that the tightest quota leaves."""
    allowed, reason = _count_allowed_cores()
    quota = system.find_quota(root)
    if allowed is None:
        return None, "the system does not tell"
    if quota is None:
        return allowed, f"{allowed} {reason}; no control group sets a quota"
    cores = min(allowed, max(1, int(quota[0])))
    return cores, f"{allowed} {reason}; a quota of {quota[0]:.3g} cores in {quota[1]}"


def find_shared_memory(root: Path) -> Found:
    """Find the size of /dev/shm, through which loaders' workers send batches."""
    try:
        return psutil.disk_usage(str(root / "dev/shm")).total, "the size of /dev/shm"
    except OSError:
        return None, "there is no /dev/shm"


def _count_allowed_cores() -> Found:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)), "in this process's affinity mask"
    return os.cpu_count(), "by os.cpu_count(): this system has no affinity mask"


def find_operating_system(root: Path) -> Found:
    """Find the system's name and the kernel's version."""
    if sys.platform != "linux":
        return platform.platform(terse=True) or None, "platform.platform()"
    kernel = f"Linux {platform.release()}"
    name = _search(root, "etc/os-release", r'PRETTY_NAME="?(.+?)"?')
    if name is None:
        return kernel, "platform.release()"
    return f"{name}, {kernel}", "/etc/os-release, platform.release()"


def find_python(root: Path) -> Found:
    """Find Python's version."""
    return platform.python_version(), "platform.python_version()"


def find_torch(root: Path) -> Found:
    """Find PyTorch's version; raise ImportError or OSError where it cannot load."""
    import torch

    return str(torch.__version__), "torch.__version__"


def find_threads(root: Path) -> Found:
    """Find how many threads PyTorch computes with in this thread."""
    import torch

    return torch.get_num_threads(), "torch.get_num_threads()"


def find_compiler(root: Path) -> Found:
    """Find the compiler that torch.compile would take."""
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    command = os.environ.get("CXX") or usual
    path = shutil.which((shlex.split(command) or [usual])[0])
    found = "found" if path else "not found: no torch.compile for the processor"
    return path, f"{command}, which torch.compile looks for, is {found}"


def find_run_queue_delay(root: Path) -> Found:
    """Find whether the system tells how long a thread has waited for a core."""
    file = "/proc/thread-self/schedstat"
    numbers = system.read_text(root, file).split()
    if len(numbers) != 3:
        return False, f"{file} cannot be read"
    if set(numbers) == {"0"}:
        return False, f"the kernel keeps no times in {file}"
    return True, f"the second number in {file}"


def find_start_method(root: Path) -> Found:
    """Find how Python starts processes; asking leaves the choice open."""
    chosen = multiprocessing.get_start_method(allow_none=True)
    if chosen:
        return chosen, "multiprocessing.set_start_method()"
    default = multiprocessing.get_all_start_methods()[0]
    return default, f"the default of Python {platform.python_version()}"


def find_container(root: Path) -> Found:
    """Find what kind of container this is, if it is one."""
    for sign, name in _CONTAINERS.items():
        if sign in os.environ:
            return name, f"${sign} is set"
        if "." in sign and os.path.exists(root / sign):
            return name, f"/{sign} is there"
    return None, "no sign of one"


def find_name(
    accelerators: tuple[Accelerator, ...] | None,
    processor: str | None,
    cores: int | None,
    instruction_sets: tuple[str, ...] | None,
) -> tuple[str, str]:
    """Name a machine by what decides its speed, fit for a file."""
    if accelerators:
        count = f"{len(accelerators)} " if len(accelerators) > 1 else ""
        words, reason = f"{count}{accelerators[0].name}", "its accelerators"
    else:
        noise = r"(?i)\((R|TM)\)|\bCPU\b|@.*|\bProcessor\b|\d+-Core"
        words = re.sub(noise, " ", processor or platform.machine())
        reason = "its processor"
        if cores:
            words += f" {cores} core{'s' * (cores > 1)}"
            reason += ", the cores that may be used"
        has = instruction_sets or ()
        if best := next((c for flag, c in _CLASSES.items() if flag in has), ""):
            words += f" {best}"
            reason += ", the best of its instruction sets"
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-"), reason


def _by(find: Callable[[Path], Found]) -> Any:
    """Say of a fact how it is found."""
    return field(metadata={"find": find})


@dataclass(frozen=True, repr=False)
class Machine:
    """What a machine is; `why` gives each fact's reason. Memory is in bytes.

    `cores` is what this process may use, a control group's quota rounded down to a
    whole core, at least 1. `threads` is PyTorch's own number in the asking thread.
    """

    name: str
    processor: str | None = _by(find_processor)
    cores: int | None = _by(find_cores)
    memory_bytes: int | None = _by(system.find_memory)
    shared_memory_bytes: int | None = _by(find_shared_memory)
    instruction_sets: tuple[str, ...] | None = _by(find_instruction_sets)
    accelerators: tuple[Accelerator, ...] | None = _by(find_accelerators)
    operating_system: str | None = _by(find_operating_system)
    python: str = _by(find_python)
    torch: str | None = _by(find_torch)
    threads: int | None = _by(find_threads)
    compiler: str | None = _by(find_compiler)
    reads_run_queue_delay: bool = _by(find_run_queue_delay)
    start_method: str = _by(find_start_method)
    container: str | None = _by(find_container)
    reasons: Mapping[str, str] = field(compare=False)

    @property
    def facts(self) -> dict[str, Fact]:
        """Return every fact by its name."""
        names = [f.name for f in dataclasses.fields(self) if f.name != "reasons"]
        return {name: Fact(getattr(self, name), self.reasons[name]) for name in names}

    def why(self, name: str) -> str:
        """Return how a fact was found; raise ValueError where there is no such fact."""
        if name not in self.reasons:
            raise ValueError(f"no fact is called {name!r}; there are {[*self.facts]}")
        return self.reasons[name]

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return the facts as JSON can hold them."""
        return {name: dataclasses.asdict(fact) for name, fact in self.facts.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Machine:
        """Make a machine of what `to_dict` returned, and JSON kept.

        >>> here = this_machine()
        >>> Machine.from_dict(here.to_dict()) == here
        True
        """
        values = {name: fact["value"] for name, fact in data.items()}
        if values["instruction_sets"] is not None:
            values["instruction_sets"] = tuple(values["instruction_sets"])
        if values["accelerators"] is not None:
            found = (Accelerator(**device) for device in values["accelerators"])
            values["accelerators"] = tuple(found)
        return cls(**values, reasons={name: data[name]["reason"] for name in data})

    def __repr__(self) -> str:
        rows = [(label, f"{value}  ({why})") for label, value, why in self._rows()]
        return f"{self.name}\n{figures.text_table(['', ''], rows).lstrip()}"

    def _repr_html_(self) -> str:
        return figures.html_card(f"This machine: {self.name}", self._rows())

    def _rows(self) -> list[tuple[str, str, str]]:
        rows = []
        for name, fact in [*self.facts.items()][1:]:
            label = name.removesuffix("_bytes").replace("_", " ")
            rows.append((label, _write(name, fact.value), fact.reason))
        return rows


def this_machine(*, root: Path = Path("/")) -> Machine:
    """Return what this machine is: the limits that hold here, not the host's.

    Files are read below `root`, so that a test can pretend. One that cannot be read
    makes its facts None; it is never an error.

    >>> this_machine().cores >= 1
    True
    """
    values: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for fact in dataclasses.fields(Machine):
        if find := fact.metadata.get("find"):
            try:
                values[fact.name], reasons[fact.name] = find(root)
            except (ImportError, OSError) as error:  # OSError: a library is missing
                values[fact.name] = None
                reasons[fact.name] = f"PyTorch cannot be imported: {error}"
    parts = ("accelerators", "processor", "cores", "instruction_sets")
    values["name"], reasons["name"] = find_name(*map(values.get, parts))
    return Machine(**values, reasons=reasons)


def _search(root: Path, path: str, pattern: str) -> str | None:
    """Return what the pattern's group finds on the first line that it matches."""
    found = re.search(f"^{pattern}$", system.read_text(root, path), re.MULTILINE)
    return found[1].strip() if found else None


def _write(name: str, value: Any) -> str:
    if value is None:
        return "none" if name in _ABSENT else "unknown"
    if name.endswith("_bytes"):
        return figures.format_bytes(value)
    if name == "accelerators":
        value = [f"{d.name}, {figures.format_bytes(d.memory_bytes)}" for d in value]
        return "; ".join(value) or "none"
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
