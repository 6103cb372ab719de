"""What chapter 12 says of messages between ranks, on this machine: `make bench`."""

import time

import pytest

import kit
from kit.costs import LINKS, Message, Network, find_crossover, simulate_messages

#: The ring sends two million messages there.
RANKS = 1024
#: How far off the formula may be; how long a core may be busy with a simulation.
FACTOR, MOST_SECONDS = 2, 15


@pytest.fixture(autouse=True, scope="module")
def conditions():
    print(f"\n{kit.this_machine()}\n")


def ring(n):
    for step in range(2 * (n - 1)):
        yield [
            Message(rank, (rank + 1) % n, (rank - step) % n, n, step < n - 1)
            for rank in range(n)
        ]


def tree(n):
    hops = [2**i for i in range((n - 1).bit_length())]
    for hop in hops:
        yield [Message(r, r - hop) for r in range(hop, n, 2 * hop)]
    for hop in hops[::-1]:
        yield [Message(r - hop, r, adds=False) for r in range(hop, n, 2 * hop)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["Ethernet, 1 Gbit/s", "NVLink 5"])
def test_the_ring_wins_from_the_predicted_size_on_among_1024_ranks(name):
    network = Network(LINKS[name])
    crossover = find_crossover(RANKS, link=LINKS[name])
    for size, winner in ((crossover / FACTOR, tree), (crossover * FACTOR, ring)):
        times, spent = {}, {}
        for schedule in (tree, ring):
            start = time.process_time()
            times[schedule] = simulate_messages(schedule(RANKS), size, network=network)
            spent[schedule] = time.process_time() - start
        told = ", ".join(
            f"{s.__name__} {1000 * times[s]:.3f} ms (simulated in {spent[s]:.1f} s)"
            for s in times
        )
        print(f"{name}, {size / 1e6:.1f} MB: {told}")
        assert min(times, key=times.get) is winner
        assert max(spent.values()) < MOST_SECONDS
