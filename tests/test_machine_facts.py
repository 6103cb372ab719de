"""Facts about a machine, read from trees of pretended /proc and /sys files."""

import dataclasses
import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from kit import machine as facts
from kit import system
from kit.machine import Machine, this_machine

ROOT = Path(__file__).resolve().parents[1]
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

V2 = "1 0 0:1 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "1 0 0:1 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "2 0 0:2 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)
CPUINFO = """\
processor\t: 0
model name\t: Intel(R) Xeon(R) Platinum 8488C CPU @ 2.40GHz
flags\t\t: fpu sse2 avx avx2 avx512f avx512_bf16 amx_tile amx_bf16

processor\t: 1
model name\t: another
"""


def cores_of(root, allowed=8):
    with pytest.MonkeyPatch.context() as patch:
        found = (allowed, "in the affinity mask")
        patch.setattr(facts, "_count_allowed_cores", lambda: found)
        return facts.find_cores(root)


# ---------------------------------------------------------------- cores


def test_without_a_quota_all_allowed_cores_count(pretend):
    root = pretend({"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": V2})
    value, reason = cores_of(root)
    assert value == 8
    assert "no control group" in reason


@pytest.mark.parametrize(
    ("cpu_max", "cores"),
    [
        ("200000 100000", 2),
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("1600000 100000", 8),
        ("max 100000", 8),
        ("100000 0", 8),
        ("nonsense", 8),
        ("", 8),
    ],
)
def test_a_quota_of_version_2_is_rounded_down_to_at_least_one(pretend, cpu_max, cores):
    root = pretend(
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": V2,
            "sys/fs/cgroup/cpu.max": f"{cpu_max}\n",
        }
    )
    assert cores_of(root)[0] == cores


def test_a_fractional_quota_is_told(pretend):
    root = pretend(
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": V2,
            "sys/fs/cgroup/cpu.max": "50000 100000\n",
        }
    )
    value, reason = cores_of(root)
    assert value == 1
    assert "a quota of 0.5 cores in /sys/fs/cgroup" in reason


@pytest.mark.parametrize("smallest", ["", "/kubepods", "/kubepods/pod1"])
def test_the_tightest_of_nested_groups_holds(pretend, smallest):
    quotas = {"": "700000", "/kubepods": "600000", "/kubepods/pod1": "500000"}
    quotas[smallest] = "300000"
    root = pretend(
        {
            "proc/self/cgroup": "0::/kubepods/pod1\n",
            "proc/self/mountinfo": V2,
            **{
                f"sys/fs/cgroup{group}/cpu.max": f"{quota} 100000\n"
                for group, quota in quotas.items()
            },
            "sys/fs/cgroup/neighbour/cpu.max": "100000 100000\n",
        }
    )
    value, reason = cores_of(root)
    assert value == 3
    assert reason.endswith(f"/sys/fs/cgroup{smallest}")


def quota_of_version_1(group, quota, mount_root="/", own="/docker/abc"):
    folder = f"sys/fs/cgroup/cpu,cpuacct{group}"
    return {
        "proc/self/cgroup": f"4:memory:{own}\n3:cpu,cpuacct:{own}\n0::/\n",
        "proc/self/mountinfo": V1.format(root=mount_root),
        f"{folder}/cpu.cfs_quota_us": f"{quota}\n",
        f"{folder}/cpu.cfs_period_us": "100000\n",
    }


def test_a_quota_of_version_1_holds_and_minus_one_is_none(pretend):
    assert cores_of(pretend(quota_of_version_1("/docker/abc", 300000)))[0] == 3
    assert cores_of(pretend(quota_of_version_1("/docker/abc", -1)))[0] == 8


@pytest.mark.parametrize(
    ("mount_root", "own"),
    [("/docker/abc", "/docker/abc"), ("/docker/abc", "/"), ("/", "/../../other")],
)
def test_a_mount_inside_a_container_hides_the_path_outside(pretend, mount_root, own):
    files = quota_of_version_1("", 200000, mount_root, own)
    assert cores_of(pretend(files))[0] == 2


