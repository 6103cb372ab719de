"""From what was measured to a verdict, or to "cannot tell" and why."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from kit.diagnosis.causes import CAUSES
from kit.diagnosis.named import Named
from kit.diagnosis.profiling import Profile
from kit.diagnosis.repairs import FOLLOWING, REPAIRS, fill, list_remedies
from kit.diagnosis.saving import Saving

#: What is less than this is no verdict: a saving, or a share of the profile.
_WORTH_A_REPAIR = 0.10
_WORTH_A_LOOK = 0.20
#: What a share of the profile is worth, compared with what was measured.
_TRUST_IN_SHARES = 0.8
#: What was tried and gains goes first where it saves so much of what the best one does.
_NEARLY_AS_GOOD = 0.6
#: Costs of training itself: they can be lowered, seldom removed. They are a verdict
#: where useful work takes less.
_NECESSARY = ("optimizer", "overhead")
#: Useful work takes most of a step from this fraction on.
_MOST = 0.5
#: One kind of it is named where it takes so much.
_MUCH = 0.4
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
    savings: Mapping[str, Saving],
    tried: Mapping[str, Saving],
    named: Mapping[str, Named],
    profile: Profile,
    left: Collection[str] = (),
) -> Verdict:
    """Return which cause it is: what surely saves most, or useful work.

    What was measured counts by the lower end of its interval, what takes a share of the
    profile by four fifths of that. `left` names repairs for which there was no time.
    """
    work = {kind: profile.across[kind] for kind in _WORK}
    candidates = {**savings, **_list_following(tried)}
    values = {cause: _weigh(each) for cause, each in candidates.items()}
    large = _find_large(values, work)
    best = _choose(large)
    for cause, each in candidates.items():
        if each.measured and _may_be_more(each, values.get(best, 0.0), work):
            return Verdict(None, f"leaving out {CAUSES[cause]} may save {each}")
    if best:
        rival = _find_rival(best, candidates, large)
        if rival:
            both = f"{CAUSES[best]} and {CAUSES[rival]}"
            return Verdict(None, f"{both} cost about the same")
        return Verdict(best, "")
    if unsure := _find_unsure(tried, left, profile):
        return Verdict(None, unsure)
    for each in named.values():
        if each.is_setting:
            first, rest = each.sentence[0], each.sentence[1:].removesuffix(".")
            return Verdict("settings", first.lower() + rest)
    if sum(work.values()) >= _MOST:
        return _name_work(work, profile)
    if waits := _tell_waiting(profile):
        return Verdict(None, waits)
    found = "; ".join(f"{CAUSES[cause]} {each}" for cause, each in savings.items())
    return Verdict("healthy", f"nothing worth repairing ({found or 'none suspected'})")


def _weigh(saving: Saving) -> float:
    """Return what surely is saved, as far as that is known."""
    if saving.measured:
        return saving.low if saving.is_sure else 0.0
    return _TRUST_IN_SHARES * saving.value if saving.value >= _WORTH_A_LOOK else 0.0


def _list_following(tried: Mapping[str, Saving]) -> dict[str, Saving]:
    """Return what the best repair saves for each cause that follows from one."""
    found = {}
    for cause in FOLLOWING:
        known = [tried[name] for name in list_remedies(cause) if name in tried]
        known = [each for each in known if each.is_sure]
        if known:
            found[cause] = max(known, key=lambda each: each.value)
    return found


def _find_unsure(
    tried: Mapping[str, Saving], left: Collection[str], profile: Profile
) -> str:
    """Say which repair of a setting, or of threads, may gain; "" for none."""
    for cause in FOLLOWING:
        for name in list_remedies(cause):
            each = tried.get(name)
            label = fill(REPAIRS[name].label, profile)
            if name in left:
                return f"{label} was not tried for lack of time"
            if each and not each.is_known:
                return f"what {label} saves is unknown: {each.reason}"
            if each and each.value > _WORTH_A_REPAIR and not each.is_sure:
                return f"with {label}, a step may take {each} less time"
    return ""


def _find_large(
    values: Mapping[str, float], work: Mapping[str, float]
) -> dict[str, float]:
    """Return the causes that save enough to be a verdict."""
    large = {}
    for cause, value in values.items():
        least = max(work.values()) * _TRUST_IN_SHARES if cause in _NECESSARY else 0.0
        if value >= max(_WORTH_A_REPAIR, least):
            large[cause] = value
    return large


def _choose(large: Mapping[str, float]) -> str:
    """Return the cause that saves most, "" for none."""
    best = max(large, key=lambda cause: large[cause], default="")
    for cause in FOLLOWING:
        if cause in large and large[cause] >= _NEARLY_AS_GOOD * large[best]:
            return cause
    return best


def _may_be_more(saving: Saving, best: float, work: Mapping[str, float]) -> bool:
    """Return whether it may save most, but may as well save nothing."""
    least = max(_WORTH_A_REPAIR, best, *work.values())
    return not saving.is_sure and saving.value > least


def _find_rival(
    best: str, candidates: Mapping[str, Saving], large: Mapping[str, float]
) -> str:
    """Return which cause cannot be told from the best one, "" for none."""
    if best in FOLLOWING:
        return ""
    one = candidates[best]
    for cause, value in large.items():
        other = candidates[cause]
        if cause in (best, *FOLLOWING) or one.measured != other.measured:
            continue
        is_close = value > _TRUST_IN_SHARES * large[best]
        if is_close and not (one.measured and other.high < one.low):
            return cause
    return ""


def _name_work(work: Mapping[str, float], profile: Profile) -> Verdict:
    """Return which useful work takes most of the step."""
    most, second, _ = sorted(work, key=lambda kind: -work[kind])
    reason = f"{work[most]:.0%} of the step is {_WORK[most]}"
    if work[most] < _MUCH or work[second] > _TRUST_IN_SHARES * work[most]:
        both = f"{reason}, and {work[second]:.0%} {_WORK[second]}"
        return Verdict("healthy", f"{both}: useful work of two kinds")
    if profile.slowest:
        reason += f"; the slowest operation is {profile.slowest}"
    return Verdict("healthy" if most == "other" else most, reason)


def _tell_waiting(profile: Profile) -> str:
    """Say what most of the step waits for, if it is no cause; "" for nothing."""
    waits = {
        "another thread": profile.across["waiting"],
        "other processes": profile.shares.get("communication", 0.0),
    }
    for what, share in waits.items():
        if share >= _MOST:
            return f"{share:.0%} of the step waits for {what}"
    return ""
