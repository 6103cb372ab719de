"""What this machine is, and how busy; read from trees of pretended files."""

import dataclasses
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from helpers import find_resident_bytes
from hypothesis import given, strategies as st

import kit
from kit import system
from kit.machine import Machine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MEMORY = SimpleNamespace(total=8_192_000_000, available=6 * 10**9)
ROOM = "sys/fs/cgroup"


def look(files, *, cores=8):
    """What is found in these files, on a machine of 8 GB without a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        read = {f"/{path}": content for path, content in files.items()}
        patch.setattr(system, "read_text", lambda path: read.get(str(path), ""))
        patch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
        patch.setattr(psutil, "virtual_memory", lambda: MEMORY)
        patch.setattr(torch.accelerator, "current_accelerator", lambda *_: None)
        return kit.this_machine()


def group(name, cores=None, *, memory=None):
    """Return a control group's files: its limits."""
    quota = "max" if cores is None else f"{cores * 1e5:.0f}"
    files = {f"{ROOM}{name}/cpu.max": f"{quota} 100000\n"}
    return files | {f"{ROOM}{name}/memory.max": f"{memory or 'max'}\n"}


def inside(name):
    """The file that says in which group a process is."""
    return {"proc/self/cgroup": f"0::{name}\n"}


HERE = inside("/pods/me")
QUOTAS = [
    (HERE | group("/pods/me", 2.5), 2),
    (HERE | group("/pods/neighbor", 1), 8),
    (inside("/docker/abc") | group("", 2), 2),  # what a container sees
    (inside("/../x") | group("", 2), 2),
    (group("", 2), 2),
    ({f"{ROOM}/cpu.max": "100000 0"}, 8),
]


@pytest.mark.parametrize(("files", "cores"), QUOTAS)
def test_a_container_does_not_claim_the_cores_of_its_host(files, cores):
    assert look(files).cores == cores


GROUPS = ["", "/a", "/a/b", "/a/b/c"]
LIMITS = st.dictionaries(st.sampled_from(GROUPS), st.integers(1, 20))


@given(LIMITS, LIMITS)
def test_no_limit_of_a_group_around_this_one_is_overlooked(halves, gigabytes):
    files = inside(GROUPS[-1])
    for name in GROUPS:
        cores = halves[name] / 2 if name in halves else None
        files |= group(name, cores, memory=gigabytes.get(name, 0) * 10**9)
    found, fewest = look(files), min(halves.values(), default=16)
    assert found.cores == min(8, max(1, fewest // 2))
    least = min(gigabytes.values(), default=9) * 10**9
    assert found.memory_bytes == min(MEMORY.total, least)


FILES = ["proc/cpuinfo", "proc/self/cgroup"]
FILES += [f"{ROOM}/{name}" for name in ("cpu.max", "memory.max")]
JUNK = ["", "\n", ":", "0:", "0::", "1 2 - cgroup2", "cpu 1 -2 3", "max", "\0", "-1 0"]
ANY_JUNK = st.sampled_from([*JUNK, "flags", "model name :"]) | st.text(max_size=20)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(FILES, ANY_JUNK)))
def test_garbage_or_nothing_is_unknown_no_guess_and_no_error(files):
    found = look(files)
    assert found.processor is None and found.instruction_sets is None
    assert 1 <= found.cores <= 8 and 0 <= found.memory_bytes <= MEMORY.total


def test_no_memory_is_planned_with_that_cannot_be_taken(monkeypatch):
    """Whoever uses it: another notebook of the same container, for example."""
    files = {}
    monkeypatch.setattr(psutil, "virtual_memory", lambda: MEMORY)
    monkeypatch.setattr(system, "read_text", lambda path: files.get(path.name, ""))
    monkeypatch.setattr(system, "find_groups", lambda: [Path("/sys/fs/cgroup")])
    assert system.available_bytes() == MEMORY.available
    files["memory.stat"] = "anon 5\ninactive_file 200000000\n"
    for limit, used, left in ((3e9, 1.2e9, 2e9), (1e8, 9e8, 0), (1e15, 0, None)):
        files["memory.max"] = f"{limit:.0f}\n"
        files["memory.current"] = f"{used:.0f}\n"
        assert system.available_bytes() == (MEMORY.available if left is None else left)
    monkeypatch.setattr(kit.clock, "find_initialised", lambda: [0, 1])
    told = {"memory_reserved": 9, "memory_allocated": 5, "get_memory_info": (70, 80)}
    for name, fact in told.items():
        monkeypatch.setattr(torch.accelerator, name, [fact, fact].__getitem__)
    assert system.available_bytes() == 74, "what is held back can be used again"


