"""How busy others are, read from pretended files."""

import collections
import math
import multiprocessing
import sys
import time

import psutil
import pytest

import kit
from kit import system
from kit.system import Load, describe_load

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

STAT = "nr_periods 10\nnr_throttled 4\n"


# ---------------------------------------------------------------- the counters


def pretend_cpu_times(monkeypatch, **seconds):
    told = collections.namedtuple("cpu_times", seconds)(**seconds)
    monkeypatch.setattr(psutil, "cpu_times", lambda: told)


def test_busy_and_stolen_time_are_told_apart(monkeypatch):
    """What guests have used is in the user's time, too."""
    busy = {"user": 100.0, "nice": 20.0, "system": 30.0, "irq": 7.0, "softirq": 8.0}
    idle = {"idle": 5000.0, "iowait": 600.0, "guest": 40.0, "guest_nice": 5.0}
    pretend_cpu_times(monkeypatch, **busy, **idle, steal=900.0)
    found = system.read_load()
    assert (found.everyone, found.stolen) == (165, 900)


def test_a_system_that_tells_no_stolen_time(monkeypatch):
    pretend_cpu_times(monkeypatch, user=100.0, nice=20.0, system=30.0, idle=5000.0)
    found = system.read_load()
    assert (found.everyone, found.stolen) == (150, 0)


GARBAGE = ["", "\n", "cpu", "cpu x y z", "cpu 1 -2 3 4 5 6 7 8", "\x00\xff", "0 1 2 3"]


@pytest.mark.parametrize("text", GARBAGE)
def test_garbage_in_any_file_is_no_error_and_no_load(pretend, text):
    files = ("self/cgroup", "self/task/1/schedstat")
    root = pretend(
        {f"proc/{file}": text for file in files}
        | {"sys/fs/cgroup/cpu.max": text, "sys/fs/cgroup/cpu.stat": text}
    )
    found = system.read_load(root)
    assert found.throttled == 0
    assert found.waited in (0, 1e-9, -2e-9)


def test_what_no_file_tells_is_0(tmp_path):
    found = system.read_load(tmp_path)
    assert (found.waited, found.throttled) == (0, 0)
    assert found.wall > 0
    assert found.process > 0
    assert found.thread > 0


def test_waits_of_all_threads_are_added(pretend):
    root = pretend(
        {
            "proc/self/task/7/schedstat": "5 2000000000 9\n",
            "proc/self/task/8/schedstat": "5 500000000 9\n",
            "proc/self/task/9/schedstat": "half a line",
        }
    )
    assert system.read_load(root).waited == pytest.approx(2.5)


def test_counters_of_this_machine_never_go_down():
    before = system.read_load()
    sum(range(1_000_000))
    after = system.read_load()
    for name in ("wall", "process", "thread", "everyone", "waited", "throttled"):
        assert getattr(after, name) >= getattr(before, name)
    assert after.thread > before.thread


# ---------------------------------------------------------------- throttling


def test_throttling_of_version_2_is_in_microseconds(pretend):
    root = pretend(
        {
            "proc/self/cgroup": "0::/me\n",
            "sys/fs/cgroup/me/cpu.max": "50000 100000\n",
            "sys/fs/cgroup/me/cpu.stat": f"{STAT}throttled_usec 2500000\n",
        }
    )
    assert system.read_load(root).throttled == pytest.approx(2.5)


