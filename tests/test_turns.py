"""One measurement at a time in a process: who measures, who waits, who may leave."""

import contextlib
import signal
import threading
import time

import pytest
from helpers import forked, wait_until

import kit
from kit.progress import Progress, Stopped, take_turn

pytestmark = pytest.mark.usefixtures("tidy")


MADE = []


class Measurer(threading.Thread):
    """Takes a turn in a thread of its own and keeps it until it is told to let go."""

    def __init__(self, title, order, *, error=None, waits=False):
        super().__init__(daemon=True)
        self.progress, self.order = Progress(title), order
        self.let_go, self.error, self.caught = threading.Event(), error, None
        MADE.append(self)
        self.start()
        wanted = (lambda: self.progress.waiting) if waits else (lambda: self in order)
        wait_until(wanted)

    def run(self):
        try:
            with take_turn(self.progress):
                self.order.append(self)
                self.let_go.wait(20)
                if self.error is not None:
                    raise self.error
        except BaseException as caught:
            self.caught = caught

    def end(self):
        self.let_go.set()
        self.join(20)
        assert not self.is_alive()


class Call(threading.Thread):
    """A call in a thread of its own, and what came of it."""

    def __init__(self, call):
        super().__init__(daemon=True)
        self.call, self.result, self.caught = call, None, None
        self.start()

    def run(self):
        try:
            self.result = self.call()
        except BaseException as caught:
            self.caught = caught

    def end(self):
        self.join(20)
        assert not self.is_alive()
        if self.caught is not None:
            raise self.caught
        return self.result


@pytest.fixture
def order():
    """Whoever had a turn, in order; everyone is let go at the end."""
    yield []
    for measurer in MADE:
        measurer.let_go.set()
    while MADE:
        MADE.pop().end()
    # Nothing that a test leaves behind may keep another one waiting.
    with take_turn(Progress("the next test")):
        pass


def nap(*, pause=1):
    """Sleep for a while."""
    while True:
        time.sleep(0.001 * pause)
        yield 1


# In order


def test_nobody_measures_so_nobody_waits(order):
    progress = Progress("alone")
    with take_turn(progress):
        assert not progress.waiting
        assert "waiting" not in progress.text()


def test_only_one_has_the_turn(order):
    first = Measurer("first", order)
    others = [Measurer(name, order, waits=True) for name in "bcd"]
    time.sleep(0.15)
    assert order == [first]
    assert all(other.is_alive() for other in others)


def test_who_waits_says_for_whom_and_no_longer_than_that(order):
    first = Measurer("measuring train(lr=0.1)", order)
    second = Measurer("second", order, waits=True)
    third = Measurer("third", order, waits=True)
    assert "waiting" in second.progress.text()
    assert "measuring train(lr=0.1)" in second.progress.text()
    first.end()
    wait_until(lambda: len(order) == 2)
    next_one, last = (second, third) if second in order else (third, second)
    assert not next_one.progress.waiting
    wait_until(lambda: next_one.progress.title in last.progress.doing)
    assert "train" not in last.progress.text()


# Leaving


def test_who_waits_may_be_stopped_and_leaves_the_queue(order):
    first = Measurer("first", order)
    second = Measurer("second", order, waits=True)
    third = Measurer("third", order, waits=True)
    second.progress.stop()
    second.join(10)
    assert isinstance(second.caught, Stopped)
    assert order == [first], "a stop of another one must not end the first turn"
    first.end()
    wait_until(lambda: third in order)


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, Stopped, SystemExit])
def test_an_error_gives_the_turn_to_the_next(order, kind):
    first = Measurer("first", order, error=kind("as planned"))
    second = Measurer("second", order, waits=True)
    first.end()
    assert isinstance(first.caught, kind)
    wait_until(lambda: second in order)


def test_an_interrupt_while_waiting_leaves_the_queue(order):
    first = Measurer("first", order)
    progress = Progress("interrupted")
    main = threading.main_thread().ident

    def interrupt():
        wait_until(lambda: progress.waiting)
        signal.pthread_kill(main, signal.SIGINT)

    interrupter = Call(interrupt)
    with pytest.raises(KeyboardInterrupt), take_turn(progress):
        raise AssertionError("it was not this one's turn")
    interrupter.end()
    second = Measurer("second", order, waits=True)
    first.end()
    wait_until(lambda: second in order)


# Inside each other