def test_version_1_beside_version_2_takes_the_tighter(pretend):
    files = quota_of_version_1("/docker/abc", 300000)
    files["proc/self/mountinfo"] += V2
    files["sys/fs/cgroup/cpu.max"] = "200000 100000\n"
    assert cores_of(pretend(files))[0] == 2


def test_the_usual_places_serve_where_mounts_cannot_be_read(pretend):
    assert cores_of(pretend({"sys/fs/cgroup/cpu.max": "200000 100000"}))[0] == 2


def test_the_affinity_mask_holds_below_the_quota(pretend):
    root = pretend({"sys/fs/cgroup/cpu.max": "600000 100000"})
    assert cores_of(root, allowed=2)[0] == 2


def test_where_nothing_tells_the_cores_they_are_unknown(tmp_path):
    assert cores_of(tmp_path, allowed=None)[0] is None


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity masks")
def test_the_affinity_mask_is_asked_not_the_number_of_processors(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert this_machine().cores == 1


@linux_only
@pytest.mark.parametrize(
    "line", ["", "\n", ":", "0:", "rubbish", "1 2 - cgroup2", " - cgroup2 x y", "\x00"]
)
def test_broken_files_are_no_error(pretend, line):
    files = ("self/cgroup", "self/mountinfo", "cpuinfo")
    root = pretend({f"proc/{file}": line for file in files})
    machine = this_machine(root=root)
    assert machine.memory_bytes == psutil.virtual_memory().total
    assert machine.processor is None


# ---------------------------------------------------------------- memory


@pytest.fixture
def eight_gigabytes(monkeypatch):
    told = SimpleNamespace(total=8_192_000_000, available=6 * 10**9)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: told)


def test_memory_is_the_machines_where_no_group_limits_it(pretend, eight_gigabytes):
    root = pretend(
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": V2,
            "sys/fs/cgroup/memory.max": "max\n",
        }
    )
    assert system.find_memory(root) == (8_192_000_000, "psutil.virtual_memory()")


def test_the_tightest_limit_on_memory_holds(pretend, eight_gigabytes):
    root = pretend(
        {
            "proc/self/cgroup": "0::/user/me\n",
            "proc/self/mountinfo": V2,
            "sys/fs/cgroup/user/me/memory.max": "max\n",
            "sys/fs/cgroup/user/memory.max": "2147483648\n",
            "sys/fs/cgroup/memory.max": "4294967296\n",
        }
    )
    reason = "the limit in /sys/fs/cgroup/user/memory.max"
    assert system.find_memory(root) == (2**31, reason)


@pytest.mark.parametrize(
    ("limit", "memory"),
    [(2**31, 2**31), (9_223_372_036_854_771_712, 8_192_000_000)],
)
def test_the_limit_of_version_1_holds_unless_it_says_none(
    pretend, eight_gigabytes, limit, memory
):
    root = pretend(
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n",
            "proc/self/mountinfo": V1.format(root="/docker/abc"),
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{limit}\n",
        }
    )
    assert system.find_memory(root)[0] == memory


@pytest.mark.parametrize(
    ("limit", "available"), [(None, 6 * 10**9), (2**31, 2**31 - 10**9), (10**8, 0)]
)
def test_what_may_still_be_taken_ends_at_the_limit(
    monkeypatch, eight_gigabytes, limit, available
):
    found = (limit or 8_192_000_000, "")
    monkeypatch.setattr(system, "find_memory", lambda root: found)
    monkeypatch.setattr(system, "proportional_bytes", lambda: 10**9)
    assert system.available_bytes() == available


# ---------------------------------------------------------------- the rest


