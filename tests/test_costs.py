"""Cost models: formulas beside what is simulated, and what PyTorch really keeps."""

import copy
import gc
import itertools
import math
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from types import SimpleNamespace

import costs
import links
import numpy as np
import pytest
import torch
import torch.distributed as dist
from costs import Link, predict_step_memory
from hypothesis import given, strategies as st
from torch import nn
from torch.autograd.profiler import profile
from torch.distributed.distributed_c10d import AllgatherOptions
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
    assert line.predict(50) == pytest.approx(fixed + 50 * each)
    assert line.find_size(line.predict(70)) == pytest.approx(70)
    knee = line.find_knee(share)
    assert knee / (fixed + each * knee) == pytest.approx(share / each)
    assert Line(0.0, each).find_knee() == Line(-fixed, each).find_knee() == 0
    assert Line(fixed, 0.0).find_knee() == Line(fixed, 0.0).find_size(2.0) == math.inf


IMPOSSIBLE = [([4, 4], [1.0, 1.0], r"sizes=\[4, 4\].*two or more")]
IMPOSSIBLE += [([1, 2], [3], r"amounts=\[3\]"), ([0, 2], [1, 2], r"sizes=\[0, 2\]")]
IMPOSSIBLE += [([1, 2], [1, x], rf"amounts=\[1, {x}\]") for x in (math.nan, math.inf)]
IMPOSSIBLE += [([1, x], [1, 2], rf"sizes=\[1, {x}\]") for x in (math.nan, math.inf)]


@pytest.mark.parametrize(("sizes", "amounts", "words"), IMPOSSIBLE)
def test_no_line_is_fitted_to_what_has_none(sizes, amounts, words):
    with pytest.raises(ValueError, match=rf"fit_line\(\): .*{words}"):
        fit_line(sizes, amounts)


@pytest.mark.parametrize("link", [Link(0.01, 8e6).slowed(2), None])
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_simulated_network_gives_right_sums_after_the_predicted_delay(
    monkeypatch, ranks, link
):
    """Ranks are threads of this process, over gloo, on a clock that stands."""
    waits, store = [], dist.HashStore()
    clock = SimpleNamespace(perf_counter=lambda: 0.0, sleep=waits.append)
    monkeypatch.setattr(links, "time", clock)
    size, steps = 24 * 4, [2 * (ranks - 1), ranks - 1, math.ceil(math.log2(ranks))]

    def exchange(rank):
        inner = dist.ProcessGroupGloo(store, rank, ranks, timedelta(seconds=20))
        group, mine = links.LinkGroup(inner), torch.full([24], float(rank))
        group.link, told = link, [torch.empty(24) for _ in range(ranks)]
        future = group.allreduce([x := torch.arange(24.0) + rank]).get_future()
        added = future.then(lambda done: done.value()[0] + 1).wait()
        group.allgather([told], [mine], AllgatherOptions()).wait()
        (options := dist.BroadcastOptions()).rootRank = 1
        group.broadcast([mine], options).wait()
        with pytest.raises(NotImplementedError, match="carries all_reduce, all_gather"):
            group.reduce_scatter([x], [[x]])
        return added.tolist(), torch.stack(told)[:, 0].tolist(), mine, group.sent_bytes

    with ThreadPoolExecutor(ranks) as pool:
        for added, told, mine, sent in pool.map(exchange, range(ranks)):
            assert added == [ranks * n + sum(range(ranks)) + 1 for n in range(24)]
            assert told == [*range(ranks)] and mine.unique() == 1
            assert sent == steps[0] * size / ranks + (steps[1] + steps[2]) * size
    alpha, beta = (0.02, 4e6) if link else (0.0, math.inf)
    known = {"gradient_bytes": size, "bytes_per_second": beta, "compute_seconds": 0.0}
    known["latency_seconds"] = steps[0] * alpha
    seconds = [costs.predict_data_parallel(ranks, **known)]
    seconds += [count * (alpha + size / beta) for count in steps[1:]]
    ends = [*itertools.accumulate(seconds)] * ranks
    assert sorted(waits) == pytest.approx(sorted(ends))


@pytest.mark.parametrize("name", costs.LINKS)
def test_a_link_is_in_seconds_and_in_bytes_one_way(name):
    latency, speed = costs.LINKS[name]
    bits = re.search(r"(\d+) Gbit/s", name)
    assert 1e-6 < latency < 1e-4 and 1e8 <= speed <= 9e11
    assert not bits or speed == int(bits[1]) * 1e9 / 8


class Recomputed(nn.Sequential):
    def forward(self, x):
        for block in self:
            x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
        return x


