"""From what was measured to a verdict: which causes are suspected, and which it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kit import stats
from kit.comparison.ratio import Ratio
from kit.diagnosis.interventions import Intervention
from kit.diagnosis.operations import Work

#: A cause counts where the lower end of what its removal saves is above this fraction.
LEAST_SAVING = 0.03
#: Below this, a cause is no verdict where useful work takes most of the step.
_WORTH_A_REPAIR = 0.10
#: Useful work takes most of a step from this fraction on.
_MOST = 0.5
#: Memory traffic is "near the bandwidth" from this share of a copy's on: operations
#: write into fresh memory, and not in the order in which it lies.
_NEAR_BANDWIDTH = 0.2
_LEAST_RATE = 0.01
#: Costs of training itself: they can be lowered, seldom removed.
_NECESSARY = ("optimizer", "overhead")
#: Another number of threads is the simplest of all repairs.
_SIMPLEST = 0.6
#: Optimizers for which PyTorch has a fused step on every device.
_FUSED = ("SGD", "Adam", "AdamW", "Adagrad")


class Advice(NamedTuple):
    """What to do about a cause: what to write, what to read, and how to tell it.

    `sentence`, a line of `code` to try and the `chapter` are what a diagnosis says.
    The cheat sheet adds the `symptom` that sends a reader there, and a line of code to
    `measure` whether it is this cause; what follows a `#` says what to look at.
    """

    sentence: str
    code: str
    chapter: str
    symptom: str
    measure: str


ADVICE = {
    "input": Advice(
        "The loop waits for its data: load in worker processes, or do less per sample.",
        "DataLoader(dataset, batch_size, num_workers=2, persistent_workers=True)",
        "03 loading",
        "GPU utilisation goes up and down, or the training idles while workers are "
        "busy. A smaller model trains no faster.",
        'kit.diagnose(train).savings.get("input")  # the loop with batches at hand',
    ),
    "transfer": Advice(
        "The loop waits for batches to reach the device: pin them and do not wait.",
        "batch.to(device, non_blocking=True)  # with DataLoader(…, pin_memory=True)",
        "03 loading",
        "The GPU pauses at the start of each step, although the batches are ready.",
        'kit.timeline(train)  # is the device idle during "copies to the device"?',
    ),
    "python": Advice(
        "Code outside PyTorch takes the time: do it every hundred steps, or elsewhere.",
        "if step % 100 == 0: ...  # log, save, compute metrics",
        "02 profiling",
        "One core is busy all the time and the device is not. It pauses where the loop "
        "logs, saves or computes metrics.",
        "kit.diagnose(train).profile.lines  # your own lines, with their shares",
    ),
    "overhead": Advice(
        "Many small operations each cost more to start than to do: make them fewer and "
        "larger.",
        "model = torch.compile(model)  # or larger batches, and no loop over samples",
        "07 fewer, larger kernels",
        "One core is busy all the time and the device is not. A step with half the "
        "batch takes as long.",
        "[kit.measure(train, batch_size=n).step_seconds for n in (16, 32)]  # alike?",
    ),
    "sync": Advice(
        "The loop waits for the device at each step: read its numbers less often.",
        "if step % 100 == 0: print(loss.item())",
        "07 fewer, larger kernels",
        "GPU utilisation stays low. A profile of your Python shows `.item()`, `.cpu()` "
        "or a `print` of a tensor as the slowest line.",
        'torch.cuda.set_sync_debug_mode("warn")  # then each wait warns, with its line',
    ),
    "optimizer": Advice(
        "Updating the parameters takes the time: one operation over all of them is "
        "quicker than one for each.",
        "torch.optim.AdamW(model.parameters(), fused=True)",
        "07 fewer, larger kernels",
        "A step takes long even with a tiny batch. The model has very many parameters, "
        "or many small ones.",
        'kit.diagnose(train).shares.get("optimizer")  # the fraction of a step',
    ),
    "threads": Advice(
        "The threads do not fit the cores: there are too few, or they get in each "
        "other's way.",
        "torch.set_num_threads(2)",
        "01 how PyTorch runs",
        "All cores are busy and yet it is no faster than on a few; or one is busy and "
        "the others idle. In a container it is slower than outside.",
        "kit.this_machine().cores, torch.get_num_threads()  # and how many processes?",
    ),
    "communication": Advice(
        "The ranks wait for each other's gradients: exchange less, or less often.",
        "with model.no_sync(): ...  # on all but the last of several small batches",
        "12 communication",
        "Steps with several processes take longer than with one, though each has the "
        "same batch as before.",
        'kit.diagnose(train).shares.get("communication")  # the fraction of a step',
    ),
    "compute": Advice(
        "Good news: most of the time is useful arithmetic. Fewer bits make it cheaper.",
        "with torch.autocast(device, dtype=torch.bfloat16): ...",
        "09 mixed precision",
        "The device is busy all the time, steadily. Twice the batch takes twice as "
        "long.",
        'kit.diagnose(train).rates["compute"]  # of this machine\'s measured peak',
    ),
    "memory": Advice(
        "Most of the time goes into moving numbers through memory: fuse operations, or "
        "make the numbers smaller.",
        "model = torch.compile(model)",
        "07 fewer, larger kernels",
        "The device is busy all the time, and yet matrix products are a small part of "
        "it: activations, normalisation and copies lead the profiler's table.",
        'kit.diagnose(train).rates["memory"]  # of this machine\'s measured bandwidth',
    ),
}
#: What the cheat sheet says where no cause is found.
NO_CAUSE = Advice(
    "Nothing to repair was found.",
    "kit.diagnose(train, seconds=60)  # more seconds see smaller savings",
    "00 start here",
    "No row above fits, or each measurement says something else.",
    "kit.this_machine().noise()  # how small a difference can be seen here, now",
)


@dataclass(frozen=True)
class Evidence:
    """What a profiled run says: shares of the wall time, work, and what surrounds it.

    `shares_by_step` are those of "python", "overhead" and "loops" (updates of
    parameters outside the optimizer's step) in each step.
    """

    shares: Mapping[str, float]
    shares_by_step: Mapping[str, Sequence[float]]
    work: Work
    step_seconds: float
    optimizers: Sequence[str]
    threads: int
    cores: int
    children: int


def suspect(evidence: Evidence) -> list[Intervention]:
    """Return the interventions that may show a saving; the first is for each cause."""
    shares, cores = evidence.shares, evidence.cores
    found: list[Intervention] = []
    if shares.get("input", 0) > LEAST_SAVING or evidence.children:
        found.append(Intervention("without waiting for data", "input", cached=True))
    if shares.get("copies", 0) > LEAST_SAVING:
        found.append(Intervention("batches already there", "transfer", on_device=True))
    if shares.get("sync", 0) > LEAST_SAVING:
        found.append(Intervention("without reading numbers", "sync", unread=True))
    if shares.get("communication", 0) > LEAST_SAVING:
        found.append(Intervention("without exchange", "communication", alone=True))
    if shares.get("optimizer", 0) > LEAST_SAVING and evidence.optimizers:
        found.append(Intervention("without optimizer.step()", "optimizer", step="skip"))
        if shares["optimizer"] > _WORTH_A_REPAIR:
            fused = any(name in _FUSED for name in evidence.optimizers)
            kind = "fused" if fused else "foreach"
            found.append(Intervention(f"{kind}=True", "optimizer", step=kind))
    threads = cores if evidence.threads != cores else 1
    if cores > 1 or evidence.threads > 1:
        label = f"{threads} thread{'s' * (threads > 1)}"
        found.append(Intervention(label, "threads", threads=threads))
    if evidence.children > cores:
        found.append(Intervention(f"{cores} workers", "threads", workers=cores))
    return found


def advise(
    verdict: str | None, repairs: Mapping[str, Ratio], evidence: Evidence
) -> Advice | None:
    """Return what to do about a verdict; the code is a repair that was measured."""
    if verdict is None:
        return None
    advice = ADVICE[verdict]
    better = {name: r for name, r in repairs.items() if r.verdict == "faster"}
    if verdict == "threads" and better:
        best = max(better, key=lambda name: better[name].value)
        number, kind = best.split()
        line = {
            "thread": f"torch.set_num_threads({number})",
            "worker": f"DataLoader(dataset, batch_size, num_workers={number})",
        }
        return advice._replace(code=line[kind.rstrip("s")])
    if verdict == "optimizer":
        fused = [name for name in better if name.endswith("=True")]
        loops = max(evidence.shares_by_step.get("loops", ()), default=0.0)
        code = advice.code
        if fused and evidence.optimizers:
            code = (
                f"torch.optim.{evidence.optimizers[0]}(model.parameters(), {fused[0]})"
            )
        elif loops > evidence.shares.get("optimizer", 0.0) / 2:
            code = "torch._foreach_mul_([p.data for p in model.parameters()], 0.99)"
        elif "fused=True" in repairs:
            code = "torch.optim.SGD(model.parameters(), lr=0.1)  # less to update"
        return advice._replace(code=code)
    if verdict == "input" and evidence.children:
        return advice._replace(
            code="kit.tuning.tune_loader(make_loader)  # how many workers, measured"
        )
    return advice


def saved(ratio: Ratio) -> stats.Estimate:
    """Return the fraction of the time that something saves, of a ratio of speeds.

    >>> saved(Ratio(2.0, 1.6, 2.5, "faster"))
    Estimate(value=0.5, low=0.375, high=0.6)
    """
    return stats.Estimate(*(1 - 1 / x for x in (ratio.value, ratio.low, ratio.high)))


def estimate(shares: Sequence[float]) -> Ratio:
    """Return the ratio of speeds if a share of each step were not there.

    >>> estimate([0.5, 0.5]).value
    2.0
    """
    reason = f"by its share of {len(shares)} profiled steps: it cannot be left out"
    value, low, high = (
        1 / (1 - min(max(share, 0.0), 0.999))
        for share in stats.student_interval(shares)
    )
    if len(shares) < 2:
        reason = "one profiled step has no interval; diagnose smaller steps"
        return Ratio(value, math.nan, math.nan, "cannot tell", reason)
    return Ratio(value, low, high, stats.judge_ratio(low, high), reason)


class Conclusion(NamedTuple):
    """A verdict, or None, and why."""

    verdict: str | None
    reason: str


def conclude(
    savings: Mapping[str, Ratio],
    evidence: Evidence,
    rates: Mapping[str, float],
    removed: Mapping[str, Ratio] | None = None,
) -> Conclusion:
    """Decide which cause it is; None where none is sure.

    `rates` are the shares of the machine's peaks that "compute" and "memory" reach.
    `removed` are savings without a cause altogether, where `savings` are a repair's:
    how much a cause weighs is told by those.
    """
    fractions = {cause: saved(ratio) for cause, ratio in savings.items()}
    sure = {
        cause: fraction
        for cause, fraction in fractions.items()
        if fraction.low > LEAST_SAVING and savings[cause].verdict == "faster"
    }
    compute, memory = (
        seconds / evidence.step_seconds
        for seconds in (evidence.work.compute, evidence.work.memory)
    )
    useful = compute + memory
    weights = {
        cause: saved((removed or savings).get(cause, ratio)).value
        for cause, ratio in savings.items()
    }
    wins = [
        cause
        for cause, fraction in fractions.items()
        if fraction.low > LEAST_SAVING
        and (cause not in _NECESSARY or weights[cause] > max(compute, memory))
        and (fraction.value >= _WORTH_A_REPAIR or useful < _MOST)
    ]
    best = max(wins, key=weights.__getitem__, default=None)
    if best and "threads" in wins:
        simple = weights["threads"] >= _SIMPLEST * weights[best]
        best = "threads" if simple else best
    if best in sure:
        return Conclusion(best, "")
    may_be = [
        cause
        for cause, fraction in fractions.items()
        if cause not in (*sure, *_NECESSARY) and fraction.value >= _WORTH_A_REPAIR
    ]
    if best or may_be:  # it may well be this one, so it is none of the others
        return Conclusion(None, _explain(savings, fractions, sure))
    if useful >= _MOST and compute >= memory:
        said = f"{compute:.0%} of the step is matrix products and the like"
        if rates["compute"] >= _LEAST_RATE:  # else what they do could not be counted
            said += f", at {rates['compute']:.0%} of this machine's measured peak"
        return Conclusion("compute", said)
    if useful >= _MOST and rates["memory"] >= _NEAR_BANDWIDTH:
        return Conclusion(
            "memory",
            f"{memory:.0%} of the step moves numbers through memory, at "
            f"{rates['memory']:.0%} of this machine's measured bandwidth",
        )
    return Conclusion(None, _explain(savings, fractions, sure))


def _explain(
    savings: Mapping[str, Ratio],
    fractions: Mapping[str, stats.Estimate],
    sure: Mapping[str, stats.Estimate],
) -> str:
    """Say why there is no verdict."""
    unsure = {
        cause: fraction
        for cause, fraction in fractions.items()
        if cause not in sure and not fraction.high <= _WORTH_A_REPAIR
    }
    if unsure:
        most = max(unsure, key=lambda cause: unsure[cause].value)
        why = savings[most].reason or "the interval is too wide to tell"
        return f"removing {most!r} may save something; {why}; give it more seconds"
    if sure:
        names = ", ".join(sure)
        return f"no single cause stands out; small savings are possible ({names})"
    return f"nothing that was left out saves more than {LEAST_SAVING:.0%}"
