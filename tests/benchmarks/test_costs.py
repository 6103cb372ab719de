"""What the kit itself costs, on the machine that runs this: `make bench`."""

import statistics
import subprocess
import sys
import time

import psutil
import pytest

import kit

CELL = """
import time, torch, kit
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(100_000, 8))

def load(*, num_workers=2):
    while True:
        for (batch,) in DataLoader(data, batch_size=8, num_workers=num_workers):
            yield len(batch)

kit.compare(load, num_workers=[2, 1], seconds=60)
"""


@pytest.fixture(autouse=True, scope="module")
def conditions():
    print(f"\n{kit.this_machine()}\n")


def is_running_worker(process):
    try:
        return "resource_tracker" not in " ".join(process.cmdline())
    except psutil.Error:  # it has ended; a zombie waits for its parent to ask
        return False


def tick():
    """Do nothing, as fast as possible."""
    while True:
        yield 1


def tick_with_metric():
    """Do nothing, and yield a metric."""
    while True:
        yield 1, {"loss": 0.5}


def time_plain_loop(steps=1_000_000):
    generator = tick()
    start = time.perf_counter()
    for _ in range(steps):
        next(generator)
    return (time.perf_counter() - start) / steps


@pytest.mark.parametrize("experiment", [tick, tick_with_metric])
def test_clock_costs_at_most_5_us_per_step(experiment):
    trial = kit.measure(experiment, seconds=1.0)
    cost = trial.step_seconds - time_plain_loop()
    print(f"{experiment.__name__}: {1e6 * cost:.2f} µs per step")
    assert cost <= 5e-6


def test_import_takes_at_most_200_ms():
    code = "import time; t = time.perf_counter(); import kit; "
    code += "print(time.perf_counter() - t)"
    command = [sys.executable, "-c", code]
    times = [float(subprocess.check_output(command)) for _ in range(7)]
    print(f"import kit: median {1000 * statistics.median(times):.0f} ms of 7")
    assert statistics.median(times) <= 0.2


def test_drawing_photos_takes_at_most_10_s(tmp_path, monkeypatch):
    monkeypatch.setenv("KIT_CACHE", str(tmp_path))
    start = time.perf_counter()
    kit.data.photos()
    seconds = time.perf_counter() - start
    print(f"1024 photos: {seconds:.1f} s")
    assert seconds <= 10


def test_interrupting_a_cell_takes_at_most_2_s():
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3")
    try:
        client.execute("import kit, torch", reply=True, timeout=60)
        process = psutil.Process(manager.provisioner.process.pid)
        before = set(process.children(recursive=True))
        times = []
        for wait in (1.5, 3.0, 4.3):
            message = client.execute(CELL)
            time.sleep(wait)
            start = time.perf_counter()
            manager.interrupt_kernel()
            reply = client._recv_reply(message, timeout=30)
            times.append(time.perf_counter() - start)
            assert reply["content"]["ename"] == "KeyboardInterrupt"
            left = set(process.children(recursive=True)) - before
            assert not list(filter(is_running_worker, left))
        print("interrupts:", ", ".join(f"{t:.2f} s" for t in times))
        assert max(times) <= 2.0
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
