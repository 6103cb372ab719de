"""On a device with a queue: time is what overlaps, and nobody waits in a stretch."""

import itertools

import pytest
from helpers import LazyTensor

import kit

pytestmark = pytest.mark.usefixtures("device")

LEAST_STEPS = 20
#: Milliseconds that a step of training takes, and shares of host and device.
PACES = [1, 50, 500]
SHARES = {"device-bound": (0.6, 1.0), "host-bound": (1.0, 0.6)}


def queued(clock, device, host, work, *, loss=False, length=10**9, end=None):
    """An experiment: seconds on the host and on the device in each step."""

    def train(*, faster=1.0):
        for number in range(length):
            clock.work(host / faster)
            device.enqueue(work / faster)
            clock.events.append("step")
            yield (1, {"loss": LazyTensor(device, float(number))}) if loss else 1
        if end is not None:
            end()

    return train


@pytest.mark.parametrize("milliseconds", PACES)
@pytest.mark.parametrize("shares", SHARES.values(), ids=SHARES)
def test_what_overlaps_between_steps_is_counted_once(
    clock, device, shares, milliseconds
):
    host, work = (share * milliseconds / 1000 for share in shares)
    trial = kit.measure(queued(clock, device, host, work), seconds=1.0)
    assert trial.step_seconds == pytest.approx(milliseconds / 1000, rel=0.05)
    steps = [stretch.steps for run in trial.runs for stretch in run.stretches]
    assert min(steps) >= LEAST_STEPS


@pytest.mark.parametrize("milliseconds", PACES)
def test_two_that_take_turns_overlap_as_each_of_them_alone(clock, device, milliseconds):
    host, work = 0.6 * milliseconds / 1000, milliseconds / 1000
    train = queued(clock, device, host, work)
    made = kit.compare(train, faster=[1.0, 2.0], seconds=2.0)
    assert made.ratio.value == pytest.approx(2.0, rel=0.05)
    assert made.ratio.verdict == "faster"
    assert made.baseline.step_seconds == pytest.approx(milliseconds / 1000, rel=0.05)
    for trial in made.trials:
        for run in trial.runs:
            assert min(stretch.steps for stretch in run.stretches) >= LEAST_STEPS


@pytest.mark.parametrize("loss", [False, True])
def test_a_device_is_waited_for_and_read_between_stretches_only(clock, device, loss):
    train = queued(clock, device, 0.0001, 0.005, loss=loss)
    trial = kit.measure(train, seconds=2.0)
    groups = []  # of steps without a wait in between
    for event, group in itertools.groupby(clock.events):
        if event == "step":
            groups.append(len([*group]))
    timed = [stretch.steps for run in trial.runs for stretch in run.stretches]
    assert [count for count in groups if count >= LEAST_STEPS] == timed
    for run in trial.runs:
        losses = run.metrics.get("loss", [])
        assert (
            losses == [losses[0] + n for n in range(run.steps)] if loss else not losses
        )
    assert ("read" in clock.events) is loss


def test_what_is_queued_in_a_start_or_before_it_is_in_no_stretch(clock, device):
    train = queued(clock, device, 0.0001, 0.005)

    def starts():
        device.enqueue(0.3)
        try:
            yield from train()
        finally:
            device.enqueue(5.0)  # when it is closed

    trial = kit.measure(starts, seconds=3.0)
    assert trial.setup_seconds == pytest.approx([0.3051] * 5, abs=1e-3)
    assert trial.step_seconds == pytest.approx(0.005, rel=0.02)


def test_peak_memory_is_that_of_the_device(clock, device):
    def train(*, size=1):
        device.allocate(1_000_000 * size)
        try:
            while True:
                clock.work(0.01)
                device.allocate(500_000)
                device.allocate(-500_000)
                yield 1
        finally:
            device.allocate(-1_000_000 * size)

    made = kit.compare(train, of="peak_memory_bytes", size=[1, 4])
    assert made.ratio.value == pytest.approx(4.5 / 1.5)
    assert made.ratio.verdict == "more"
    assert made.baseline.peak_memory_bytes == 1_500_000
