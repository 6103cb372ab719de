"""The causes that a diagnosis knows: one table, and from what is measured to a verdict.

A cause that can be left out has a context manager that does so. The others are told by
their share of the profiled steps: an estimate, which has no interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace

from kit import statistics
from kit.diagnosis import counterfactuals
from kit.diagnosis.counterfactuals import Change
from kit.diagnosis.profiling import Profile
from kit.figures import format_saving
from kit.measuring.ratio import Ratio

#: A cause counts where the lower end of what its removal saves is above this fraction.
LEAST_SAVING = 0.03
#: Below this, a cause is no verdict where useful work takes most of the step.
_WORTH_A_REPAIR = 0.10
#: Useful work takes most of a step from this fraction on.
_MOST = 0.5
#: Memory traffic is "near the bandwidth" from this share of a copy's on: operations
#: write into fresh memory, not in its order, and wait for each other.
_NEAR_BANDWIDTH = 0.1
#: Costs of training itself: they can be lowered, seldom removed.
_NECESSARY = ("optimizer", "overhead")
#: Another number of threads is the simplest of all repairs.
_SIMPLEST = 0.6
#: Doubts about changes on the way are about less than this factor.
_SURELY = 1.25


@dataclass(frozen=True)
class Cause:
    """A verdict: what it means, and what to do.

    `removed` is what leaving it out would be, in words; `leave_out` does so, or is None
    where it cannot be done; `suspected` says whether a profile speaks for it. The
    advice is a `sentence`, a line of `code`, and a `chapter`. `effect` says whether
    that code changes the result of the training, "" where it does not.
    """

    removed: str
    sentence: str
    code: str
    chapter: str
    effect: str = ""
    leave_out: Change | None = None
    suspected: Callable[[Profile], bool] = lambda profile: False

    def advise(self) -> str:
        """Say what to do, and where to read on."""
        parts = self.sentence, self.effect, f"Chapter {self.chapter}."
        return " ".join(filter(None, parts))


def _takes(phase: str) -> Callable[[Profile], bool]:
    return lambda profile: profile.shares.get(phase, 0.0) > LEAST_SAVING


CAUSES = {
    "input": Cause(
        "the wait for data",
        "The loop waits for its data: load in worker processes, or do less per sample.",
        "DataLoader(dataset, batch_size, num_workers=2, persistent_workers=True)",
        "04 loading",
        leave_out=counterfactuals.batches_at_hand,
        suspected=lambda p: _takes("input")(p) or p.children > 0,
    ),
    "transfer": Cause(
        "copies to the device",
        "The loop waits for batches to reach the device: pin them and do not wait.",
        "batch.to(device, non_blocking=True)  # with DataLoader(…, pin_memory=True)",
        "04 loading",
        leave_out=counterfactuals.batches_on_device,
        suspected=_takes("copies"),
    ),
    "python": Cause(
        "your own code beside the training",
        "Your own code takes the time: do it every hundred steps, or elsewhere.",
        "if step % 100 == 0: ...  # log, save, compute metrics",
        "02 profiling",
    ),
    "overhead": Cause(
        "the cost of starting operations",
        "Many small operations each cost more to start than to do: make them fewer and "
        "larger.",
        "model = torch.compile(model)  # or larger batches, and no loop over samples",
        "08 fewer, larger kernels: where does the time go?",
        "Compiling changes results by rounding only; another batch size changes the "
        "training.",
    ),
    "sync": Cause(
        "waits for the device",
        "The loop waits for the device at each step: read its numbers less often.",
        "if step % 100 == 0: print(loss.item())",
        "08 fewer, larger kernels: read numbers less often",
        leave_out=counterfactuals.numbers_unread,
        suspected=_takes("sync"),
    ),
    "optimizer": Cause(
        "the update of parameters",
        "Updating the parameters takes the time: one operation over all of them is "
        "quicker than one for each.",
        "torch.optim.AdamW(model.parameters(), fused=True)",
        "08 fewer, larger kernels: one update for all parameters",
        "It changes results by rounding only, and gains less than leaving it all out.",
        leave_out=counterfactuals.no_update,
        # By hand it cannot be left out: then its share tells.
        suspected=lambda p: (
            _takes("optimizer")(p) and p.shares["optimizer"] > 2 * p.mean("loops")
        ),
    ),
    "threads": Cause(
        "this number of threads",
        "The threads do not fit the cores: there are too few, or they get in each "
        "other's way.",
        "torch.set_num_threads(2)",
        "01 how PyTorch runs: a second thread",
        leave_out=counterfactuals.other_threads,
        suspected=lambda p: p.threads != p.cores or p.mean("waiting") > LEAST_SAVING,
    ),
    "communication": Cause(
        "the exchange between ranks",
        "The ranks wait for each other's gradients: exchange less, or less often.",
        "with model.no_sync(): ...  # on all but the last of several small batches",
        "13 communication",
        "It changes the result: several small batches become one large one.",
        leave_out=counterfactuals.no_exchange,
        suspected=lambda p: _takes("communication")(p) or bool(p.exchanges),
    ),
    "compute": Cause(
        "arithmetic",
        "Good news: most of the time is useful arithmetic. Fewer bits make it cheaper.",
        "with torch.autocast(device, dtype=torch.bfloat16): ...",
        "10 mixed precision",
        "It changes the result: it computes with fewer digits.",
    ),
    "memory": Cause(
        "moving numbers through memory",
        "Most of the time goes into moving numbers through memory: fuse operations, or "
        "make the numbers smaller.",
        "model = torch.compile(model)",
        "08 fewer, larger kernels: what the compiler makes",
        "It changes results by rounding only.",
    ),
    "healthy": Cause(
        "nothing",
        "Nothing to repair was found.",
        "kit.diagnose(train, seconds=60)  # more seconds see smaller savings",
        "00 start here",
    ),
}


def saved(ratio: Ratio) -> statistics.Estimate:
    """Return the fraction of the time that something saves, of a ratio of speeds.

    What would take more than twice the time is -1: how much more says nothing.

    >>> saved(Ratio(2.0, 1.6, 2.5, "faster"))
    Estimate(value=0.5, low=0.375, high=0.6)
    """
    return statistics.Estimate(*(max(1 - 1 / x, -1.0) for x in astuple(ratio)[:3]))


def is_estimate(ratio: Ratio) -> bool:
    """Return whether a ratio was not measured, and so has no interval."""
    return math.isnan(ratio.low) and not math.isnan(ratio.value)


def write_saving(ratio: Ratio) -> str:
    """Write what something saves of the time, with its interval if it was measured.

    >>> write_saving(Ratio(2.0, 1.6, 2.5, "faster")), write_saving(estimate([0.5, 0.5]))
    ('50 % [38, 60]', 'about 50 %')
    """
    return "about " * is_estimate(ratio) + format_saving(*saved(ratio))


def unknown(reason: str) -> Ratio:
    """Return the ratio of what nobody can tell, and why."""
    return Ratio(math.nan, math.nan, math.nan, "cannot tell", reason)


def estimate(shares: Sequence[float]) -> Ratio:
    """Return the ratio of speeds if a share of each step were not there.

    It was not measured, so it has no interval. Its verdict goes by how alike the steps
    are.

    >>> estimate([0.5, 0.5]).value
    2.0
    """
    mean, low, _ = statistics.student_interval([min(share, 0.999) for share in shares])
    verdict = "faster" if low > LEAST_SAVING else "cannot tell"
    reason = f"estimated from its share of {len(shares)} profiled steps"
    return Ratio(1 / (1 - mean), math.nan, math.nan, verdict, reason)


def settle(ratio: Ratio, doubts: Sequence[str]) -> Ratio:
    """Return a ratio as certain where a doubt about it is smaller than itself.

    Speeds that change on the way, by a fifth or so, say little against a larger factor.
    Other `doubts`, such as what other programs did, may be of any size.
    """
    if ratio.verdict == "cannot tell" and ratio.low > _SURELY and not any(doubts):
        return replace(ratio, verdict="faster")
    return ratio


def decide(savings: Mapping[str, Ratio], profile: Profile) -> tuple[str | None, str]:
    """Return which cause it is, or None where none is sure, and why."""
    fractions = {cause: saved(ratio) for cause, ratio in savings.items()}
    compute, memory = profile.mean("compute"), profile.mean("memory")
    useful = compute + memory
    sure, unsure = [], []
    for cause, (value, low, high) in fractions.items():
        rival = max(compute, memory) if cause in _NECESSARY else 0.0
        may_weigh = high > max(_WORTH_A_REPAIR, useful if useful >= _MOST else rival)
        if savings[cause].verdict == "faster" and not low <= LEAST_SAVING:
            if value > rival and (value >= _WORTH_A_REPAIR or useful < _MOST):
                sure.append(cause)
        elif math.isnan(value) or may_weigh or value > max(rival, _WORTH_A_REPAIR):
            unsure.append(cause)
    best = max(sure, key=lambda c: fractions[c].value, default="")
    if best and "threads" in sure:
        simple = fractions["threads"].value >= _SIMPLEST * fractions[best].value
        best = "threads" if simple else best
    saves = fractions[best].value if best else -math.inf
    # Of what cannot be left out, or may take twice as long without, nothing is known:
    # it may be all that the best one leaves.
    may = {c: x.value for c, x in fractions.items() if c in unsure and not x.low <= -1}
    may = {c: 1 - saves if math.isnan(may.get(c, math.nan)) else may[c] for c in unsure}
    most = max(may, key=lambda c: may[c], default="")
    if most and may[most] > saves:
        why = savings[most].reason or "the interval is too wide to tell"
        told = f"removing {CAUSES[most].removed} may save {write_saving(savings[most])}"
        remedy = "" if math.isnan(fractions[most].value) else "; give it more seconds"
        return None, f"{told}; not sure: {why}{remedy}"
    if best:
        return best, ""
    if useful >= _MOST and compute >= memory:
        return "compute", f"{compute:.0%} of the step is matrix products and the like"
    if useful >= _MOST and profile.bandwidth >= _NEAR_BANDWIDTH:
        reason = f"{memory:.0%} of the step moves numbers through memory, at "
        return "memory", reason + f"{profile.bandwidth:.0%} of the speed of a copy here"
    small = [f"{CAUSES[c].removed} {write_saving(r)}" for c, r in savings.items()]
    return "healthy", f"nothing to repair ({'; '.join(small) or 'no suspect'})"
