"""`tutorials/links.py`: messages come as late as over that link, and are counted."""

import time

import psutil
import pytest
import torch
import torch.distributed as dist
from links import simulate_link
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import kit
from kit.costs import LINKS, Link
from kit.ranks import RankError

SLOW = Link(latency_seconds=0.02, bytes_per_second=4e6)
MANY = 50_000  # numbers of four bytes each
#: Of two ranks each sends a half, twice.
PREDICTED = 2 * (SLOW.latency_seconds + 2 * MANY / SLOW.bytes_per_second)


@pytest.fixture(scope="module")
def ranks():
    with kit.start_ranks(2) as started:
        yield started


def wait_for(call):
    """Return the seconds from here until all ranks are through with a call."""
    dist.barrier()
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def add_up(link, times=1):
    group = simulate_link(link)
    x = torch.arange(float(MANY)) + dist.get_rank()

    def call():
        works = [
            dist.all_reduce(part, group=group, async_op=True) for part in x.chunk(times)
        ]
        for work in works:
            work.wait()

    seconds = wait_for(call)
    wanted = 2 * torch.arange(float(MANY)) + 1
    return seconds, group.sent_bytes, torch.equal(x, wanted)


def test_a_message_takes_as_long_as_the_formula_says(ranks):
    for seconds, _, right in ranks.run(add_up, SLOW):
        assert right
        assert PREDICTED <= seconds < PREDICTED + 1


def test_messages_wait_for_each_other(ranks):
    # The bytes are the same, and each of the four pays the latency of two steps.
    predicted = PREDICTED + 3 * 2 * SLOW.latency_seconds
    for seconds, _, right in ranks.run(add_up, SLOW, 4):
        assert right
        assert predicted <= seconds < predicted + 1


def test_without_a_link_nothing_waits(ranks):
    for seconds, sent, right in ranks.run(add_up, None):
        assert right and sent == 4 * MANY
        assert seconds < PREDICTED


def test_what_is_counted_is_what_the_machine_has_sent(ranks):
    def add_up_much():
        group, x = simulate_link(), torch.zeros(5_000_000)
        dist.barrier()
        begun = psutil.net_io_counters(pernic=True)["lo"].bytes_sent
        for _ in range(5):
            dist.all_reduce(x, group=group)
        dist.barrier()
        ended = psutil.net_io_counters(pernic=True)["lo"].bytes_sent
        return group.sent_bytes, ended - begun

    for counted, seen in ranks.run(add_up_much):
        assert 0.9 < 2 * counted / seen < 1.1  # two ranks, and headers


def test_all_gather_and_broadcast(ranks):
    def exchange():
        group = simulate_link(SLOW)
        mine = torch.full((3,), dist.get_rank() + 1.0)
        told = [torch.empty(3) for _ in range(2)]
        gathering = wait_for(lambda: dist.all_gather(told, mine, group=group))
        sent = group.sent_bytes
        sending = wait_for(lambda: dist.broadcast(mine, src=1, group=group))
        return torch.cat(told).tolist(), mine.tolist(), gathering, sending, sent

    for told, mine, gathering, sending, sent in ranks.run(exchange):
        assert told == [1, 1, 1, 2, 2, 2] and mine == [2, 2, 2]
        assert sent == 12
        assert min(gathering, sending) >= SLOW.latency_seconds


def test_a_future_and_what_follows_it(ranks):
    def follow():
        group, x = simulate_link(SLOW), torch.ones(2)
        future = dist.all_reduce(x, group=group, async_op=True).get_future()
        return future.then(lambda done: done.value()[0] + 1).wait().tolist()

    assert ranks.run(follow) == [[3, 3], [3, 3]]


@pytest.mark.parametrize("hook", ["none", "16 bits", "power"])
def test_ddp_trains_over_it_as_without(ranks, hook):
    def gradients(link):
        torch.manual_seed(0)
        group = simulate_link(link)
        net = DistributedDataParallel(nn.Linear(40, 30), process_group=group)
        if hook == "16 bits":
            net.register_comm_hook(group, default_hooks.bf16_compress_hook)
        if hook == "power":
            state = powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=2)
            net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        torch.manual_seed(dist.get_rank())
        for step in range(4):
            if step == 2:  # by then DDP has told all ranks the order of its buckets
                begun = group.sent_bytes
            net(torch.rand(5, 40)).square().sum().backward()
        return [p.grad.clone() for p in net.parameters()], group.sent_bytes - begun

    (fast, sent), (also, _) = ranks.run(gradients, None)
    (slow, again), _ = ranks.run(gradients, Link(0.001, 1e9))
    torch.testing.assert_close(slow, fast)
    torch.testing.assert_close(also, fast)
    assert sent == again
    size = 2 * 4 * (40 * 30 + 30)  # two steps
    assert sent == {"none": size, "16 bits": size / 2, "power": sent}[hook]
    assert sent <= size and (hook != "power" or sent < size / 4)


def test_a_timeline_has_it_in_the_lane_of_the_exchange(ranks):
    def train(*, link=None):
        """Add up."""
        group = simulate_link(link)
        while True:
            dist.all_reduce(torch.ones(2), group=group)
            yield 1

    told = kit.timeline(train, on=ranks, link=LINKS["Ethernet, 1 Gbit/s"], steps=2).alt
    assert "rank 0: exchange: " in told and "all_reduce" in told


def test_what_it_does_not_carry_is_refused(ranks):
    def scatter():
        dist.reduce_scatter(torch.ones(1), [torch.ones(1)] * 2, group=simulate_link())

    with pytest.raises(RankError, match="carries all_reduce, all_gather and broadcast"):
        ranks.run(scatter)


@pytest.mark.parametrize("link", [1e9, "NVLink 4", (1e-6, 1e9)])
def test_no_link(link):
    with pytest.raises(TypeError, match=r"simulate_link\(link=.*is no link"):
        simulate_link(link)