@linux_only
def test_the_processor_and_what_it_can(pretend):
    root = pretend({"proc/cpuinfo": CPUINFO})
    model = "Intel(R) Xeon(R) Platinum 8488C CPU @ 2.40GHz"
    assert facts.find_processor(root)[0] == model
    sets = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16")
    assert facts.find_instruction_sets(root)[0] == sets


@linux_only
def test_an_arm_processor_has_features_and_no_model_name(pretend):
    features = (
        "processor : 0\nFeatures : fp asimd sve i8mm bf16 crc32\nCPU part : 0xd4f"
    )
    root = pretend({"proc/cpuinfo": features})
    assert facts.find_processor(root)[0] is None
    assert facts.find_instruction_sets(root)[0] == ("asimd", "sve", "i8mm", "bf16")


def name_of(model, cores, sets, *accelerators):
    """Return the name of a machine with these facts."""
    return facts.make_name(accelerators, model, cores, sets)


@pytest.mark.parametrize(
    ("model", "cores", "name"),
    [
        ("AMD EPYC", 2, "amd-epyc-2-cores-avx2"),
        ("AMD EPYC 7763 64-Core Processor", 4, "amd-epyc-7763-4-cores-avx2"),
        (
            "Intel(R) Xeon(R) Platinum 8488C CPU @ 2.40GHz",
            1,
            "intel-xeon-platinum-8488c-1-core-avx2",
        ),
    ],
)
def test_a_name_is_short_and_fit_for_a_file(model, cores, name):
    assert name_of(model, cores, ("avx2",)) == name


@pytest.mark.parametrize(
    ("sets", "ending"),
    [
        (("avx2",), "-avx2"),
        (("avx2", "avx512f"), "-avx512"),
        (("avx2", "avx512f", "avx512_vnni", "avx512_bf16"), "-avx512-bf16"),
        (("avx512_bf16", "amx_tile", "avx512f", "avx2", "amx_bf16"), "-amx"),
        (("asimd", "asimdhp"), "-neon"),
        (("asimd", "i8mm", "bf16"), "-neon-bf16"),
        (("asimd", "sve", "bf16"), "-sve"),
        (("asimd", "sve", "sve2", "bf16"), "-sve2"),
        ((), ""),
        (None, ""),
    ],
)
def test_a_name_tells_apart_what_computes_at_another_speed(sets, ending):
    assert name_of("AMD EPYC", 2, sets) == f"amd-epyc-2-cores{ending}"


@linux_only
@pytest.mark.parametrize(
    ("flags", "ending"), [("sse2 avx", "4-cores"), ("avx avx2", "4-cores-avx2")]
)
def test_the_name_of_this_machine_has_its_instruction_sets(
    pretend, monkeypatch, flags, ending
):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: None)
    monkeypatch.setattr(facts, "_count_allowed_cores", lambda: (4, ""))
    root = pretend({"proc/cpuinfo": f"model name : AMD EPYC\nflags : {flags}\n"})
    assert this_machine(root=root).name == f"amd-epyc-{ending}"


def test_a_machine_with_accelerators_is_named_by_them():
    gpu = "NVIDIA H200, 141 GB"
    assert name_of(None, None, ("avx2",), gpu) == "nvidia-h200"
    assert name_of(None, None, ("avx2",), *[gpu] * 8) == "8-nvidia-h200"


def test_a_machine_of_which_nothing_is_known_has_a_name():
    assert re.fullmatch(r"[a-z0-9-]+", name_of(None, None, None))


