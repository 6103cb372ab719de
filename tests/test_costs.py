"""Cost models: formulas hold at their edges, and against what is simulated."""

import heapq
import math

import pytest

from kit.costs import (
    LINKS,
    Line,
    Link,
    fit_line,
    predict_data_parallel,
    predict_loader,
)


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


# Data parallel


def simulate_ring(ranks, numbers, *, latency=0.0, speed=math.inf):
    """All-reduce vectors around a ring; return them, and seconds for 1-byte numbers.

    First every chunk travels once around and grows to its sum, then once more to be
    known everywhere. In each round all ranks send a chunk to their neighbour at once.
    """
    have = [
        [float(rank + number) for number in range(numbers)] for rank in range(ranks)
    ]
    chunks = [range(numbers)[chunk::ranks] for chunk in range(ranks)]
    seconds = 0.0
    for turn in range(2 * (ranks - 1)):
        before = [list(vector) for vector in have]
        for rank in range(ranks):
            chunk = chunks[(rank - turn) % ranks]
            goal = have[(rank + 1) % ranks]
            for number in chunk:
                kept = goal[number] if turn < ranks - 1 else 0.0
                goal[number] = kept + before[rank][number]
        seconds += latency + numbers / ranks / speed
    return have, seconds


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_bytes_are_those_of_a_simulated_ring(ranks):
    numbers = 24
    found, seconds = simulate_ring(ranks, numbers, latency=0.25, speed=8.0)
    total = [sum(range(n, n + ranks)) for n in range(numbers)]
    assert found == [total] * ranks
    predicted = predict_data_parallel(
        ranks,
        compute_seconds=0.0,
        latency_seconds=2 * (ranks - 1) * 0.25,
        gradient_bytes=numbers,
        bytes_per_second=8.0,
    )
    assert seconds == pytest.approx(predicted)


def test_one_rank_alone_sends_nothing():
    link = {"latency_seconds": 1.0, "gradient_bytes": 1e9, "bytes_per_second": 1.0}
    assert predict_data_parallel(1, compute_seconds=0.5, **link) == 0.5


def test_latency_ends_the_scaling_of_small_steps_and_bytes_that_of_large_models():
    link = {"latency_seconds": 0.002, "bytes_per_second": 1e9}

    def gain(compute, size):
        each = {"compute_seconds": compute, "gradient_bytes": size}
        return compute / predict_data_parallel(2, **each, **link)

    assert gain(0.2, 1e5) > 1.9
    assert gain(0.002, 1e5) < 1.0
    assert gain(0.2, 2e8) < 1.0


def test_without_communication_ranks_divide_the_time():
    for ranks in range(1, 9):
        assert predict_data_parallel(ranks, compute_seconds=0.8) == 0.8 / ranks


def test_many_ranks_send_almost_twice_the_gradients():
    size = {"compute_seconds": 0.0, "gradient_bytes": 1.0, "bytes_per_second": 1.0}
    sent = [predict_data_parallel(n, **size) for n in (2, 3, 100_000)]
    assert sent == pytest.approx([1, 4 / 3, 2], rel=1e-4)


# What grows with the batch


@pytest.mark.parametrize("fixed, each", [(0.5, 0.25), (0.0, 3e-6), (2e9, 1e3)])
def test_a_line_through_two_sizes_goes_through_both(fixed, each):
    line = fit_line([1, 1000], [fixed + each, fixed + 1000 * each])
    assert line.predict(50) == pytest.approx(fixed + 50 * each)
    assert line.find_size(line.predict(70)) == pytest.approx(70)


def test_relative_errors_count_the_same_at_every_size():
    sizes = [1, 10, 100]
    exact = [1.0, 10.0, 100.0]
    line = fit_line(sizes, [1.1 * exact[0], 0.9 * exact[1], exact[2]])
    errors = [line.predict(b) / a - 1 for b, a in zip(sizes, exact, strict=True)]
    assert max(map(abs, errors)) < 0.12


def test_the_knee_reaches_its_share_of_the_best_rate():
    line = Line(fixed=0.3, each=0.02)
    knee = line.find_knee(0.9)
    assert knee / line.predict(knee) == pytest.approx(0.9 / line.each)
    assert Line(0.0, 1.0).find_knee() == 0
    assert math.isinf(Line(1.0, 0.0).find_knee())
    assert math.isinf(Line(1.0, 0.0).find_size(2.0))


# Links


def test_named_links_are_those_of_the_standards():
    gbit = {name: round(8e-9 * link.bytes_per_second) for name, link in LINKS.items()}
    assert gbit == {
        "Ethernet, 1 Gbit/s": 1,
        "Ethernet, 100 Gbit/s": 100,
        "PCIe 5 x16": 504,  # 32 GT/s on 16 lanes, 128 bits in 130
        "InfiniBand NDR": 400,
        "NVLink 4": 3600,
        "NVLink 5": 7200,
    }
    assert round(32 * 16 * 128 / 130) == 504
    assert all(1e-6 < link.latency_seconds < 1e-4 for link in LINKS.values())


def test_on_a_slowed_link_a_message_takes_so_many_times_as_long():
    link = LINKS["InfiniBand NDR"]
    for factor in (0.5, 1, 1000):
        slowed = link.slowed(factor)
        assert slowed.latency_seconds == pytest.approx(factor * link.latency_seconds)
        assert slowed.bytes_per_second == pytest.approx(link.bytes_per_second / factor)


# What cannot be: an error names the function, the knob and its value

LOAD, COMPUTE = {"load_seconds": 1.0}, {"compute_seconds": 1.0}


@pytest.mark.parametrize(
    ("call", "arguments", "amounts", "words"),
    [
        (predict_loader, [-1], LOAD, "num_workers=-1"),
        (predict_loader, [1], {"load_seconds": math.nan}, "waiting_seconds=nan"),
        (predict_loader, [1], LOAD | {"waiting_seconds": 2.0}, "waiting_seconds=-1.0"),
        (predict_loader, [1], LOAD | {"cores": 0}, "cores=0"),
        (predict_data_parallel, [0], COMPUTE, "ranks=0"),
        (predict_data_parallel, [2], COMPUTE | {"bytes_per_second": 0}, "second=0"),
        (predict_data_parallel, [2], COMPUTE | {"bytes_per_second": math.nan}, "=nan"),
        (fit_line, [[1], [1.0]], {}, r"sizes=\[1\].*two or more different"),
        (fit_line, [[4, 4], [1.0, 1.0]], {}, r"sizes=\[4, 4\]"),
        (fit_line, [[1, 2], [1.0]], {}, r"amounts=\[1.0\]"),
        (fit_line, [[0, 2], [1.0, 2.0]], {}, r"sizes=\[0, 2\]"),
        (Link(1.0, 1.0).slowed, [0], {}, "factor=0"),
    ],
)
def test_amounts_that_cannot_be(call, arguments, amounts, words):
    with pytest.raises(ValueError, match=rf"{call.__name__}\(\): .*{words}"):
        call(*arguments, **amounts)
