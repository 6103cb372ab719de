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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kit import figures
from kit.machine import limits
from kit.machine.limits import read_text

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
# What tells machines apart and stays as it is while a session lasts.


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


@dataclass(frozen=True, repr=False)
class Machine:
    """What a machine is; `why` gives each fact's reason. Memory is in bytes.

    `cores` is what this process may use, a control group's quota rounded down to a
    whole core, at least 1. `threads` is PyTorch's own number in the asking thread.
    """

    name: str
    processor: str | None
    cores: int | None
    memory_bytes: int | None
    shared_memory_bytes: int | None
    instruction_sets: tuple[str, ...] | None
    accelerators: tuple[Accelerator, ...] | None
    operating_system: str | None
    python: str
    torch: str | None
    threads: int | None
    compiler: str | None
    reads_run_queue_delay: bool
    start_method: str
    container: str | None
    reasons: Mapping[str, str] = field(compare=False)

    @property
    def facts(self) -> dict[str, Fact]:
        """Return every fact by its name."""
        return {name: Fact(getattr(self, name), self.reasons[name]) for name in _NAMES}

    def why(self, name: str) -> str:
        """Return how a fact was found; raise ValueError where there is no such fact."""
        if name not in self.reasons:
            raise ValueError(f"no fact is called {name!r}; there are {list(_NAMES)}")
        return self.reasons[name]

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return the facts as JSON can hold them."""
        return {name: dataclasses.asdict(fact) for name, fact in self.facts.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Machine:
        """Make a machine of JSON; ValueError names a field missing or unknown.

        >>> here = this_machine()
        >>> Machine.from_dict(here.to_dict()) == here
        True
        """
        _check_fields("machine", data, _NAMES)
        facts = {
            name: _check_fields(f"machine.{name}", data[name], ("value", "reason"))
            for name in _NAMES
        }
        values = {name: fact["value"] for name, fact in facts.items()}
        if (sets := values["instruction_sets"]) is not None:
            values["instruction_sets"] = tuple(sets)
        if (found := values["accelerators"]) is not None:
            fields, where = ("name", "memory_bytes"), "machine.accelerators"
            found = [Accelerator(**_check_fields(where, x, fields)) for x in found]
            values["accelerators"] = tuple(found)
        return cls(**values, reasons={n: fact["reason"] for n, fact in facts.items()})

    def __repr__(self) -> str:
        rows = [(label, f"{value}  ({why})") for label, value, why in self._rows()]
        return f"{self.name}\n{figures.text_table(['', ''], rows).lstrip()}"

    def _repr_html_(self) -> str:
        return figures.html_card(f"This machine: {self.name}", self._rows())

    def _rows(self) -> list[tuple[str, str, str]]:
        rows = []
        for name, fact in list(self.facts.items())[1:]:
            label = name.removesuffix("_bytes").replace("_", " ")
            rows.append((label, _write(name, fact), fact.reason))
        return rows


_NAMES = tuple(f.name for f in dataclasses.fields(Machine) if f.name != "reasons")


def this_machine(*, root: Path = Path("/")) -> Machine:
    """Return what this machine is: the limits that hold here, not the host's.

    Files are read below `root`, so that a test can pretend. One that cannot be read
    makes its facts None; it is never an error.

    >>> this_machine().cores >= 1
    True
    """
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a shared library is missing
        reason = f"PyTorch cannot be imported: {error}"
        version = threads = accelerators = Fact(None, reason)
    else:
        version = Fact(str(torch.__version__), "torch.__version__")
        threads = Fact(torch.get_num_threads(), "torch.get_num_threads()")
        accelerators = _accelerators(torch)
    facts = {
        "processor": _processor(root),
        "cores": Fact(*limits.find_cores(root)),
        "memory_bytes": Fact(*limits.find_memory(root)),
        "shared_memory_bytes": Fact(*limits.find_shared_memory(root)),
        "instruction_sets": _instruction_sets(root),
        "accelerators": accelerators,
        "operating_system": _operating_system(root),
        "python": Fact(platform.python_version(), "platform.python_version()"),
        "torch": version,
        "threads": threads,
        "compiler": _compiler(),
        "reads_run_queue_delay": _run_queue_delay(root),
        "start_method": _start_method(),
        "container": _container(root),
    }
    parts = ("accelerators", "processor", "cores", "instruction_sets")
    facts["name"] = _name(*(facts[part] for part in parts))
    values = {name: fact.value for name, fact in facts.items()}
    return Machine(**values, reasons={name: facts[name].reason for name in _NAMES})


def _from_cpuinfo(root: Path, *keys: str) -> str | None:
    for line in read_text(root, "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in keys and value.strip():
            return value.strip()
    return None


def _processor(root: Path) -> Fact:
    if sys.platform != "linux":
        return Fact(platform.processor() or None, "platform.processor()")
    model = _from_cpuinfo(root, "model name")
    found = "the model name" if model else "no model name"
    return Fact(model, f"{found} in /proc/cpuinfo")


def _instruction_sets(root: Path) -> Fact:
    flags = _from_cpuinfo(root, "flags", "Features")
    if flags is None:
        return Fact(None, "no flags in /proc/cpuinfo")
    has = tuple(flag for flag in flags.split() if _INSTRUCTION_SETS.fullmatch(flag))
    return Fact(has, "those of the flags in /proc/cpuinfo that matter to PyTorch")


def _accelerators(torch: Any) -> Fact:
    # Counting does not initialise CUDA. Asking for names does, but without a context,
    # which would take memory; a process forked afterwards cannot use CUDA.
    try:
        kind = torch.accelerator.current_accelerator()
        if kind is None:
            return Fact((), "this build of PyTorch supports none")
        count = torch.accelerator.device_count()
        module = torch.get_device_module(kind)
        if kind.type == "mps":
            found = [Accelerator("Apple GPU", torch.mps.recommended_max_memory())]
        else:
            devices = [module.get_device_properties(i) for i in range(count)]
            found = [Accelerator(d.name, d.total_memory) for d in devices]
    except (RuntimeError, AssertionError, AttributeError) as error:
        return Fact(None, f"PyTorch cannot tell: {error}".splitlines()[0])
    reason = f"torch.{kind.type} finds {count}"
    if count:
        reason += "; asking initialises it in this process and makes no context"
    return Fact(tuple(found[:count]), reason)


def _operating_system(root: Path) -> Fact:
    if sys.platform != "linux":
        return Fact(platform.platform(terse=True) or None, "platform.platform()")
    kernel = f"Linux {platform.release()}"
    release = read_text(root, "etc/os-release")
    name = re.search(r'^PRETTY_NAME="?(.+?)"?$', release, re.MULTILINE)
    if name is None:
        return Fact(kernel, "platform.release()")
    return Fact(f"{name[1]}, {kernel}", "/etc/os-release, platform.release()")


def _compiler() -> Fact:
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    command = os.environ.get("CXX") or usual
    path = shutil.which((shlex.split(command) or [usual])[0])
    found = "found" if path else "not found: no torch.compile for the processor"
    return Fact(path, f"{command}, which torch.compile looks for, is {found}")


def _run_queue_delay(root: Path) -> Fact:
    file = "/proc/thread-self/schedstat"
    numbers = read_text(root, file).split()
    if len(numbers) != 3:
        return Fact(False, f"{file} cannot be read")
    if set(numbers) == {"0"}:
        return Fact(False, f"the kernel keeps no times in {file}")
    return Fact(True, f"the second number in {file}")


def _start_method() -> Fact:
    # get_start_method() would fix the default for the rest of the process.
    chosen = multiprocessing.get_start_method(allow_none=True)
    if chosen:
        return Fact(chosen, "multiprocessing.set_start_method()")
    default = multiprocessing.get_all_start_methods()[0]
    return Fact(default, f"the default of Python {platform.python_version()}")


def _container(root: Path) -> Fact:
    for sign, name in _CONTAINERS.items():
        if sign in os.environ:
            return Fact(name, f"${sign} is set")
        if "." in sign and os.path.exists(root / sign):
            return Fact(name, f"/{sign} is there")
    return Fact(None, "no sign of one")


def _name(accelerators: Fact, processor: Fact, cores: Fact, sets: Fact) -> Fact:
    """Name a machine by what decides its speed, fit for a file."""
    if accelerators.value:
        first, count = accelerators.value[0].name, len(accelerators.value)
        words, reason = f"{count} {first}" if count > 1 else first, "its accelerators"
    else:
        model = processor.value or platform.machine()
        noise = r"(?i)\((R|TM)\)|\bCPU\b|@.*|\bProcessor\b|\d+-Core"
        words, reason = re.sub(noise, " ", model), "its processor"
        if cores.value:
            words += f" {cores.value} core{'s' * (cores.value > 1)}"
            reason += ", the cores that may be used"
        has = sets.value or ()
        if best := next((c for flag, c in _CLASSES.items() if flag in has), ""):
            words += f" {best}"
            reason += ", the best of its instruction sets"
    return Fact(re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-"), reason)


def _write(name: str, fact: Fact) -> str:
    value = fact.value
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


def _check_fields(where: str, data: Any, wanted: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise ValueError(f"{where} must be an object, not {data!r}")
    for name in sorted({*wanted} ^ {*data}):
        said = "missing" if name in wanted else "unknown"
        raise ValueError(f"{where}: the field {name!r} is {said}")
    return data
