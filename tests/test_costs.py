"""Cost models: formulas hold at their edges, and against a simulated loader."""

import heapq
import inspect
import math

import pytest

from kit.costs import predict_loader


def simulate(workers, *, load, waiting=0.0, step=0.0, cores=math.inf, batches=400):
    """Return seconds per batch of a loader whose workers make two batches ahead.

    Waiting needs no core; what computes takes one for a time slice, in turn.
    """
    slice_seconds = load / 50
    need = dict.fromkeys(range(workers), load - waiting)
    asleep = [(waiting, worker) for worker in range(workers)]
    ahead = dict.fromkeys(range(workers), 0)
    idle, runnable = set(), []
    done, now, stepping = 0, 0.0, None
    while done < batches:
        while asleep and asleep[0][0] <= now + 1e-12:
            runnable.append(heapq.heappop(asleep)[1])
        if stepping is None and ahead[done % workers]:
            worker = done % workers  # in order
            ahead[worker] -= 1
            stepping = step
            runnable.append("main")
            if worker in idle:
                idle.remove(worker)
                heapq.heappush(asleep, (now + waiting, worker))
        served = runnable[: int(min(cores, len(runnable)))]
        runnable = runnable[len(served) :]
        if not served:
            now = asleep[0][0]
            continue
        now += slice_seconds
        for who in served:
            if who == "main":
                stepping -= slice_seconds
                if stepping > 1e-12:
                    runnable.append(who)
                else:
                    done, stepping = done + 1, None
                continue
            need[who] -= slice_seconds
            if need[who] > 1e-12:
                runnable.append(who)
                continue
            need[who] = load - waiting
            ahead[who] += 1
            if ahead[who] < 2:
                heapq.heappush(asleep, (now + waiting, who))
            else:
                idle.add(who)
    return now / batches


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(
    ("load", "waiting", "step", "cores"),
    [
        (1.0, 0.0, 0.3, math.inf),
        (1.0, 0.0, 0.3, 2),
        (1.0, 0.8, 0.1, 2),
        (1.0, 0.9, 0.02, 4),
        (0.2, 0.0, 1.0, 2),
    ],
)
def test_formula_agrees_with_a_simulated_loader(workers, load, waiting, step, cores):
    predicted = predict_loader(
        workers,
        load_seconds=load,
        waiting_seconds=waiting,
        step_seconds=step,
        cores=None if cores == math.inf else cores,
    )
    simulated = simulate(workers, load=load, waiting=waiting, step=step, cores=cores)
    assert simulated == pytest.approx(predicted, rel=0.08)


def test_without_workers_one_does_everything_in_turn():
    times = {"load_seconds": 0.08, "step_seconds": 0.03, "waiting_seconds": 0.07}
    assert predict_loader(0, **times, carry_seconds=1.0, cores=1) == 0.08 + 0.03


def test_each_of_the_three_can_set_the_pace():
    times = {"load_seconds": 0.8, "step_seconds": 0.1, "carry_seconds": 0.05}
    assert predict_loader(2, **times) == 0.4  # the workers
    assert predict_loader(100, **times) == pytest.approx(0.15)  # the main process
    assert predict_loader(100, **times, cores=2) == pytest.approx(0.475)  # the cores


def test_what_waits_needs_no_core():
    times = {"load_seconds": 0.8, "waiting_seconds": 0.7}
    assert predict_loader(8, **times, cores=2) == 0.1
    assert predict_loader(8, load_seconds=0.8, cores=2) == 0.4


def test_a_step_on_a_gpu_leaves_the_cores_to_the_workers():
    times = {"load_seconds": 0.1, "step_seconds": 0.06, "cores": 2}
    assert predict_loader(4, **times) == 0.08
    assert predict_loader(4, **times, step_cores=0.0) == 0.06
    assert predict_loader(4, **times, step_cores=2.0) == pytest.approx(0.11)


def test_more_workers_are_never_predicted_slower():
    times = {"load_seconds": 0.5, "step_seconds": 0.02, "carry_seconds": 0.01}
    rates = [predict_loader(n, **times, cores=4) for n in range(1, 40)]
    assert rates == sorted(rates, reverse=True)


def test_signature_is_the_agreed_one():
    parameters = inspect.signature(predict_loader).parameters
    defaults = {name: p.default for name, p in list(parameters.items())[2:]}
    assert defaults == {
        "step_seconds": 0.0,
        "waiting_seconds": 0.0,
        "carry_seconds": 0.0,
        "cores": None,
        "step_cores": 1.0,
    }


@pytest.mark.parametrize(
    ("workers", "times", "words"),
    [
        (-1, {"load_seconds": 1.0}, "num_workers=-1"),
        (1, {"load_seconds": math.nan}, "finite"),
        (1, {"load_seconds": 1.0, "step_seconds": -0.1}, "not below 0"),
        (1, {"load_seconds": 1.0, "waiting_seconds": 2.0}, "waiting_seconds=2.0"),
        (1, {"load_seconds": 1.0, "cores": 0}, "cores=0"),
    ],
)
def test_times_that_cannot_be(workers, times, words):
    with pytest.raises(ValueError, match=words):
        predict_loader(workers, **times)
