"""The repairs that a diagnosis can try, and when it does: the table `REPAIRS`.

To add one: a row here that says when it is tried and how it is called; its switch is
made in `kit.diagnosis.repairing`, where there is none like it yet. What is only named
stands in `kit.diagnosis.named`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kit.diagnosis import repairing
from kit.diagnosis.modules import Training
from kit.diagnosis.profiling import Profile
from kit.diagnosis.repairing import OtherSetting, Repair

#: An update, or arithmetic, is worth a trial where it takes this share of a step.
_WORTH_A_TRIAL = 0.10
#: Waits for threads of the loop's own are worth a trial from this share on.
_WAITS = 0.03


@dataclass(frozen=True)
class Facts:
    """What is known of a run when its repairs are chosen."""

    profile: Profile
    training: Training
    switches: Mapping[str, Any]

    def takes(self, kind: str) -> bool:
        """Return whether a phase, or a kind of work, takes a good part of a step."""
        profile = self.profile
        share = profile.across.get(kind, profile.shares.get(kind, 0.0))
        return share > _WORTH_A_TRIAL


@dataclass(frozen=True)
class Row:
    """A repair: what tries it, when, and how it is called.

    `is_due` returns whether a profile speaks for it; `find_obstacle` why it cannot be
    tried although it does. `causes` are those that it is a remedy for. "settings" and
    "threads" are causes only if a repair gains.
    """

    make: Callable[[Training], Repair]
    label: str
    code: str
    is_due: Callable[[Facts], bool]
    find_obstacle: Callable[[Facts], str] = lambda facts: ""
    effect: str = ""
    causes: tuple[str, ...] = ()


_ROUNDING = "It changes results by rounding only."


def _setting(
    name: str, may_cost: Callable[[Any], bool], wanted: Any
) -> Callable[[Training], Repair]:
    return functools.partial(OtherSetting, name=name, may_cost=may_cost, wanted=wanted)


def _is_slow(name: str) -> Callable[[Facts], bool]:
    return lambda facts: bool(facts.switches[name].is_slow)


def _has_slow_attention(facts: Facts) -> bool:
    events = facts.profile.trace.main
    is_used = any("scaled_dot_product" in event.name for event in events)
    return is_used and _is_slow("attention")(facts)


def _has_tensor_cores(facts: Facts) -> bool:
    import torch

    is_new = torch.cuda.is_initialized() and torch.cuda.get_device_capability() >= (8,)
    return is_new and facts.takes("compute") and _is_slow("tf32")(facts)


def _threads_may_not_fit(facts: Facts) -> bool:
    """Return whether threads are not as many as cores, or workers use these, too."""
    profile = facts.profile
    competes = profile.children > 0 or profile.across["waiting"] > _WAITS
    return not profile.fits_cores or (competes and profile.threads > 1)


def _refuse_bfloat16(facts: Facts) -> str:
    """Say why bfloat16 cannot gain here, "" where it may."""
    import torch

    kinds = {parameter.dtype for parameter in facts.training.list_parameters()}
    if kinds and torch.float32 not in kinds:
        return f"its parameters are {', '.join(sorted(map(str, kinds)))}"
    if facts.training.uses_autocast:
        return "the loop already uses autocast"
    return miss_instructions(facts.training)


def miss_instructions(training: Training) -> str:
    """Say that the device has no instructions for bfloat16, "" where it has."""
    import torch

    kinds = {parameter.device.type for parameter in training.list_parameters()}
    if "cuda" in kinds:
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return ""
        return "this GPU has no instructions for it"
    if kinds - {"cpu"} or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return ""
    return "this processor has no instructions for it"


def _refuse_compiled(facts: Facts) -> str:
    return "it is already compiled" if facts.training.has_compiled else ""


#: Settings first, as they are the simplest to change; the others as they are tried.
REPAIRS = {
    "anomaly": Row(
        _setting("anomaly mode", lambda modes: bool(modes[0]), (False, True)),
        "anomaly detection off",
        "torch.autograd.set_detect_anomaly(False)",
        _is_slow("anomaly"),
        causes=("settings",),
    ),
    "deterministic": Row(
        _setting("deterministic", bool, 0),
        "any algorithms, not only deterministic ones",
        "torch.use_deterministic_algorithms(False)",
        _is_slow("deterministic"),
        effect="Results then differ from run to run by rounding.",
        causes=("settings",),
    ),
    "onednn": Row(
        _setting("backends.mkldnn.enabled", operator.not_, True),
        "oneDNN switched on",
        "torch.backends.mkldnn.enabled = True",
        _is_slow("onednn"),
        effect=_ROUNDING,
        causes=("settings",),
    ),
    "attention": Row(
        _setting("flash attention", operator.not_, True),
        "attention in one operation",
        "torch.backends.cuda.enable_flash_sdp(True)  # for CPUs, too",
        _has_slow_attention,
        effect=_ROUNDING,
        causes=("settings",),
    ),
    "tf32": Row(
        _setting("float32 precision", lambda name: name == "highest", "high"),
        "TensorFloat-32",
        'torch.set_float32_matmul_precision("high")',
        _has_tensor_cores,
        effect="It changes the result: it multiplies with fewer digits.",
        causes=("settings",),
    ),
    "threads": Row(
        repairing.OtherThreads,
        "{threads}",
        "torch.set_num_threads({number})",
        _threads_may_not_fit,
        causes=("threads",),
    ),
    "fused": Row(
        repairing.FusedUpdate,
        "a fused update",
        "{update}",
        lambda facts: facts.takes("optimizer"),
        effect=_ROUNDING,
        causes=("optimizer",),
    ),
    "bfloat16": Row(
        repairing.Bfloat16,
        "bfloat16",
        "with torch.autocast(device, dtype=torch.bfloat16): ...",
        lambda facts: facts.takes("compute"),
        _refuse_bfloat16,
        effect="It changes the result: it computes with fewer digits.",
        causes=("compute",),
    ),
    "compile": Row(
        repairing.Compiled,
        "a compiled model",
        "model = torch.compile(model)",
        lambda facts: False,  # on request only
        _refuse_compiled,
        effect=_ROUNDING,
        causes=("overhead", "memory", "compute"),
    ),
}


#: Causes that follow from a repair that was tried and gains.
FOLLOWING = ("settings", "threads")


def list_remedies(cause: str) -> list[str]:
    """Return the names of the repairs for a cause."""
    return [name for name, row in REPAIRS.items() if cause in row.causes]


def make_switches(training: Training) -> dict[str, Repair]:
    """Return the switch of each repair."""
    return {name: row.make(training) for name, row in REPAIRS.items()}


def find_due(facts: Facts, *, try_compile: bool = False) -> dict[str, str]:
    """Return the repairs that a run speaks for, with what hinders each, or "".

    A model is compiled only on request: that may take minutes.
    """
    due = {}
    for name, row in REPAIRS.items():
        is_asked_for = name == "compile" and try_compile
        try:
            if is_asked_for or row.is_due(facts):
                due[name] = row.find_obstacle(facts) or facts.switches[name].check()
        except Exception as error:  # a diagnosis must not end with one
            due[name] = f"whether it can help is unknown ({type(error).__name__})"
    return due


def fill(text: str, profile: Profile) -> str:
    """Fill the other number of threads into a label or a line of code."""
    number = profile.other_threads
    threads = f"{number} thread{'s' * (number > 1)}"
    return text.replace("{threads}", threads).replace("{number}", str(number))
