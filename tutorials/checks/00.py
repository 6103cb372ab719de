"""Checks of chapter 00's exercises."""

import itertools

from torch.optim.optimizer import register_optimizer_step_post_hook


def one_yield(my_loop):
    """Yield the number of items after each step of the optimizer, forever."""
    steps = []

    def count_step(*_):
        steps.append(1)
        assert len(steps) <= 30, "it makes 31 steps without a yield"

    hook = register_optimizer_step_post_hook(count_step)
    try:
        for batch_size in (16, 5):
            steps.clear()
            generator = my_loop(batch_size=batch_size)
            for number, items in enumerate(itertools.islice(generator, 30), 1):
                assert items == batch_size, (
                    f"with batch_size={batch_size} a step yields {items!r}"
                )
                assert len(steps) == number, (
                    f"at yield {number} the optimizer has made {len(steps)} steps: "
                    "yield once after each step"
                )
            assert len(steps) == 30, f"it ends after {len(steps)} steps: loop forever"
    finally:
        hook.remove()
    return "your loop is an experiment; try kit.measure(my_loop)."


def bare_yield(train_and_evaluate):
    """Yield after each of three steps, and without a number after an evaluation."""
    done = []
    found = []

    def train_step():
        done.append("train")
        assert len(done) < 10, "it makes 9 steps without a yield"

    training = train_and_evaluate(train_step, lambda: done.append("evaluate"))
    for items in itertools.islice(training, 8):
        found.append((*done, items))
        done.clear()
    step = ("train", 8)
    right = [step, step, step, ("evaluate", None)] * 2
    assert found == right, f"it does and yields {found}; {right} is right"
    return "evaluation is left out, training is not."
