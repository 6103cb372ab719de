"""What this machine is, and how busy: read from trees of pretended files."""

import collections
import dataclasses
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from helpers import find_resident_bytes, wait_until
from hypothesis import given, strategies as st

import kit
from kit import system
from kit.machine import Machine
from kit.system import Load, describe_load

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MEMORY = SimpleNamespace(total=8_192_000_000, available=6 * 10**9)
ROOM = "sys/fs/cgroup"


def look(files, *, cores=8, ask=kit.this_machine):
    """What is found in these files, on a machine of 8 GB without a GPU."""
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        for path, content in files.items():
            (place := Path(root, path)).parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content.encode() if isinstance(content, str) else content)
        patch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
        patch.setattr(psutil, "virtual_memory", lambda: MEMORY)
        patch.setattr(torch.accelerator, "current_accelerator", lambda *_: None)
        return ask(root=Path(root))


def group(name, cores=None, *, memory=None, stopped=0, old=False):
    """Return a control group's files: its limits, and how long it was stopped."""
    quota = None if cores is None else f"{cores * 1e5:.0f}"
    cpu, ram = f"{ROOM}/cpu,cpuacct{name}", f"{ROOM}/memory{name}"
    if old:
        files = {f"{cpu}/cpu.cfs_quota_us": quota or "-1"}
        files[f"{cpu}/cpu.cfs_period_us"] = "100000\n"
        files[f"{cpu}/cpu.stat"] = f"nr_throttled 4\nthrottled_time {stopped}000000000"
        return files | {f"{ram}/memory.limit_in_bytes": f"{memory or 2**63 - 4096}\n"}
    files = {f"{ROOM}{name}/cpu.max": f"{quota or 'max'} 100000\n"}
    files[f"{ROOM}{name}/cpu.stat"] = f"nr_throttled 4\nthrottled_usec {stopped}000000"
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
    for number, name in enumerate(GROUPS, 1):
        cores = halves[name] / 2 if name in halves else None
        memory = gigabytes.get(name, 0) * 10**9
        files |= group(name, cores, memory=memory, stopped=number, old=old)
    found, fewest = look(files), min(halves.values(), default=16)
    assert found.cores == min(8, max(1, fewest // 2))
    least = min(gigabytes.values(), default=9) * 10**9
    assert found.memory_bytes == min(MEMORY.total, least)
    tightest = [n for n, x in enumerate(GROUPS, 1) if halves.get(x) == fewest]
    stopped = look(files, ask=system.read_load).throttled
    assert stopped in (tightest if halves else [0])


FILES = ["proc/cpuinfo", "proc/self/cgroup", "proc/self/task/1/schedstat"]
FILES += [f"{ROOM}/{name}" for name in ("cpu.max", "cpu.stat", "memory.max")]
JUNK = [b"", b"\n", b":", b"0:", b"0::", b"1 2 - cgroup2", b"cpu 1 -2 3", b"max", b"\0"]
JUNK += [b"-1 0", b"throttled_usec x", b"flags", b"model name :", b"\xff\xfe"]
ANY_JUNK = st.sampled_from(JUNK) | st.binary(max_size=20)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(FILES, ANY_JUNK)))
def test_garbage_or_nothing_is_unknown_no_guess_and_no_error(files):
    found, load = look(files), look(files, ask=system.read_load)
    for name in ("processor", "shared_memory_bytes", "instruction_sets"):
        assert getattr(found, name) is None
    assert 1 <= found.cores <= 8 and 0 <= found.memory_bytes <= MEMORY.total
    assert all(map(math.isfinite, load)) and load.throttled == 0


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
    with system.MemoryWatch():
        assert kept and find_resident_bytes() < before - 25e6
    with system.MemoryWatch(in_a_hurry=True) as watch:
        assert len(b"x" * 80_000_000)
    assert watch.increase > 75e6, "an earlier peak, which was higher, hid this one"


def test_what_a_worker_takes_for_a_moment_is_seen(monkeypatch):
    seen = [0, 0, 10**9, 10**9]  # and nothing of it in the end
    monkeypatch.setattr(
        system, "proportional_bytes", lambda: seen.pop(0) if seen else 0
    )
    with system.MemoryWatch() as watch:
        wait_until(lambda: not seen)
    assert watch.increase == 10**9


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


BUSY = {"user": 100.0, "nice": 20.0, "system": 30.0, "irq": 7.0, "softirq": 8.0}
IDLE = {"idle": 5000.0, "iowait": 600.0, "guest": 40.0, "guest_nice": 5.0}


@pytest.mark.parametrize("idle", [IDLE, IDLE | {"steal": 900.0}, {}])
def test_idle_time_is_not_reported_as_load_by_other_programs(monkeypatch, idle):
    """On the cores that this process may use: the others are other people's."""
    times = collections.namedtuple("cpu_times", BUSY | idle)(**BUSY, **idle)
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: [times] * 3)
    threads = enumerate(["5 2000000000 9\n", "5 500000000 9\n", "half a line"])
    files = {f"proc/self/task/{n}/schedstat": text for n, text in threads}
    found = look(files, cores=1, ask=system.read_load)
    assert (found.everyone, found.stolen) == (165, idle.get("steal", 0))
    assert found.waited == pytest.approx(2.5)


LOADS = [((4.0, 8.0, 5.0, 2.5, 1.0, 2.0, 0.4), (0.75, 2.0, 0.25, 0.5, 0.1))]
# Counters tick at other times; throttling is summed over processors.
LOADS += [((4.0, 1.0, 1.1, 1.1, 0.0, -1.0, 6.0), (0.0, 1.0, 0.0, 0.0, 1.0))]
LOADS += [((0.0,) * 7, (0.0,) * 5)]


@pytest.mark.parametrize(("change", "described"), LOADS)
def test_a_load_is_described_per_second_and_no_share_is_impossible(change, described):
    before = Load(10.0, 100.0, 20.0, 15.0, 3.0, 40.0, 7.0)
    found = describe_load(before, Load(*map(sum, zip(before, change, strict=True))))
    names = ["others_cores", "cores_per_thread", "waiting", "stolen", "throttled"]
    assert found == pytest.approx(dict(zip(names, described, strict=True)), abs=1e-6)
