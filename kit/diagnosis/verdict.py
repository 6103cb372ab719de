"""From what was measured to a verdict, or to "cannot tell" and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kit.diagnosis.causes import CAUSES
from kit.diagnosis.profiling import Profile
from kit.diagnosis.repairs import FOLLOWING, list_remedies
from kit.diagnosis.saving import Saving

#: Below this, a cause is no verdict where useful work takes most of the step.
_WORTH_A_REPAIR = 0.10
#: Useful work takes most of a step from this fraction on.
_MOST = 0.5
#: What is the most that can be saved must be larger, where work takes more than it.
_WORTH_AN_ESTIMATE = 0.20
#: Costs of training itself: they can be lowered, seldom removed.
_NECESSARY = ("optimizer", "overhead")
#: What follows from a repair that was tried, or is as simple to change, goes first.
_SIMPLE = (*FOLLOWING, "hooks")
_SIMPLEST = 0.6
#: Two that are closer than this, one over the other, are about equal.
_ABOUT_EQUAL = 0.8
_WORK = {
    "compute": "arithmetic (matrix products, convolutions and the like)",
    "memory": "simple operations that mostly move numbers through memory",
    "other": "other operations, such as sorting",
}


class Verdict(NamedTuple):
    """Which cause it is, None where none is sure, and why."""

    cause: str | None
    reason: str


def decide(
    savings: Mapping[str, Saving], tried: Mapping[str, Saving], profile: Profile
) -> Verdict:
    """Return which cause it is: the surest largest saving, or useful work.

    A verdict needs a clear winner.
    """
    work = {kind: profile.mean(kind) for kind in _WORK}
    useful = sum(work.values())
    candidates = {**savings, **_list_following(tried)}
    contenders = _list_contenders(candidates, work)
    best = _choose(contenders, candidates)
    saves = contenders.get(best, 0.0)
    if hidden := _find_hidden(candidates, saves, work, profile.is_blurred):
        return Verdict(None, hidden)
    if best:
        rivals = _list_rivals(best, contenders, candidates, work)
        if rivals:
            names = [_name(best), *map(_name, rivals)]
            return Verdict(None, f"{' and '.join(names)} cost about the same")
        return Verdict(best, "")
    if useful >= _MOST:
        return _name_work(work, profile)
    if waits := _tell_waiting(profile):
        return Verdict(None, waits)
    told = "; ".join(f"{_name(cause)} {each}" for cause, each in savings.items())
    if any(_is_worth_it(each) for each in savings.values()):
        return Verdict(None, f"no single cause stands out ({told})")
    told = told or "nothing was suspected"
    return Verdict("healthy", f"nothing worth repairing ({told})")


def _is_worth_it(saving: Saving) -> bool:
    """Return whether something that was found is large enough to be named."""
    least = _WORTH_A_REPAIR if saving.measured else _WORTH_AN_ESTIMATE
    return saving.is_sure and saving.value >= least


def _tell_waiting(profile: Profile) -> str:
    """Say what most of the step waits for, if it is no cause; "" for nothing."""
    waits = {
        "another thread": profile.mean("waiting"),
        "other processes": profile.shares.get("communication", 0.0),
    }
    for whom, share in waits.items():
        if share >= _MOST:
            return f"{share:.0%} of the step waits for {whom}"
    return ""


def _list_following(tried: Mapping[str, Saving]) -> dict[str, Saving]:
    """Return what the best repair saves for each cause that follows from one."""
    found = {}
    for cause in FOLLOWING:
        known = [tried[name] for name in list_remedies(cause) if name in tried]
        known = [each for each in known if each.is_known]
        if known:
            found[cause] = max(known, key=lambda each: (each.is_sure, each.value))
    return found


def _list_contenders(
    candidates: Mapping[str, Saving], work: Mapping[str, float]
) -> dict[str, float]:
    """Return what surely saves enough to be a verdict.

    What training needs must cost about as much as the useful work, or more.
    """
    useful, most = sum(work.values()), max(work.values())
    found = {}
    for cause, each in candidates.items():
        if each.measured:
            counts_if_small = useful < _MOST and cause not in FOLLOWING
            is_worth_it = each.value >= _WORTH_A_REPAIR or counts_if_small
        else:
            least = min(_WORTH_AN_ESTIMATE, max(most, _WORTH_A_REPAIR))
            is_worth_it = each.value >= least
        is_large = cause not in _NECESSARY or each.value > _ABOUT_EQUAL * most
        if each.is_sure and is_worth_it and is_large:
            found[cause] = each.value
    return found


def _choose(contenders: Mapping[str, float], candidates: Mapping[str, Saving]) -> str:
    """Return the cause that saves most, a repair where it saves nearly as much.

    What was measured goes before what may be saved at most, where they are about equal.
    """
    if not contenders:
        return ""

    def weigh(cause: str) -> float:
        trust = 1.0 if candidates[cause].measured else _ABOUT_EQUAL
        return trust * contenders[cause]

    best = max(contenders, key=weigh)
    if (
        best in _NECESSARY
        and not candidates[best].measured
        and "settings" in contenders
    ):
        return "settings"  # it was tried, and the other one may not be removed
    for cause in _SIMPLE:
        if cause in contenders and weigh(cause) >= _SIMPLEST * weigh(best):
            return cause
    return best


def _find_hidden(
    candidates: Mapping[str, Saving],
    saves: float,
    work: Mapping[str, float],
    is_blurred: bool,
) -> str:
    """Say what may save more than the best one, but is not sure; "" for nothing.

    What is not known may be all that the best one leaves, but no useful work.
    """
    useful = sum(work.values())
    hidden = 1 - max(saves, 0.0 if is_blurred else useful)
    for cause, each in candidates.items():
        if each.is_sure or cause in FOLLOWING:  # a repair that does not gain
            continue
        if not each.is_known:
            bar = max(saves, useful if useful >= _MOST and not is_blurred else 0.0)
            if hidden > bar:
                return f"what {_name(cause)} costs is not known: {each.reason}"
            continue
        rival = max(work.values()) if cause in _NECESSARY else 0.0
        bar = max(_WORTH_A_REPAIR, useful if useful >= _MOST else rival)
        may_matter = each.high > bar or each.value > max(rival, _WORTH_A_REPAIR)
        if may_matter and each.value > saves:
            return (
                f"leaving out {_name(cause)} may save {each}; more seconds make that "
                "interval narrower"
            )
    return ""


def _list_rivals(
    best: str,
    contenders: Mapping[str, float],
    candidates: Mapping[str, Saving],
    work: Mapping[str, float],
) -> list[str]:
    """Return what costs about as much as the best cause; a simple one has no rivals."""
    if best in _SIMPLE:
        return []
    rivals = []
    for cause, value in contenders.items():
        one, other = candidates[best], candidates[cause]
        if cause == best or cause in _SIMPLE or one.measured != other.measured:
            continue
        is_apart = one.measured and one.low > other.high
        is_close = value > _ABOUT_EQUAL * contenders[best] or one.low < other.value
        if is_close and not is_apart:
            rivals.append(cause)
    if best in _NECESSARY:
        least = _ABOUT_EQUAL * contenders[best]
        rivals += [kind for kind, share in work.items() if share > least]
    return rivals


def _name(cause: str) -> str:
    return _WORK[cause] if cause in _WORK else CAUSES[cause]


def _name_work(work: Mapping[str, float], profile: Profile) -> Verdict:
    """Return which useful work takes most of the step."""
    most, second, _ = sorted(work, key=lambda kind: -work[kind])
    reason = f"{work[most]:.0%} of the step is {_WORK[most]}"
    if work[second] > _ABOUT_EQUAL * work[most]:
        both = f"{reason}, and {work[second]:.0%} {_WORK[second]}"
        return Verdict("healthy", f"{both}: useful work of two kinds")
    if profile.slowest:
        reason += f"; the slowest operation is {profile.slowest}"
    if most == "other":
        return Verdict("healthy", reason)
    return Verdict(most, reason)
