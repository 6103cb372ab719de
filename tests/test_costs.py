"""Cost models: formulas beside what is simulated, and what PyTorch really keeps."""

import gc
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import costs
import links
import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, strategies as st
from torch import nn
from torch.autograd.profiler import profile
from torch.distributed import distributed_c10d as c10d
from torch.utils.checkpoint import checkpoint

from kit.tuning import Line, fit_line

SOME = st.integers(1, 1000).map(lambda n: n / 100)


@given(st.dictionaries(st.integers(1, 500), SOME, min_size=2, max_size=6))
def test_a_fitted_line_is_that_of_least_relative_errors(points):
    sizes, amounts, ones = [*points], [*points.values()], np.ones(len(points))
    rows = (np.stack([ones, sizes]) / amounts).T
    wanted = rows @ np.linalg.lstsq(rows, ones)[0]
    found = rows @ fit_line(sizes, amounts)
    assert found == pytest.approx(wanted, abs=1e-6)


@given(SOME, SOME, st.floats(0.05, 0.95))
def test_a_line_finds_its_sizes_again_and_where_rates_end_to_grow(fixed, each, share):
    line = Line(fixed, each)
    assert line.find_size(line.predict(70)) == pytest.approx(70)
    knee = line.find_knee(share)
    assert knee / (fixed + each * knee) == pytest.approx(share / each)


@pytest.mark.parametrize(("sizes", "amounts"), [([4, 4], [1, 1]), ([1, 2], [1, 0])])
def test_no_line_is_fitted_to_what_has_none(sizes, amounts):
    with pytest.raises(ValueError, match=rf"fit_line\(\): sizes=\[{sizes[0]}"):
        fit_line(sizes, amounts)


def test_the_simulated_link_gives_right_sums_after_the_predicted_delay(monkeypatch):
    """Ranks are threads of this process, over gloo, on a clock that stands."""
    ranks, size, store, waits = 3, 4 * 24, dist.HashStore(), []
    clock = SimpleNamespace(perf_counter=lambda: 0.0, sleep=waits.append)
    monkeypatch.setattr(links, "time", clock)

    def exchange(rank):
        inner = dist.ProcessGroupGloo(store, rank, ranks, timedelta(seconds=20))
        group = links.LinkGroup(inner)
        group.link = costs.Link(latency_seconds=0.02, bytes_per_second=4e6)
        mine, sums = torch.full([24], float(rank)), torch.full([24], float(rank))
        gathered = [torch.empty(24) for _ in range(ranks)]
        group.allreduce([sums], c10d.AllreduceOptions()).wait()
        group.allgather([gathered], [mine], c10d.AllgatherOptions()).wait()
        group.broadcast([mine], c10d.BroadcastOptions()).wait()
        return sums[0].item(), [x[0].item() for x in gathered], group.sent_bytes

    with ThreadPoolExecutor(ranks) as pool:
        found = list(pool.map(exchange, range(ranks)))
    assert found == 3 * [(3.0, [0.0, 1.0, 2.0], 4 * size // 3 + 2 * size + 2 * size)]
    link = {"latency_seconds": 4 * 0.02, "bytes_per_second": 4e6}
    reduced = costs.predict_data_parallel(
        ranks, compute_seconds=0, gradient_bytes=size, **link
    )
    each = 2 * (0.02 + size / 4e6)  # two steps of an all-gather, and of a broadcast
    ends = [reduced, reduced + each, reduced + 2 * each]
    assert sorted(waits) == pytest.approx(sorted(ranks * ends))


class Recomputed(nn.Sequential):
    def forward(self, x):
        for block in self:
            x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
        return x


def stack():
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.Tanh())


CONVOLUTIONS = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten()
)


@pytest.mark.parametrize(
    ("model", "batch"),
    [
        (CONVOLUTIONS, torch.zeros(8, 3, 32, 32)),
        (nn.TransformerEncoderLayer(64, 4), torch.zeros(8, 32, 64)),
        (Recomputed(stack(), stack()), torch.zeros(64, 64)),
    ],
    ids=["convolutions", "attention", "checkpointed"],
)
def test_a_step_keeps_what_was_predicted(model, batch):
    predicted = costs.predict_step_memory(model, batch)
    gc.collect()  # what earlier tests left is not freed meanwhile
    with profile(profile_memory=True) as watched:
        loss = model(batch + 0).sum()
    kept = sum(event.self_cpu_memory_usage for event in watched.function_events)
    # The allocator hands out no less than asked for; counters and masks are small.
    assert kept - loss.nbytes == pytest.approx(predicted.activations, 0.01, 256)
