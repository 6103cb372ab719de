"""What this machine is, and how busy; read from trees of pretended files."""

import collections
import dataclasses
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
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
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        for path, content in files.items():
            (place := Path(root, path)).parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content.encode() if isinstance(content, str) else content)
        patch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
        patch.setattr(psutil, "virtual_memory", lambda: MEMORY)
        patch.setattr(torch.accelerator, "current_accelerator", lambda *_: None)
        return kit.this_machine(root=Path(root))


def group(name, cores=None, *, memory=None, old=False):
    """Return a control group's files: its limits."""
    quota = None if cores is None else f"{cores * 1e5:.0f}"
    cpu, ram = f"{ROOM}/cpu,cpuacct{name}", f"{ROOM}/memory{name}"
    if old:
        files = {f"{cpu}/cpu.cfs_quota_us": quota or "-1"}
        files[f"{cpu}/cpu.cfs_period_us"] = "100000\n"
        return files | {f"{ram}/memory.limit_in_bytes": f"{memory or 2**63 - 4096}\n"}
    files = {f"{ROOM}{name}/cpu.max": f"{quota or 'max'} 100000\n"}
    return files | {f"{ROOM}{name}/memory.max": f"{memory or 'max'}\n"}


def inside(name, *, old=False):
    """The file that says in which group a process is."""
    text = f"5:cpuset:/set\n4:memory:{name}\n3:cpu,cpuacct:{name}\n0::/\n"
    return {"proc/self/cgroup": text if old else f"0::{name}\n"}


NEW, OLD = inside("/pods/me"), inside("/docker/abc", old=True)
#: The group of processors has a path of its own, where another quota may stand.
OTHER = {x.replace(",cpuacct", ""): s for x, s in group("/set", 1, old=True).items()}
QUOTAS = [
    (OLD | OTHER, 8, "no control group"),
    (NEW | group("/pods/me", 2.5), 2, f"a quota of 2.5 cores in /{ROOM}/pods/me"),
    (NEW | group("/pods/neighbour", 1), 8, "no control group"),
    (OLD | group("", 2, old=True), 2, "cpu,cpuacct"),  # what a container sees
    (OLD | group("/docker/abc", 3, old=True) | group("", 2), 2, f"/{ROOM}"),
    (inside("/../x", old=True) | group("", 2, old=True), 2, "2 cores"),
    (group("", 2), 2, "2 cores"),
    ({f"{ROOM}/cpu.max": "100000 0"}, 8, "no control group"),
]


@pytest.mark.parametrize(("files", "cores", "said"), QUOTAS)
def test_a_container_does_not_claim_the_cores_of_its_host(files, cores, said):
    found = look(files)
    assert found.cores == cores and said in found.reasons["cores"]


GROUPS = ["", "/a", "/a/b", "/a/b/c"]
LIMITS = st.dictionaries(st.sampled_from(GROUPS), st.integers(1, 20))


@given(LIMITS, LIMITS, st.booleans())
def test_no_limit_of_a_group_around_this_one_is_overlooked(halves, gigabytes, old):
    files = inside(GROUPS[-1], old=old)
    for name in GROUPS:
        cores = halves[name] / 2 if name in halves else None
        memory = gigabytes.get(name, 0) * 10**9
        files |= group(name, cores, memory=memory, old=old)
    found, fewest = look(files), min(halves.values(), default=16)
    assert found.cores == min(8, max(1, fewest // 2))
    least = min(gigabytes.values(), default=9) * 10**9
    assert found.memory_bytes == min(MEMORY.total, least)


FILES = ["proc/cpuinfo", "proc/self/cgroup"]
FILES += [f"{ROOM}/{name}" for name in ("cpu.max", "memory.max")]
JUNK = [b"", b"\n", b":", b"0:", b"0::", b"1 2 - cgroup2", b"cpu 1 -2 3", b"max", b"\0"]
JUNK += [b"-1 0", b"flags", b"model name :", b"\xff\xfe"]
ANY_JUNK = st.sampled_from(JUNK) | st.binary(max_size=20)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(FILES, ANY_JUNK)))
def test_garbage_or_nothing_is_unknown_no_guess_and_no_error(files):
    found = look(files)
    for name in ("processor", "shared_memory_bytes", "instruction_sets"):
        assert getattr(found, name) is None
    assert 1 <= found.cores <= 8 and 0 <= found.memory_bytes <= MEMORY.total


def test_no_memory_is_planned_with_that_cannot_be_taken(monkeypatch, tmp_path):
    """Whoever uses it: another notebook of the same container, for example."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: MEMORY)
    monkeypatch.setattr(system, "_ROOT", tmp_path)
    assert system.available_bytes() == MEMORY.available
    folder = tmp_path / "sys/fs/cgroup"
    folder.mkdir(parents=True)
    (folder / "memory.stat").write_text("anon 5\ninactive_file 200000000\n")
    for limit, used, left in ((3e9, 1.2e9, 2e9), (1e8, 9e8, 0), (1e15, 0, None)):
        (folder / "memory.max").write_text(f"{limit:.0f}\n")
        (folder / "memory.current").write_text(f"{used:.0f}\n")
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
    told = machine.reasons["accelerators"]
    assert told.endswith("driver too old") == (kind == "broken")


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


def test_every_fact_has_its_reason_on_the_card_and_survives_json():
    machine = look(group("", memory=2 * 10**9) | {"dev/shm/batch": b""})
    size = shutil.disk_usage(tempfile.gettempdir()).total
    assert machine.shared_memory_bytes == size > 0, "not what is left of it"
    machine = dataclasses.replace(machine, operating_system="<b>X", accelerators=("A",))
    told = json.loads(json.dumps(machine.to_dict()))
    again = Machine.from_dict(told | {"colour": {"value": "red", "reason": "paint"}})
    assert again == machine and hash(again) == hash(machine), "later facts do no harm"
    assert [*again.reasons, "reasons"] == [x.name for x in dataclasses.fields(machine)]
    first, *lines = repr(again).splitlines()
    assert first == machine.name
    for line, why in zip(lines, [*machine.reasons.values()][1:], strict=True):
        assert why and f"({why})" in line
    assert "processor          unknown" in repr(again)
    assert "memory             2 GB" in repr(again) and "memory.max" in repr(again)
    assert "&lt;b&gt;X" in machine._repr_html_() and "<b>X" not in machine._repr_html_()


def test_idle_time_is_not_reported_as_load_by_other_programs(monkeypatch):
    """On the cores that this process may use: the others are other people's."""
    busy = {"user": 100.0, "nice": 20.0, "system": 30.0, "irq": 7.0, "softirq": 8.0}
    idle = {"idle": 5000.0, "iowait": 600.0, "guest": 40.0, "steal": 900.0}
    times = collections.namedtuple("cpu_times", busy | idle)(**busy, **idle)
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: [times] * 3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert system.read_load().everyone == 165