class Looking(nn.Linear):
    def forward(self, x):
        return x if super().forward(x).mean() > 0 else -x


class Viewed(nn.Linear):
    def forward(self, x):
        y = super().forward(x * MASK)
        return y[:, :16].square() + y[:, 16:].square() + y[:, ::2].sin()


MASK = torch.ones(32)  # which is no buffer


def tie():
    words, out = nn.Embedding(100, 32), nn.Linear(32, 100, bias=False)
    out.weight = words.weight
    return nn.Sequential(words, nn.Tanh(), out)


def stack(freeze=False):
    net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.Tanh())
    net[0].requires_grad_(not freeze)
    return net


def convolve():
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True)]
    layers += [nn.Dropout(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 15 * 15, 10)]
    return nn.Sequential(*layers)


#: What they are made by, and a batch; what it holds does not matter.
MODELS = {
    "convolutions": (convolve, torch.zeros(8, 3, 32, 32)),
    "attention": (partial(nn.TransformerEncoderLayer, 64, 4), torch.zeros(8, 32, 64)),
    "checkpointed": (lambda: Recomputed(stack(), stack()), torch.zeros(64, 64)),
    "tied weights": (tie, torch.zeros(8, 20, dtype=torch.long)),
    "views": (lambda: Viewed(32, 32), torch.zeros(99, 32)),
    "a frozen layer": (partial(stack, freeze=True), torch.zeros(128, 64)),
    "16 bits": (lambda: stack().bfloat16(), torch.zeros(64, 64, dtype=torch.bfloat16)),
}


def count_bytes(model, batch):
    """What the allocator gave in a forward pass and did not get back, or was kept."""
    saved = []  # the batch was there before; it counts where autograd saves it

    def note(tensor):
        saved.append(tensor.untyped_storage().data_ptr())
        return tensor

    noting = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
    gc.collect()  # what earlier tests left is not freed meanwhile
    with profile(profile_memory=True) as watched, noting:
        loss = model(batch).sum()
    found = sum(event.self_cpu_memory_usage for event in watched.function_events)
    is_kept = batch.untyped_storage().data_ptr() in saved
    return found + is_kept * batch.nbytes - loss.nbytes


@pytest.mark.parametrize(("make", "batch"), MODELS.values(), ids=MODELS)
def test_a_step_keeps_what_was_predicted_and_predicting_changes_nothing(make, batch):
    model = make()
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    with torch.inference_mode():
        found = predict_step_memory(model, batch)
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert all(type(p) is nn.Parameter and p.grad is None for p in model.parameters())
    # The allocator hands out no less than asked for; counters and masks are small.
    assert count_bytes(model, batch) == pytest.approx(found.activations, 0.01, 256)
    assert found.activations > 10_000

    adam = torch.optim.Adam(model.parameters())
    model(batch).sum().backward()
    adam.step()
    own = {x.data_ptr(): x.nbytes for x in [*model.parameters(), *model.buffers()]}
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    state = [x for some in adam.state.values() for k, x in some.items() if k != "step"]
    assert found[:3] == (sum(own.values()), gradients, sum(x.nbytes for x in state))
    assert found.total == sum(found)
    assert found.peak == found.total - min(gradients, found.activations)


class Named(nn.Module):
    """It takes its inputs as a Hugging Face model does, and returns them so."""

    def __init__(self):
        super().__init__()
        self.body = stack()

    def forward(self, *, input_ids, attention_mask=None):
        hidden = self.body(input_ids)
        return {"hidden": hidden if attention_mask is None else hidden * attention_mask}


def test_a_model_whose_inputs_have_names_is_predicted():
    model, batch = Named(), torch.zeros(64, 64)
    kept = predict_step_memory(model, input_ids=batch, state_tensors=1)
    assert kept == predict_step_memory(model.body, batch, state_tensors=1)
    both = {"input_ids": batch, "attention_mask": torch.ones(64, 1)}
    assert predict_step_memory(model, **both).activations > kept.activations


def test_a_model_that_learns_nothing_or_needs_numbers():
    found = predict_step_memory(stack().requires_grad_(False), torch.zeros(9, 64))
    assert found == (found.parameters, 0, 0, 0)
    assert predict_step_memory(nn.LSTM(8, 64), torch.zeros(5, 3, 8))[3] > 20_000
    for width, words in ((4, "Looking failed"), (5, r"Looking failed .*4, 4")):
        with pytest.raises(ValueError, match=rf"{words}[^\n]*\n.*kit\.measure"):
            predict_step_memory(Looking(4, 4), torch.zeros(2, width))
