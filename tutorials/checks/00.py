"""Checks of chapter 00's exercises: each calls the reader's code and watches it."""

import inspect
import itertools

from torch.optim.optimizer import register_optimizer_step_post_hook


def one_yield(my_loop):
    """One `yield` per step, after it, for ever; the knob sets the number of items."""
    steps = []
    hook = register_optimizer_step_post_hook(lambda *_: steps.append(1))
    try:
        for batch_size in (16, 5):
            generator = my_loop(batch_size=batch_size)
            assert inspect.isgenerator(generator), (
                "my_loop returns no generator: does it say `yield`?"
            )
            steps.clear()
            for number, items in enumerate(itertools.islice(generator, 30), 1):
                assert items == batch_size, (
                    f"with batch_size={batch_size} a step says that it handled {items}"
                )
                assert len(steps) == number, (
                    f"at yield {number} the optimizer has made {len(steps)} steps: "
                    "yield once after each step"
                )
            assert len(steps) == 30, (
                f"it ended after {len(steps)} steps: put `while True:` around the loop"
            )
            generator.close()
    finally:
        hook.remove()
    return "your loop is an experiment; try kit.measure(my_loop)."


class SlowingMachine:
    """A machine on which each step takes longer than the one before."""

    def __init__(self, ratio):
        self.ratio, self.now, self.steps = ratio, 0.0, []

    def work(self, name, seconds):
        self.now += seconds * (1 + 0.01 * len(self.steps))
        self.steps.append(name)

    def a(self):
        self.work("a", self.ratio)

    def b(self):
        self.work("b", 1.0)

    def clock(self):
        return self.now


def turns(compare_in_turns):
    """The ratio is right on a machine that slows down: the order is A B B A."""
    for ratio in (1.0, 1.25):
        machine = SlowingMachine(ratio)
        found = compare_in_turns(machine.a, machine.b, machine.clock)
        order = "".join(machine.steps)
        shown = order[:12] + "…" * (len(order) > 12)
        assert order, "it made no step: call a() and b()"
        assert isinstance(found, float), f"it returns {found!r}, not a number"
        assert abs(found - ratio) < 0.002, (
            f"a step of a takes {ratio:g} × as long as one of b; it returns "
            f"{found:.3f}, with the steps {shown}: the machine slows down meanwhile"
        )
    return "the slow machine does not show."


def bare_yield(train_and_evaluate):
    """Three counted steps, then an evaluation before a bare `yield`, for ever."""
    events = []
    generator = train_and_evaluate(
        lambda: events.append("step"), lambda: events.append("evaluate")
    )
    assert inspect.isgenerator(generator), "it is no generator: does it say `yield`?"
    expected = [8, 8, 8, None] * 5
    wanted = ["step", "step", "step", "evaluate"] * 5
    for number, items in enumerate(itertools.islice(generator, 20)):
        assert items == expected[number], (
            f"yield {number + 1} says {items!r}, where {expected[number]!r} is right"
        )
        assert events == wanted[: number + 1], (
            f"at yield {number + 1} it has done {events[-4:]}: each yield comes right "
            "after what it speaks of"
        )
    assert len(events) == 20, "it ended: put `while True:` around it"
    generator.close()
    return "evaluation is left out, training is not."