def test_throttling_of_version_1_is_in_nanoseconds(pretend):
    folder = "sys/fs/cgroup/cpu,cpuacct/docker/abc"
    root = pretend(
        {
            "proc/self/cgroup": "3:cpu,cpuacct:/docker/abc\n0::/\n",
            f"{folder}/cpu.cfs_quota_us": "50000\n",
            f"{folder}/cpu.cfs_period_us": "100000\n",
            f"{folder}/cpu.stat": f"{STAT}throttled_time 2500000000\n",
        }
    )
    assert system.read_load(root).throttled == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("tightest", "seconds"), [("", 1), ("/pod", 2), ("/pod/me", 3)]
)
def test_the_group_with_the_tightest_quota_counts(pretend, tightest, seconds):
    quotas = {"": 700000, "/pod": 600000, "/pod/me": 500000} | {tightest: 100000}
    files = {"proc/self/cgroup": "0::/pod/me\n"}
    for number, (group, quota) in enumerate(quotas.items(), 1):
        files[f"sys/fs/cgroup{group}/cpu.max"] = f"{quota} 100000\n"
        files[f"sys/fs/cgroup{group}/cpu.stat"] = f"throttled_usec {number}000000\n"
    assert system.read_load(pretend(files)).throttled == pytest.approx(seconds)


@pytest.mark.parametrize("quota", ["max 100000", ""])
def test_without_a_quota_nothing_is_throttled(pretend, quota):
    root = pretend(
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": quota,
            "sys/fs/cgroup/cpu.stat": "throttled_usec 2500000\n",
        }
    )
    assert system.read_load(root).throttled == 0


@pytest.mark.parametrize("text", [None, "", STAT, "throttled_usec", "throttled_usec x"])
def test_a_quota_that_does_not_tell_how_long_it_stopped_us(pretend, text):
    files = {"sys/fs/cgroup/cpu.max": "50000 100000\n"}
    if text is not None:
        files["sys/fs/cgroup/cpu.stat"] = text
    assert system.read_load(pretend(files)).throttled == 0


# ---------------------------------------------------------------- describe

BEFORE = Load(10.0, 100.0, 20.0, 15.0, 3.0, 40.0, 7.0)


def later(**changes):
    """Return a reading 4 s after BEFORE, in which these counters went up."""
    return Load(
        *(value + changes.get(name, 0.0) for name, value in BEFORE._asdict().items())
    )._replace(wall=14.0)


def test_a_load_described_by_hand():
    after = later(
        everyone=8.0, process=5.0, thread=2.5, waited=1.0, stolen=2.0, throttled=0.4
    )
    assert describe_load(BEFORE, after) == pytest.approx(
        {
            "others_cores": 0.75,
            "cores_per_thread": 2.0,
            "waiting": 0.25,
            "stolen": 0.5,
            "throttled": 0.1,
        }
    )


def test_counters_tick_at_different_times():
    """What we used may have been counted before the machine's was."""
    assert describe_load(BEFORE, later(everyone=1.0, process=1.1))["others_cores"] == 0


def test_shares_stay_possible():
    """Throttling is summed over processors; stolen time may be taken back."""
    described = describe_load(BEFORE, later(throttled=6.0, stolen=-1.0))
    assert described["throttled"] == 1
    assert described["stolen"] == 0


def test_no_time_between_two_readings_is_no_error():
    assert all(math.isfinite(x) for x in describe_load(BEFORE, BEFORE).values())


def test_two_real_readings_can_be_described():
    before = system.read_load()
    sum(range(100_000))
    described = describe_load(before, system.read_load())
    assert list(described) == [
        *("others_cores", "cores_per_thread", "waiting", "stolen", "throttled"),
    ]
    assert all(0 <= value < math.inf for value in described.values())


# ---------------------------------------------------------------- comparisons


def test_a_comparison_carries_the_load(smoke):
    def count(*, n=1):
        while True:
            yield n

    conditions = kit.compare(count, n=[1, 2]).trials[0].conditions
    assert {"others_cores", "waiting", "stolen", "throttled"} <= conditions.keys()


def burn(until):
    """Use a core for so many seconds of processor time."""
    while time.process_time() < until:
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says whose time it was")
def test_what_a_fork_servers_workers_used_is_our_own(tidy):
    context = multiprocessing.get_context("forkserver")
    before = system.read_load()
    worker = context.Process(target=burn, args=(1.0,))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    used = system.read_load().process - before.process
    assert used > 0.9, f"{used:.1f} s of the second that its worker used"
