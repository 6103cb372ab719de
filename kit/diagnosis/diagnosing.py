"""`diagnose`: where a step's time goes, what removing each cost would save.

The experiment is started once. In this one run it is warmed up and profiled; then
switches leave each suspected cause out of some blocks, and not out of others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kit import clock
from kit.diagnosis import repairs, saving
from kit.diagnosis.advice import tell_competition
from kit.diagnosis.batches import Loading
from kit.diagnosis.causes import CAUSES, PHASE_OF_CAUSE
from kit.diagnosis.modules import TimedHooks, Training
from kit.diagnosis.once import OnceVariant, RunEnded, refuse_short_run
from kit.diagnosis.profiling import Profile, record
from kit.diagnosis.repairing import Repair
from kit.diagnosis.repairs import Facts
from kit.diagnosis.report import Diagnosis
from kit.diagnosis.saving import LEAST_SAVING, Saving
from kit.diagnosis.steps import LongSteps, StepWatch
from kit.diagnosis.switches import (
    BatchesInMemory,
    NoUpdate,
    Switch,
)
from kit.diagnosis.trials import Plan, Trials, plan
from kit.diagnosis.verdict import decide
from kit.diagnosis.wrapping import Change, Work, change, labels
from kit.errors import ExperimentError, naming
from kit.figures import format_seconds, format_value
from kit.measuring.experiment import Experiment, describe, resolve
from kit.measuring.run import Driver
from kit.mode import is_quick
from kit.progress import Progress

_MOST_CAUSES = 3
#: So many repairs are tried, one more for each further so many seconds.
_REPAIRS, _SECONDS_PER_REPAIR = 2, 20.0
#: Rare long steps are looked for in so many seconds of unchanged steps.
_PLAIN_SECONDS, _BETWEEN_LOOKS = 10.0, 0.5
#: Hooks of modules are timed in so many seconds of steps.
_HOOK_SECONDS = 0.3
#: Seconds that any trial fits in.
_NO_LIMIT = 1e6
#: The first steps of a repair are told where they take so much longer.
_LONG_START = 1.0
#: Causes that save their share at most where they were not left out; of a device only.
_BY_SHARE, _ON_DEVICE = ("input", "transfer", "sync"), ("transfer", "sync")
#: Causes that are estimated where they are not left out.
_ESTIMATED = ("python", "overhead", "optimizer")


def diagnose(
    experiment: object,
    /,
    *,
    seconds: float = 40.0,
    try_compile: bool = False,
    **knobs: object,
) -> Diagnosis:
    """Find where a training step's time goes, and what removing each cost would save.

    Starts the experiment once, and profiles a second or so of its steps. Then it leaves
    out each cause that is suspected, three at most, in some blocks of steps and not in
    others: batches that are in memory already, no update … It tries repairs in the same
    way, two at most: another number of threads, a fused update, bfloat16 …; with
    `try_compile=True` also `torch.compile`, which may take minutes. `seconds` is how
    long these trials may take; warm-up and profile come on top of it, some ten seconds.
    Raises ExperimentError where the experiment cannot be run or
    profiled. An interrupt keeps what is known, and says where.

    >>> def train(*, size=64):
    ...     import torch
    ...     model = torch.nn.Linear(size, size)
    ...     while True:
    ...         model(torch.ones(8, size)).sum().backward()
    ...         yield 8
    >>> sorted(diagnose(train, seconds=3.0).shares)[:2]
    ['backward', 'forward']
    """
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not (number and 0 < seconds < math.inf):
        raise ExperimentError(
            f"diagnose(): seconds={format_value(seconds)} is not a time that it may "
            "take.\nA diagnosis looks at single steps: say how many seconds, 40 as a "
            "rule."
        )
    with naming("diagnose()"):
        resolved = resolve(experiment)
        bound = resolved.bind(knobs)
        title = f"diagnosing {describe(resolved.name, bound)}"
        with Progress(title) as progress:
            findings = _observe(resolved, bound, progress, seconds, try_compile)
    return findings


@dataclass
class _Findings:
    """What a run has shown so far."""

    profile: Profile | None = None
    savings: dict[str, Saving] = field(default_factory=dict)
    tried: dict[str, Saving] = field(default_factory=dict)
    #: Seconds that trials would take which were not made.
    left: dict[str, float] = field(default_factory=dict)
    #: Why repairs were not tried that may help.
    untried: dict[str, str] = field(default_factory=dict)
    #: The lines that set what a repair changes, by repair.
    places: dict[str, str] = field(default_factory=dict)
    unaffordable: set[str] = field(default_factory=set)
    long_steps: LongSteps | None = None
    growth: str = ""
    loading: Loading = field(default_factory=Loading)
    #: The line that fuses the update of the loop's own optimizer.
    update: str = ""
    dense_embedding: str = ""
    remarks: list[str] = field(default_factory=list)


class _Switches:
    """The switches of one run, by cause and by repair."""

    def __init__(self, work: Work) -> None:
        self.input = BatchesInMemory(work)
        self.causes: dict[str, Switch] = {"input": self.input}
        self.causes["optimizer"] = NoUpdate(work)
        self.training = Training()
        self.repairs = repairs.make_switches(work, self.training)

    def list_changes(self) -> list[Change]:
        both = [*self.causes.values(), *self.repairs.values()]
        return [self.training.install, *(switch.install for switch in both)]


def _observe(
    experiment: Experiment,
    knobs: Mapping[str, object],
    progress: Progress,
    seconds: float,
    try_compile: bool,
) -> Diagnosis:
    """Start the experiment, and return what its run has shown."""
    work = Work()
    switches = _Switches(work)
    changes = switches.list_changes()
    variant = OnceVariant(change(experiment, labels, *changes, work=work), knobs)
    watch = StepWatch(work)
    findings = _Findings()
    interrupt: KeyboardInterrupt | None = None
    is_over = False
    try:
        with variant.drive(0) as driver, watch.watching():
            try:
                _look(driver, progress, watch, switches, findings, seconds, try_compile)
            except RunEnded as end:
                if findings.profile is None:
                    raise refuse_short_run(variant, len(work.steps)) from None
                remark = _tell_end(len(work.steps), str(end), progress.doing)
                findings.remarks.append(remark)
            is_over = True
    except KeyboardInterrupt as error:
        if findings.profile is None:
            raise
        interrupt = error
        findings.remarks.append("It was interrupted: what is missing was not measured.")
    except BaseException as error:
        if not is_over:
            raise
        # What it has shown is known all the same.
        said = f"{type(error).__name__}: {error}".partition("\n")[0]
        findings.remarks.append(f"While it was ended, it raised {said}")
    if not variant.runs[0].settled:
        findings.remarks.append(
            "Step times had not become stable by the end of the warm-up."
        )
    findings.long_steps = watch.find_long_steps()
    findings.growth = watch.find_growth()
    findings.loading = switches.input.loaders.find_loading()
    diagnosis = _conclude(experiment, dict(knobs), findings)
    if interrupt is not None:
        kept: Any = KeyboardInterrupt(
            "diagnose() was interrupted. What is known until then is kept as "
            f"`sys.last_value.diagnosis`:\n{diagnosis.sentence()}"
        )
        kept.diagnosis = diagnosis
        raise kept from None
    return diagnosis


def _tell_end(steps: int, error: str, doing: str) -> str:
    """Say that a run has ended before all was measured, and what was done then."""
    if error:
        first = error.partition("\n")[0]
        return f"It could not go on while the kit was {doing}: {first}"
    return f"It ended after {steps} steps, before all was measured."


def _look(
    driver: Driver,
    progress: Progress,
    watch: StepWatch,
    switches: _Switches,
    findings: _Findings,
    seconds: float,
    try_compile: bool,
) -> None:
    """Warm up, profile, make the trials, and look out for rare long steps."""
    progress.doing = "warming up"
    watch.work.is_plain = False  # in the first steps, something may be compiled
    driver.open()
    driver.warm_up()
    progress.doing = "profiling"
    profile = record(driver)[0]
    watch.work.is_plain = True
    findings.profile = profile._replace(trace=profile.trace._replace(written=""))
    with switches.training.looking():
        driver.time(1)
    findings.dense_embedding = switches.training.dense_embedding
    findings.savings |= _time_hooks(driver, switches.training)
    facts = Facts(profile, switches.training, switches.repairs)
    due = repairs.find_due(facts, try_compile=try_compile)
    findings.update = switches.repairs["fused"].write_code()  # type: ignore[attr-defined]
    findings.untried = {name: why for name, why in due.items() if why}
    planned = _plan_trials(facts, switches, due, seconds)
    # What is not made before the run ends, or is interrupted, was not measured.
    findings.left = {each.name: each.seconds for each in planned.trials} | planned.left
    findings.unaffordable = {*planned.left}
    most = min(_PLAIN_SECONDS, seconds / 4)
    if is_quick() or clock.has_queue():
        most = 0.0  # a step that is long on a device only is not seen
    # About half of the time that trials take, nothing is changed.
    rest = max(0.0, most - watch.plain_seconds - planned.seconds / 2)
    whole = planned.seconds + rest
    trials = Trials(driver, progress, watch, switches.input.loaders, whole)
    for each in planned.trials:
        is_repair = each.name in switches.repairs
        progress.doing = f"trying {_name(each.name, profile)}"
        saving = trials.make(each)
        if is_repair:
            switch = switches.repairs[each.name]
            if switch.obstacle:
                findings.untried[each.name] = switch.obstacle
            else:
                findings.tried[each.name] = _add_reason(saving, switch, profile)
                findings.places[each.name] = switch.place
        else:
            findings.savings[each.name] = saving
        del findings.left[each.name]
    progress.doing = "looking for rare long steps"
    trials.come_to_rest()
    while watch.plain_seconds < most:
        driver.time(1, min(_BETWEEN_LOOKS, most))
        watch.note_memory()
        progress.show(1 - (most - watch.plain_seconds) / max(whole, 1e-9))


def _plan_trials(
    facts: Facts, switches: _Switches, due: Mapping[str, str], seconds: float
) -> Plan:
    """Plan which causes are left out, and which repairs are tried, by turns."""
    profile = facts.profile
    switches.repairs["threads"].number = profile.other_threads  # type: ignore[attr-defined]
    causes = find_suspects(profile, switches.causes)
    possible = [name for name, why in due.items() if not why and name != "compile"]
    most = max(_REPAIRS, int(seconds / _SECONDS_PER_REPAIR))
    chosen = {name: switches.repairs[name] for name in possible[:most]}
    risky = {name: s for name, s in chosen.items() if repairs.REPAIRS[name].is_risky}
    safe = {name: switch for name, switch in chosen.items() if name not in risky}
    pairs = itertools.zip_longest(causes.items(), safe.items())
    by_turns = dict(each for pair in pairs for each in pair if each is not None)
    by_turns |= risky
    if due.get("compile") == "":
        by_turns["compile"] = switches.repairs["compile"]
    pace, loaders = profile.step_seconds, switches.input.loaders
    planned = plan(by_turns, pace, seconds, loaders)
    rest = {name: switches.repairs[name] for name in possible[most:]}
    more = plan(rest, pace, _NO_LIMIT, loaders)
    planned.left |= {each.name: each.seconds for each in more.trials}
    return planned


def _time_hooks(driver: Driver, training: Training) -> dict[str, Saving]:
    """Return what removing the hooks of modules would save at most, if there are any.

    Not in compiled loops, which a changed hook lets compile anew.
    """
    hooks = TimedHooks(training.find_modules())
    if not hooks.count or training.has_compiled:
        return {}
    with hooks:
        block = driver.time(1, 0.0 if is_quick() else _HOOK_SECONDS)
    share = min(1.0, hooks.seconds / max(block.seconds, 1e-9))
    if share < LEAST_SAVING:
        return {}
    reason = f"the time spent in {hooks.count} hook{'s' * (hooks.count > 1)}"
    return {"hooks": Saving(share, measured=False, reason=reason)}


def _add_reason(found: Saving, switch: Repair, profile: Profile) -> Saving:
    """Add what else a trial has shown: what it costs to begin, and how much differs."""
    told = [found.reason] if found.reason else []
    begin = switch.first_seconds
    if begin > _LONG_START and found.is_known:
        takes = f"its first steps take {format_seconds(begin)} longer"
        if found.is_sure:
            steps = begin / (found.value * profile.step_seconds)
            takes += f", which {math.ceil(steps):,} steps win back"
        told.append(takes)
    difference = getattr(switch, "difference", None)
    if difference is not None and found.is_known:
        told.append(f"the model's outputs differ by {100 * difference:.2g} %")
    return replace(found, reason="; ".join(told))


def find_suspects(profile: Profile, switches: Mapping[str, Switch]) -> dict[str, Any]:
    """Return what to leave out, by cause, the largest shares first.

    Workers may take the cores from the training: then input is suspected, too. An
    update that is mostly made by hand cannot be left out.
    """
    is_by_hand = 2 * profile.mean("loops") > profile.shares.get("optimizer", 0.0)
    shares = {
        cause: profile.shares.get(PHASE_OF_CAUSE.get(cause, cause), 0.0)
        for cause in switches
    }
    competes = {"input"} if profile.children else set()
    suspected = [
        cause
        for cause, share in shares.items()
        if share > LEAST_SAVING or cause in competes
    ]
    if is_by_hand and "optimizer" in suspected:
        suspected.remove("optimizer")
    suspected.sort(key=lambda cause: -shares[cause])
    return {cause: switches[cause] for cause in suspected[:_MOST_CAUSES]}


def _conclude(
    experiment: Experiment, knobs: dict[str, object], findings: _Findings
) -> Diagnosis:
    profile = findings.profile
    assert profile is not None
    savings = _fall_back(findings, profile)
    savings |= estimate_rest(profile, savings)
    verdict, reason = decide(savings, findings.tried, profile)
    remarks = [*findings.remarks]
    if competes := tell_competition(savings, profile):
        remarks.append(competes)
    for name, why in findings.untried.items():
        remarks.append(f"Not tried: {repairs.name_repair(name, profile)}; {why}.")
    if clock.find_initialised() and not profile.trace.devices:
        remarks.append(
            "What the accelerator did was not recorded: forward, backward and update "
            "are the time of the host, which starts operations and waits for them."
        )
    for name, takes in findings.left.items():
        what = _name(name, profile)
        more = "; more seconds allow more" if name in findings.unaffordable else ""
        seconds = format_seconds(takes)
        remarks.append(f"Not measured: {what} (about {seconds}{more}).")
    return Diagnosis(
        experiment=experiment,
        knobs=knobs,
        verdict=verdict,
        reason=reason,
        savings=savings,
        tried=findings.tried,
        untried=findings.untried,
        places=findings.places,
        profile=profile,
        long_steps=findings.long_steps,
        growth=findings.growth,
        loading=findings.loading,
        update=findings.update,
        dense_embedding=findings.dense_embedding,
        notes=remarks,
    )


def _name(name: str, profile: Profile) -> str:
    """Return what is tried: a repair, or a step without a cause."""
    if name in repairs.REPAIRS:
        return f"a step with {repairs.name_repair(name, profile)}"
    return f"a step without {CAUSES[name]}"


def _fall_back(findings: _Findings, profile: Profile) -> dict[str, Saving]:
    """Return the savings; what was not measured saves its share at most.

    Not so where the share was not the reason to suspect it.
    """
    savings = dict(findings.savings)
    is_unseen = bool(clock.find_initialised()) and not profile.trace.devices
    for cause in _BY_SHARE:
        known = savings.get(cause)
        share = profile.shares.get(PHASE_OF_CAUSE.get(cause, cause), 0.0)
        if (known and known.is_known) or (is_unseen and cause in _ON_DEVICE):
            continue
        if share > LEAST_SAVING or known:
            why = f"; {known.reason}" if known else ""
            reason = f"its share of the profile{why}"
            savings[cause] = Saving(share, measured=False, reason=reason)
    return savings


def estimate_rest(profile: Profile, known: Mapping[str, Saving]) -> dict[str, Saving]:
    """Return what the causes save at most that cannot be left out, by their shares."""
    blurred = saving.unknown(f"recording made steps {profile.inflation:.0%} longer")
    found = {}
    for cause in _ESTIMATED:
        shares = profile.across[cause]
        is_known = cause in known and known[cause].is_known
        if not is_known and max(shares) > 0:
            estimate = blurred if profile.is_blurred else saving.from_shares(shares)
            found[cause] = estimate
    return found
