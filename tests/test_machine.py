"""What this machine is, and how busy; read from trees of pretended files."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
import torch
from hypothesis import given, strategies as st

import kit
from kit import system

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MEMORY = SimpleNamespace(total=8_192_000_000, available=6 * 10**9)


def look(files, *, cores=8, ask=kit.this_machine):
    """What is found in these files, on a machine of 8 GB without a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        read = {f"/{path}": content for path, content in files.items()}
        patch.setattr(system, "read_text", lambda path: read.get(str(path), ""))
        patch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
        patch.setattr(psutil, "virtual_memory", lambda: MEMORY)
        patch.setattr(torch.accelerator, "current_accelerator", lambda *_: None)
        return ask()


def group(name, cores=None, memory="max"):
    """Return a control group's files: its limits."""
    quota = "max" if cores is None else f"{cores * 1e5:.0f}"
    folder = f"sys/fs/cgroup{name}"
    return {
        f"{folder}/cpu.max": f"{quota} 100000\n",
        f"{folder}/memory.max": f"{memory}\n",
    }


def inside(name):
    """The file that says in which group a process is."""
    return {"proc/self/cgroup": f"0::{name}\n"}


def test_what_is_found_here_is_what_the_system_says():
    machine = kit.this_machine()
    assert 1 <= machine.cores <= len(os.sched_getaffinity(0))
    assert 0 < machine.memory_bytes <= psutil.virtual_memory().total
    assert machine.threads == torch.get_num_threads()
    assert machine.name in repr(machine)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        (inside("/pods/me") | group("/pods/me", 2.5), 2),
        (inside("/pods/me") | group("/pods/neighbor", 1), 8),
        (inside("/docker/abc") | group("", 2), 2),  # what a container sees
        (inside("/../x") | group("", 2), 2),
    ],
)
def test_a_container_does_not_claim_the_cores_of_its_host(files, cores):
    assert look(files).cores == cores


GROUPS = ["", "/a", "/a/b", "/a/b/c"]
LIMITS = st.dictionaries(st.sampled_from(GROUPS), st.integers(1, 20))


@given(LIMITS, LIMITS)
def test_no_limit_of_a_group_around_this_one_is_overlooked(halves, gigabytes):
    files = inside(GROUPS[-1])
    for name in GROUPS:
        cores = halves[name] / 2 if name in halves else None
        memory = gigabytes[name] * 10**9 if name in gigabytes else "max"
        files |= group(name, cores, memory)
    found = look(files)
    fewest = min(halves.values(), default=16)
    assert found.cores == min(8, max(1, fewest // 2))
    least = min(gigabytes.values(), default=9) * 10**9
    assert found.memory_bytes == min(MEMORY.total, least)


JUNK = st.sampled_from(["\n", ":", "0::", "flags", "model name :", "max", "-1 0"])
TEXT = st.text(st.characters(codec="ascii"), max_size=20)


@given(st.lists(JUNK | TEXT, min_size=4, max_size=4))
def test_garbage_or_nothing_is_unknown_no_guess_and_no_error(junk):
    names = ["proc/cpuinfo", "proc/self/cgroup", *group("")]
    found = look(dict(zip(names, junk, strict=True)))
    assert found.processor is None and found.instruction_sets is None
    assert 1 <= found.cores <= 8 and 0 <= found.memory_bytes <= MEMORY.total


@pytest.mark.parametrize(
    ("limit", "used", "left"),
    [(3e9, 1.2e9, 2e9), (1e8, 9e8, 0), (1e15, 0, MEMORY.available)],
)
def test_no_memory_is_planned_with_that_cannot_be_taken(limit, used, left):
    """Another notebook of the same container may use it, for example."""
    files = group("", memory=f"{limit:.0f}") | {
        "sys/fs/cgroup/memory.current": f"{used:.0f}\n",
        "sys/fs/cgroup/memory.stat": "anon 5\ninactive_file 200000000\n",
    }
    assert look(files, ask=system.available_bytes) == left


def test_a_peak_of_memory_is_seen_although_it_was_freed():
    watch = system.MemoryWatch()
    watch.begin()
    filled = b"x" * 80_000_000
    time.sleep(0.1)  # it is looked at now and then
    del filled
    assert watch.end() > 75e6


@pytest.mark.parametrize(
    ("model", "flags", "name"),
    [
        ("AMD EPYC 7763 64-Core Processor", "avx2", "amd-epyc-7763-2-cores-avx2"),
        ("Intel(R) Xeon(R) CPU @ 2GHz", "avx2 amx_tile", "intel-xeon-2-cores-amx"),
        ("Neo", "asimd i8mm bf16", "neo-2-cores-neon-bf16"),
    ],
)
def test_a_name_tells_apart_what_computes_at_another_speed(model, flags, name):
    found = look({"proc/cpuinfo": f"model name\t: {model}\nflags : {flags}\n"}, cores=2)
    assert (found.name, found.processor) == (name, model)
    assert found.instruction_sets == tuple(flags.split())


def test_asking_what_this_machine_is_leaves_cuda_to_processes_forked_later(monkeypatch):
    """A process that is forked after CUDA was initialized cannot use it."""
    module = SimpleNamespace(is_initialized=lambda: False)
    module.get_device_properties = lambda _: pytest.fail("this initializes CUDA")
    current = SimpleNamespace(type="cuda")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: current)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    answer = '[["GPU", 80000000000]]'
    monkeypatch.setattr(subprocess, "check_output", lambda *_, **__: answer)
    assert kit.this_machine().accelerators == ("GPU, 80 GB",)


@pytest.mark.parametrize("is_there", [True, False])
def test_the_device_is_an_accelerator_that_is_there_or_else_the_cpu(
    monkeypatch, is_there
):
    def find(check_available=False):
        """Answer as PyTorch does that was built for CUDA."""
        return torch.device("cuda") if is_there or not check_available else None

    monkeypatch.setattr(torch.accelerator, "current_accelerator", find)
    assert kit.device() == torch.device("cuda" if is_there else "cpu")