def test_memory_that_was_freed_is_given_back_before_a_start():
    kept = [b"x" * 50_000 for _ in range(2000)][::2]
    before = find_resident_bytes()
    watch = system.MemoryWatch()
    watch.begin()
    assert kept and find_resident_bytes() < before - 25e6
    filled = b"x" * 80_000_000
    time.sleep(0.1)  # it is looked at now and then
    del filled
    assert watch.end() > 75e6


XEON = "Intel(R) Xeon(R) Platinum 8488C CPU @ 2.40GHz"
NAMES = [("AMD EPYC", "sse2 avx", "amd-epyc-2-cores")]
NAMES += [("AMD EPYC 7763 64-Core Processor", "avx2", "amd-epyc-7763-2-cores-avx2")]
NAMES += [("AMD EPYC", "avx2 avx512f avx512_bf16", "amd-epyc-2-cores-avx512-bf16")]
NAMES += [(XEON, "fpu avx2 avx512f amx_tile", "intel-xeon-platinum-8488c-2-cores-amx")]
NAMES += [("Neo", "asimd i8mm bf16", "neo-2-cores-neon-bf16")]
NAMES += [("Neo", "asimd sve sve2 bf16", "neo-2-cores-sve2")]
NAMES += [("", "asimd sve bf16", f"{platform.machine()}-2-cores-sve".replace("_", "-"))]


@pytest.mark.parametrize(("model", "flags", "name"), NAMES)
def test_a_name_tells_apart_what_computes_at_another_speed(model, flags, name):
    text = f"model name\t: {model}\nFeatures : {flags}\n\nmodel name : another\n"
    found = look({"proc/cpuinfo": text if model else f"flags\t: {flags}"}, cores=2)
    assert (found.name, found.processor) == (name, model or None)
    assert set(found.instruction_sets) == set(flags.split()) - {"fpu", "sse2", "avx"}


DEVICES = [("cuda", 2, ("GPU 0, 1 GB", "GPU 1, 1 GB"), "2-gpu-0")]
DEVICES += [("mps", 1, ("Apple GPU, 5 GB",), "apple-gpu")]
DEVICES += [("cuda", 0, (), "core"), (None, 0, (), "core"), ("broken", 1, None, "core")]


@pytest.mark.parametrize(("kind", "count", "found", "name"), DEVICES)
def test_accelerators_are_named_or_else_unknown(monkeypatch, kind, count, found, name):
    def describe(index):
        assert count, "asking for names would initialise it"
        if kind == "broken":
            raise RuntimeError("driver too old\nand much more")
        return SimpleNamespace(name=f"GPU {index}", total_memory=10**9)

    current = kind and SimpleNamespace(type=kind)
    module = SimpleNamespace(get_device_properties=describe)
    module.is_initialized = lambda: True
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: current)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 5 * 10**9)
    machine = kit.this_machine()
    assert machine.accelerators == found and name in machine.name


def test_asking_what_this_machine_is_leaves_cuda_to_processes_forked_later(monkeypatch):
    """A process that is forked after CUDA was initialised cannot use it."""
    module = SimpleNamespace(is_initialized=lambda: False)
    module.get_device_properties = lambda _: pytest.fail("this initialises CUDA")
    current = SimpleNamespace(type="cuda")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: current)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    answers = ['[["GPU", 80000000000]]']
    monkeypatch.setattr(subprocess, "check_output", lambda *_, **__: answers.pop())
    machines = [kit.this_machine() for _ in range(2)]  # it is asked only once
    assert {machine.accelerators for machine in machines} == {("GPU, 80 GB",)}


def test_a_machine_is_told_in_plain_lines_and_survives_json():
    machine = look(group("", memory=2 * 10**9))
    machine = dataclasses.replace(machine, accelerators=("A", "B"))
    told = json.loads(json.dumps(dataclasses.asdict(machine)))
    again = Machine.from_dict(told | {"color": "red"})
    assert again == machine and hash(again) == hash(machine), "later facts do no harm"
    old = {name: {"value": value, "reason": "why"} for name, value in told.items()}
    assert Machine.from_dict(old) == machine, "as recordings had it"
    first, *lines = repr(again).splitlines()
    assert first == machine.name
    facts = [" ".join(line.split()) for line in lines]
    assert {"processor unknown", "memory 2 GB", "accelerators A; B"} <= {*facts}


@pytest.mark.parametrize("kind", [None, "cuda"])
def test_the_device_is_the_accelerator_or_else_the_cpu(monkeypatch, kind):
    found = kind and torch.device(kind)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: found)
    assert kit.device() == torch.device(kind or "cpu")