def find_accelerators(torch):
    """Return what is found by a pretended PyTorch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", torch)
        return facts.find_accelerators()


def pretended_torch(kind, count, error=None):
    asked = []

    def properties(index):
        asked.append(index)
        if error:
            raise error
        return SimpleNamespace(name=f"device {index}", total_memory=10**9)

    device = None if kind is None else SimpleNamespace(type=kind)
    accelerator = SimpleNamespace(
        current_accelerator=lambda: device, device_count=lambda: count
    )
    module = SimpleNamespace(get_device_properties=properties)
    mps = SimpleNamespace(recommended_max_memory=lambda: 5 * 10**9)
    torch = SimpleNamespace(
        accelerator=accelerator, get_device_module=lambda _: module, mps=mps
    )
    return torch, asked


def test_accelerators_are_named_with_their_memory():
    torch, _ = pretended_torch("cuda", 2)
    found = find_accelerators(torch)[0]
    assert found == ("device 0, 1 GB", "device 1, 1 GB")


def test_where_none_is_there_no_device_is_asked():
    torch, asked = pretended_torch("cuda", 0)
    assert find_accelerators(torch)[0] == ()
    assert asked == []
    assert find_accelerators(pretended_torch(None, 0)[0])[0] == ()


def test_apples_gpu_has_no_properties_but_a_memory():
    found = find_accelerators(pretended_torch("mps", 1)[0])[0]
    assert found == ("Apple GPU, 5 GB",)
    assert find_accelerators(pretended_torch("mps", 0)[0])[0] == ()


def test_a_broken_driver_leaves_the_accelerators_unknown():
    error = RuntimeError("driver too old\nand much more")
    found = find_accelerators(pretended_torch("cuda", 1, error)[0])
    assert found == (None, "PyTorch cannot tell: driver too old")


def test_asking_does_not_fix_the_start_method():
    program = (
        "from kit.machine import find_start_method as ask; ask();"
        "import multiprocessing as m; m.set_start_method('spawn');"
        "assert ask()[0] == 'spawn'"
    )
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", program]) == 0


# ---------------------------------------------------------------- the whole


@linux_only
def test_where_everything_is_missing_nothing_is_guessed(tmp_path):
    machine = this_machine(root=tmp_path)
    for name in ("processor", "shared_memory_bytes", "instruction_sets"):
        assert getattr(machine, name) is None


def test_every_fact_has_a_reason():
    machine = this_machine()
    facts = [field.name for field in dataclasses.fields(machine)]
    assert [*machine.reasons, "reasons"] == facts
    assert all(machine.reasons.values())


def test_a_machine_survives_json_and_can_be_a_key():
    machine = dataclasses.replace(this_machine(), accelerators=("NVIDIA H200, 141 GB",))
    copy = Machine.from_dict(json.loads(json.dumps(machine.to_dict())))
    assert copy == machine
    assert copy.reasons == machine.reasons
    assert {machine: 1}[copy] == 1


def test_the_machines_of_the_committed_recordings_can_be_read():
    """They may have facts that are no longer told."""
    found = []

    def look(data):
        if isinstance(data, dict) and "instruction_sets" in data:
            found.append(data)
        elif isinstance(data, (dict, list)):
            for part in data.values() if isinstance(data, dict) else data:
                look(part)

    for path in (ROOT / "tutorials/recordings").glob("*.json"):
        look(json.loads(path.read_text("utf-8")))
    assert found
    for data in found:
        machine = Machine.from_dict(data)
        assert machine.name == data["name"]["value"]
        known = json.loads(json.dumps(machine.to_dict()))
        assert known.items() <= data.items() and "torch" in known


def test_the_report_has_a_line_per_fact_with_its_reason():
    machine = dataclasses.replace(
        this_machine(), memory_bytes=2 * 10**9, processor=None, accelerators=()
    )
    lines = repr(machine).splitlines()
    assert lines[0] == machine.name
    assert len(lines) == len(machine.reasons)
    said = {line.split("  ")[0]: line for line in lines[1:]}
    assert "2 GB" in said["memory"]
    assert "unknown" in said["processor"]
    assert "none" in said["accelerators"]
    for name in ("memory_bytes", "processor"):
        assert f"({machine.reasons[name]})" in repr(machine)


def test_the_html_report_is_escaped():
    machine = dataclasses.replace(this_machine(), processor="<b>fast</b>")
    page = machine._repr_html_()
    assert "&lt;b&gt;fast&lt;/b&gt;" in page
    assert "<b>" not in page
