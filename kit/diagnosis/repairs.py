"""The repairs that a diagnosis can try, and when it does: the table `REPAIRS`.

To add one: write its switch in `kit.diagnosis.repairing`, and a row here that says when
it is tried and how it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kit.diagnosis import repairing
from kit.diagnosis.modules import Training
from kit.diagnosis.profiling import Profile
from kit.diagnosis.repairing import Repair
from kit.diagnosis.wrapping import Work

#: An update, or arithmetic, is worth a trial where it takes this share of a step.
_WORTH_A_TRIAL = 0.10
#: Denormal numbers may cost time where there are more than this share.
_MANY_DENORMALS = 0.001
#: Waits for threads of the loop's own are worth a trial from this share on.
_WAITS = 0.03
_ATTENTION = "scaled_dot_product"


@dataclass(frozen=True)
class Facts:
    """What is known of a run when its repairs are chosen."""

    profile: Profile
    training: Training
    switches: Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """A repair: what tries it, when, and how it is called.

    `is_due` returns whether a profile speaks for it; `find_obstacle` why it cannot be
    tried although it does. One that `is_risky` may end the run, and is tried last.
    `causes` are those that it is a remedy for. "settings" and
    "threads" are causes only if a repair gains.
    """

    make: Callable[[Work, Training], Repair]
    label: str
    code: str
    is_due: Callable[[Facts], bool]
    find_obstacle: Callable[[Facts], str] = lambda facts: ""
    effect: str = ""
    causes: tuple[str, ...] = ()
    is_risky: bool = False


_ROUNDING = "It changes results by rounding only."


def _was_slow(name: str) -> Callable[[Facts], bool]:
    return lambda facts: bool(facts.switches[name].was_slow)


def _takes(kind: str) -> Callable[[Facts], bool]:
    return lambda facts: _share(facts.profile, kind) > _WORTH_A_TRIAL


def _share(profile: Profile, kind: str) -> float:
    return profile.mean(kind) if kind in profile.across else profile.shares.get(kind, 0)


def _is_in_float64(facts: Facts) -> bool:
    """Return whether updated parameters are double precision."""
    import torch

    return any(p.dtype == torch.float64 for p in facts.training.list_parameters())


def count_denormals(training: Training) -> float:
    """Return the share of denormal numbers in parameters, gradients and state."""
    import torch

    few = whole = 0
    for tensor in training.list_state():
        for each in (tensor.detach(), tensor.grad if tensor.is_leaf else None):
            if (
                each is None
                or each.layout != torch.strided
                or each.device.type != "cpu"
            ):
                continue
            if not each.is_floating_point():
                continue
            tiny = torch.finfo(each.dtype).tiny
            few += int(((each != 0) & (each.abs() < tiny)).sum())
            whole += each.numel()
    return few / max(whole, 1)


def _refuse_several_threads(facts: Facts) -> str:
    if facts.profile.threads == 1:
        return ""
    return (
        f"{100 * count_denormals(facts.training):.2g} % of them are denormal, but each "
        "thread has such a setting of its own; try torch.set_flush_denormal(True) with "
        "one thread"
    )


def _has_slow_attention(facts: Facts) -> bool:
    is_used = any(_ATTENTION in event.name for event in facts.profile.trace.main)
    return is_used and facts.switches["attention"].was_slow


def _has_tensor_cores(facts: Facts) -> bool:
    import torch

    is_new = torch.cuda.is_initialized() and torch.cuda.get_device_capability() >= (8,)
    return is_new and facts.switches["tf32"].was_slow and _takes("compute")(facts)


def _threads_may_not_fit(facts: Facts) -> bool:
    """Return whether threads are not as many as cores, or workers use these, too."""
    profile = facts.profile
    competes = profile.children > 0 or profile.mean("waiting") > _WAITS
    return not profile.fits_cores or (competes and profile.threads > 1)


def _refuse_bfloat16(facts: Facts) -> str:
    """Say why bfloat16 cannot gain here, "" where it may."""
    import torch

    kinds = {parameter.dtype for parameter in facts.training.list_parameters()}
    if kinds and torch.float32 not in kinds:
        return f"its parameters are {', '.join(sorted(map(str, kinds)))}"
    if facts.switches["autocast"].was_entered:
        return "the loop uses autocast already"
    return _miss_instructions(facts)


def _miss_instructions(facts: Facts) -> str:
    """Say that the device has no instructions for bfloat16, "" where it has."""
    import torch

    kinds = {parameter.device.type for parameter in facts.training.list_parameters()}
    if "cuda" in kinds:
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return ""
        return "this GPU has no instructions for it"
    if kinds - {"cpu"} or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return ""
    return "this processor has no instructions for it"


def _has_convolutions(facts: Facts) -> bool:
    return _takes("compute")(facts) and bool(facts.training.list_convolutions())


def _refuse_compiled(facts: Facts) -> str:
    return "it is compiled already" if facts.training.has_compiled else ""


#: Settings first, as they are the simplest to change; the others as they are tried.
REPAIRS = {
    "anomaly": Row(
        repairing.NoAnomalyDetection,
        "anomaly detection off",
        "torch.autograd.set_detect_anomaly(False)",
        _was_slow("anomaly"),
        causes=("settings",),
    ),
    "trace": Row(
        repairing.NoTraceFunction,
        "no trace function of a debugger",
        "sys.settrace(None)  # run it without the debugger",
        _was_slow("trace"),
        causes=("settings",),
    ),
    "fill": Row(
        repairing.NoFilledMemory,
        "new memory not filled",
        "torch.utils.deterministic.fill_uninitialized_memory = False",
        lambda facts: (
            facts.switches["deterministic"].was_slow and facts.switches["fill"].was_slow
        ),
        effect="Results stay the same, unless memory is read before it is written.",
        causes=("settings",),
    ),
    "deterministic": Row(
        repairing.NoDeterminism,
        "any algorithms, not only deterministic ones",
        "torch.use_deterministic_algorithms(False)",
        _was_slow("deterministic"),
        effect="Results then differ from run to run by rounding.",
        causes=("settings",),
    ),
    "onednn": Row(
        repairing.WithOneDnn,
        "oneDNN switched on",
        "torch.backends.mkldnn.enabled = True",
        _was_slow("onednn"),
        effect=_ROUNDING,
        causes=("settings",),
    ),
    "attention": Row(
        repairing.WithFlashAttention,
        "attention in one operation",
        "torch.backends.cuda.enable_flash_sdp(True)  # for CPUs, too",
        _has_slow_attention,
        effect=_ROUNDING,
        causes=("settings",),
        is_risky=True,
    ),
    "autocast": Row(
        repairing.NoAutocast,
        "autocast switched off",
        "with torch.autocast(device, enabled=False): ...",
        lambda facts: (
            facts.switches["autocast"].was_entered and bool(_miss_instructions(facts))
        ),
        effect="It changes the result: it computes with more digits.",
        causes=("settings",),
        is_risky=True,
    ),
    "float32": Row(
        repairing.SinglePrecision,
        "float32 in place of float64",
        "model = model.float()  # and data in float32",
        _is_in_float64,
        effect="It changes the result: it computes with fewer digits.",
        causes=("settings",),
        is_risky=True,
    ),
    "idle": Row(
        repairing.NoIdleGradients,
        "no gradients that no optimizer uses",
        "backbone.requires_grad_(False)",
        lambda facts: bool(facts.training.list_idle()),
        causes=("settings",),
        is_risky=True,
    ),
    "denormals": Row(
        repairing.FlushedDenormals,
        "denormal numbers flushed to zero",
        "torch.set_flush_denormal(True)",
        lambda facts: count_denormals(facts.training) > _MANY_DENORMALS,
        _refuse_several_threads,
        effect="It changes the result: numbers below 1e-38 become zero.",
        causes=("settings",),
    ),
    "validation": Row(
        repairing.NoValidation,
        "distributions whose arguments are not checked",
        "torch.distributions.Distribution.set_default_validate_args(False)",
        lambda facts: (
            facts.switches["validation"].is_used
            and facts.switches["validation"].was_slow
        ),
        effect="An argument outside of its range is no error any more.",
        causes=("settings",),
    ),
    "tf32": Row(
        repairing.WithTensorFloat32,
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
        _takes("optimizer"),
        effect=_ROUNDING,
        causes=("optimizer",),
    ),
    "bfloat16": Row(
        repairing.Bfloat16,
        "bfloat16",
        "with torch.autocast(device, dtype=torch.bfloat16): ...",
        _takes("compute"),
        _refuse_bfloat16,
        effect="It changes the result: it computes with fewer digits.",
        causes=("compute",),
    ),
    "channels_last": Row(
        repairing.ChannelsLast,
        "channels last",
        "model = model.to(memory_format=torch.channels_last)",
        _has_convolutions,
        effect=_ROUNDING,
        causes=("compute", "memory"),
    ),
    "compile": Row(
        repairing.Compiled,
        "a compiled model",
        "model = torch.compile(model)",
        lambda facts: facts.training.has_compiled,
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


def make_switches(work: Work, training: Training) -> dict[str, Repair]:
    """Return the switch of each repair."""
    return {name: row.make(work, training) for name, row in REPAIRS.items()}


def find_due(facts: Facts, *, try_compile: bool = False) -> dict[str, str]:
    """Return the repairs that a run speaks for, with what hinders each, or "".

    A model is compiled only on request: that may take minutes.
    """
    due = {}
    for name, row in REPAIRS.items():
        is_asked_for = name == "compile" and try_compile
        try:
            if is_asked_for or row.is_due(facts):
                obstacle = row.find_obstacle(facts)
                due[name] = obstacle or facts.switches[name].check()
        except Exception as error:  # a diagnosis must not end with one
            due[name] = f"whether it may gain cannot be told ({type(error).__name__})"
    return due


def name_repair(name: str, profile: Profile) -> str:
    """Return what a repair is called, as in "with 1 thread"."""
    return fill(REPAIRS[name].label, profile)


def fill(text: str, profile: Profile) -> str:
    """Fill the other number of threads into a label or a line of code."""
    number = profile.other_threads
    threads = f"{number} thread{'s' * (number > 1)}"
    return text.replace("{threads}", threads).replace("{number}", str(number))