def test_a_turn_inside_a_turn_is_taken_at_once_and_ends_only_itself(order):
    inner = Progress("inner")
    with take_turn(Progress("outer")):
        with take_turn(inner), take_turn(Progress("innermost")):
            assert not inner.waiting
        other = Measurer("other", order, waits=True)
        with contextlib.suppress(ZeroDivisionError), take_turn(Progress("fails")):
            raise ZeroDivisionError
        time.sleep(0.12)
        assert not order, "the end of an inner turn gave the outer one away"
    wait_until(lambda: other in order)


def test_a_measurement_inside_an_experiment_does_not_wait_for_itself(smoke):
    inside = []

    def outer(*, pause=1):
        inside.append(kit.measure(nap, seconds=0.02, pause=pause))
        while True:
            yield 1

    trial = Call(lambda: kit.measure(outer, seconds=0.02)).end()
    assert trial.outcome == inside[0].outcome == "complete"
    assert Call(lambda: kit.compare(outer, pause=[1, 2], seconds=0.2)).end().ratio


# Measuring


class Witness:
    """Experiments that know of each other whether two are alive at once."""

    def __init__(self):
        self.alive, self.together, self.most = set(), [], 0

    def make(self, name):
        def experiment(*, pause=1):
            key = (name, object())
            self.alive.add(key)
            try:
                self._look()
                while True:
                    time.sleep(0.001 * pause)
                    self._look()
                    yield 1
            finally:
                self.alive.discard(key)

        experiment.__name__ = name
        return experiment

    def _look(self):
        names = {name for name, _ in tuple(self.alive)}
        if len(names) > 1:
            self.together.append(names)


def test_measurements_of_several_threads_never_overlap():
    witness = Witness()
    calls = [
        Call(lambda: kit.measure(witness.make("a"), seconds=0.1)),
        Call(lambda: kit.compare(witness.make("b"), pause=[1, 2], seconds=0.5)),
        Call(lambda: kit.measure(witness.make("c"), seconds=0.1)),
    ]
    trial, comparison, other = [call.end() for call in calls]
    assert not witness.together
    assert trial.block_seconds and other.block_seconds
    assert all(trial.block_seconds for trial in comparison.trials)


def test_the_wait_is_not_measured(order):
    first = Measurer("first", order)
    call = Call(lambda: kit.measure(nap, seconds=0.05))
    time.sleep(0.6)
    assert call.is_alive()
    first.end()
    trial = call.end()
    assert trial.setup_seconds[0] < 0.5
    assert sum(block.wall_seconds for block in trial.blocks) < 0.5


def test_a_measurement_stopped_while_it_waits_says_so(order, progresses):
    first = Measurer("first", order)
    begun = []

    def train():
        begun.append(True)
        while True:
            yield 1

    call = Call(lambda: kit.measure(train, seconds=5))
    wait_until(lambda: progresses and progresses[0].waiting)
    progresses[0].stop()
    trial = call.end()
    assert trial.outcome == "stopped"
    assert not trial.block_seconds and not begun
    assert "train" in repr(trial)
    assert first.is_alive()


def test_a_comparison_stopped_while_it_waits_cannot_tell(order, progresses):
    Measurer("first", order)
    call = Call(lambda: kit.compare(nap, pause=[1, 2], seconds=5))
    wait_until(lambda: progresses and progresses[0].waiting)
    progresses[0].stop()
    comparison = call.end()
    assert {trial.outcome for trial in comparison.trials} == {"stopped"}
    assert comparison.ratio.verdict == "cannot tell"
    assert "stop" in comparison.ratio.reason.lower()


def test_what_happens_during_the_wait_does_not_disturb(order):
    first = Measurer("first", order)
    progress = Progress("waits")
    assert Call(lambda: _take(progress, lambda: None)).is_alive()
    wait_until(lambda: progress.waiting)
    progress.disturb()
    first.end()
    wait_until(lambda: not progress.waiting)
    assert not progress.disturbed
    progress.disturb()
    assert progress.disturbed


def _take(progress, act):
    with take_turn(progress):
        act()


def test_a_forked_child_does_not_wait_for_its_parent(order):
    Measurer("first", order)
    child = forked(kit.measure, nap)
    child.join(5)
    alive = child.is_alive()
    child.kill()
    assert not alive, "it waits for a thread that it does not have"
    assert child.exitcode == 0
