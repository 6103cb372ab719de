"""On a device with a queue: time is what overlaps, and nobody waits in a stretch."""

import itertools

import pytest

import kit

pytestmark = pytest.mark.usefixtures("device")

LEAST_STEPS = 20


class LazyTensor:
    """A loss on the fake device: reading it waits for the queue."""

    def __init__(self, device, value):
        self.device = device
        self.value = value

    def numel(self):
        return 1

    def detach(self):
        return self

    def clone(self):
        return LazyTensor(self.device, self.value)

    def __float__(self):
        self.device.synchronize()
        return self.value


def queued(clock, device, host, work):
    """An experiment: seconds on the host and on the device in each step."""

    def train(*, faster=1.0):
        for number in itertools.count():
            clock.work(host / faster)
            device.enqueue(work / faster)
            clock.events.append("step")
            yield 1, {"loss": LazyTensor(device, float(number))}

    return train


@pytest.mark.parametrize("longer", [0.001, 0.5])
@pytest.mark.parametrize("host_share", [0.6, 1.0])
def test_what_overlaps_between_steps_is_counted_once(clock, device, host_share, longer):
    """Also of two that take turns, and of steps of half a second."""
    work_share = 1.6 - host_share
    train = queued(clock, device, host_share * longer, work_share * longer)
    made = kit.compare(train, faster=[1.0, 2.0], seconds=2.0)
    assert made.baseline.step_seconds == pytest.approx(longer, rel=0.05)
    assert made.ratio.value == pytest.approx(2.0, rel=0.05)
    assert made.ratio.verdict == "faster"
    for trial in made.trials:
        for run in trial.runs:
            assert min(stretch.steps for stretch in run.stretches) >= LEAST_STEPS


def test_a_device_is_waited_for_and_read_between_stretches_only(clock, device):
    trial = kit.measure(queued(clock, device, 0.0001, 0.005), seconds=2.0)
    groups = []  # of steps without a wait in between
    for event, group in itertools.groupby(clock.events):
        if event == "step":
            groups.append(len([*group]))
    timed = [stretch.steps for run in trial.runs for stretch in run.stretches]
    assert [count for count in groups if count >= LEAST_STEPS] == timed
    for run in trial.runs:
        losses = run.metrics["loss"]
        assert losses == [losses[0] + number for number in range(run.steps)]


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
