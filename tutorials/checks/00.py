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


def honest(honest):
    """Warm-up before the clock, ten steps or more, the queue empty at both readings."""
    events, now = [], itertools.count()

    def step():
        events.append("step")

    def synchronize():
        events.append("synchronize")

    def clock():
        events.append("clock")
        return 3.0 * next(now)

    result = honest(step, synchronize, clock)
    readings = [i for i, event in enumerate(events) if event == "clock"]
    assert len(readings) >= 2, "the clock is read less than twice"
    first, last = readings[0], readings[-1]
    assert "step" in events[:first], "no warm-up: the first step is timed"
    for reading in readings:
        before = [e for e in events[:reading] if e != "clock"]
        assert before[-1] == "synchronize", (
            "the clock is read while the queue may still be busy"
        )
    timed = events[first:last].count("step")
    assert timed >= 10, f"only {timed} steps are timed: ten or more, please"
    expected = 3.0 * (len(readings) - 1) / timed
    assert isinstance(result, float) and abs(result - expected) < 1e-9, (
        f"it returns {result!r}, where {timed} steps in {expected * timed:g} s are "
        f"{expected:g} s each"
    )
    return "an honest stopwatch."


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
