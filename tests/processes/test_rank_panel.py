"""A panel over ranks that hang: Stop, and Stop again, as a reader presses them."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist
from helpers import wait_until

import kit

#: A hanging collective would keep the panel busy for so long; readers do not wait.
TIMEOUT, PATIENCE = 40, 15


@pytest.fixture
def ranks():
    with kit.start_ranks(2, timeout=TIMEOUT) as started:
        yield started


def train(*, flag):
    """Train until rank 1 does not come to a collective."""
    while True:
        yield 1
        if dist.get_rank() == 1:
            flag.touch()
            time.sleep(3600)
        dist.barrier()


def test_stop_pressed_twice_ends_a_hanging_collective(
    ranks, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("kit.progress._LONG_STEP_SECONDS", 1.0)
    flag = tmp_path / "hangs"
    panel = kit.explore(train, on=ranks, seconds=60.0, flag=flag)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(panel.run)
        wait_until(flag.exists, 30)
        begun = time.monotonic()
        panel.stop()
        time.sleep(1.0)
        panel.stop()
        time.sleep(0.3)
        assert not running.done(), "the step may still end by itself"
        while not running.done():
            time.sleep(0.5)
            panel.stop()
        assert time.monotonic() - begun < PATIENCE
    assert running.result().outcome == "stopped"
    assert "no step has ended for" in capsys.readouterr().err
    assert ranks.run(dist.get_rank) == [0, 1]
