"""Checks of chapter 18's exercises: which card for which training, a benchmark."""

from kit.teaching import expect

# 1. Which card?

_CARDS = {
    "small": {"flops": 65e12, "bandwidth": 320e9, "price": 0.5},
    "middle": {"flops": 312e12, "bandwidth": 2e12, "price": 1.5},
    "large": {"flops": 2250e12, "bandwidth": 8e12, "price": 5.0},
}


def choose(choose):
    """The card on which a step costs least, host time included."""

    names = ("flops", "bytes", "operations", "host")
    expect(
        lambda *training: choose(dict(zip(names, training, strict=True)), _CARDS),
        [
            ((1e12, 2e9, 0, 0.3), "small"),
            ((6e13, 1e10, 0, 0.1), "middle"),
            ((5e14, 2e11, 900, 0.0), "large"),
            ((2e11, 4e10, 300, 0.0), "large"),
            ((1e9, 1e8, 9000, 0.0), "small"),
        ],
        hint="These are flops, bytes, operations and host; the card's price is for all "
        "seconds, also the host's.",
    )
    return "each training buys the card on which its steps are cheapest."


# 2. Find the mistake


class Device:
    """A device with a clock of its own: it queues products, and the first one is slow.

    `multiply(n)` returns at once, like a launch. `wait()` returns when all is done.
    """

    def __init__(self, flops, setup):
        self.flops = flops
        self.setup = setup
        self.time = 0.0
        self.busy_until = 0.0

    def now(self):
        """Return the seconds; a look takes some, so that no loop waits forever."""
        self.time += 1e-6
        return self.time

    def multiply(self, n):
        """Queue the product of two n × n matrices."""
        self.time += 5e-6
        cost = 2 * n**3 / self.flops + self.setup
        self.setup = 0.0
        self.busy_until = max(self.time, self.busy_until) + cost

    def wait(self):
        """Wait until all that was queued is done."""
        self.time = max(self.time, self.busy_until)


def boast(measure):
    """It finds a device's FLOP/s, whatever the size, the speed and the first call."""
    expect(
        lambda n, flops, setup: measure(Device(flops, setup), n),
        [
            ((4096, 9e14, 0.5), 9e14),
            ((8192, 2e15, 0.1), 2e15),
            ((2048, 5e13, 1.0), 5e13),
        ],
        rel=0.05,
        hint="These are n, the device's FLOP/s and the seconds that its first product "
        "takes to set things up. Does the clock stop when all is done, and does the "
        "first product count?",
    )
    return "it finds what the device does, and no more."
