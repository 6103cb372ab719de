"""Checks of chapter 18's exercises: a data sheet, which card for which training."""

import math

# 1. A data sheet

_SHEETS = {
    "A": {"tflops": 1979, "sparse": True, "memory": 3.35e12, "link": 900e9, "ways": 2},
    "B": {"tflops": 312, "sparse": False, "memory": 2.0e12, "link": 300e9, "ways": 1},
    "C": {"tflops": 4500, "sparse": True, "memory": 8e12, "link": 1800e9, "ways": 2},
    "D": {"tflops": 65, "sparse": False, "memory": 320e9, "link": 32e9, "ways": 2},
}


def sheet(read):
    """Dense FLOPs for each byte of memory, and a gigabyte over the link, one way."""
    for name, sheet in _SHEETS.items():
        found = read(dict(sheet))
        assert isinstance(found, list | tuple) and len(found) == 2, (
            f"sheet {name}: it returns {found!r:.60}, and should return two numbers"
        )
        dense = sheet["tflops"] * 1e12 / (2 if sheet["sparse"] else 1)
        wanted = dense / sheet["memory"], 1e9 / (sheet["link"] / sheet["ways"])
        for what, given, right in zip(
            ("FLOPs for a byte", "seconds for a gigabyte"), found, wanted, strict=True
        ):
            assert math.isclose(given, right, rel_tol=1e-3), (
                f"sheet {name}, {sheet}: {given:.4g} {what}; it is not so many. "
                "Are half of the products left out, or both ways added up?"
            )
    return "dense figures, and one way of the link."


# 2. Which card for which training

_CARDS = {
    "small": {"flops": 65e12, "bandwidth": 320e9, "price": 0.5},
    "middle": {"flops": 312e12, "bandwidth": 2e12, "price": 1.5},
    "large": {"flops": 2250e12, "bandwidth": 8e12, "price": 5.0},
}
_STEP = {"flops": 0.0, "bytes": 0.0, "operations": 0, "host": 0.0}
_TRAININGS = {
    "one that waits for data": _STEP | {"flops": 1e12, "bytes": 2e9, "host": 0.3},
    "one of large products": _STEP | {"flops": 5e14, "bytes": 2e11, "operations": 900},
    "one that moves bytes": _STEP | {"flops": 2e11, "bytes": 4e10, "operations": 300},
    "one of tiny operations": _STEP | {"flops": 1e9, "bytes": 1e8, "operations": 9000},
    "a large one that waits": _STEP | {"flops": 6e13, "bytes": 1e10, "host": 0.1},
}


def choose(choose):
    """The card on which a step costs least, host time included."""
    for name, training in _TRAININGS.items():
        cards = {card: dict(figures) for card, figures in _CARDS.items()}
        costs = {c: _find_cost(training, figures) for c, figures in cards.items()}
        best, found = min(costs, key=costs.get), choose(dict(training), cards)
        told = ", ".join(f"{c} {1e6 * x:.3g}" for c, x in costs.items())
        assert found in cards, f"{name}: {found!r:.60} is none of {[*cards]}"
        assert found == best, (
            f"{name}: you chose {found!r}, and a million steps cost least on {best!r} "
            f"({told})"
        )
    return "each training buys the card on which its steps are cheapest."


def _find_cost(training, card):
    bounds = training["flops"] / card["flops"], training["bytes"] / card["bandwidth"]
    seconds = training["host"] + max(*bounds, 4e-6 * training["operations"])
    return seconds * card["price"] / 3600


# 3. A benchmark's claim


class Device:
    """A device with a clock of its own: it queues products, and the first one is slow.

    `multiply(n)` returns at once, like a launch. `wait()` returns when all is done.
    """

    def __init__(self, flops, setup, launch=5e-6):
        self.flops, self.setup, self.launch = flops, setup, launch
        self.time = self.busy_until = 0.0
        self.products = 0

    def now(self):
        """Return the clock's seconds."""
        return self.time

    def multiply(self, n):
        """Queue the product of two n × n matrices."""
        self.time += self.launch
        cost = 2 * n**3 / self.flops + (0.0 if self.products else self.setup)
        self.busy_until = max(self.time, self.busy_until) + cost
        self.products += 1

    def wait(self):
        """Wait until all that was queued is done."""
        self.time = max(self.time, self.busy_until)


def boast(measure):
    """It finds a device's FLOP/s, whatever the size, the speed and the first call."""
    cases = [(4096, 9e14, 0.5), (4096, 1e14, 2.0), (8192, 2e15, 0.1), (2048, 5e13, 1.0)]
    for n, flops, setup in cases:
        device = Device(flops, setup)
        found, case = measure(device, n), f"n = {n}, {flops / 1e12:g} TFLOP/s"
        assert isinstance(found, int | float), f"{case}: it returns {found!r:.60}"
        assert device.busy_until <= device.time, (
            f"{case}: it returns while products are still queued"
        )
        assert math.isclose(found, flops, rel_tol=0.05), (
            f"{case}: it finds {found / 1e12:.4g} TFLOP/s. Does the clock stop when "
            "all is done, does the first product count, how many FLOPs are in one?"
        )
    return "it finds what the device does, and no more."
