"""What to do about a cause: one table, of which the first row that fits is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kit import clock
from kit.diagnosis.profiling import Profile
from kit.diagnosis.saving import Saving

if TYPE_CHECKING:
    from kit.diagnosis.report import Diagnosis

#: A batch that takes less time to load gains nothing by workers, which have to send it.
_QUICK_SECONDS = 0.003
#: Workers compete with the training where leaving out loading saves so many times the
#: wait for it.
_COMPETES = 2.0


def _always(found: Diagnosis) -> bool:
    return True


@dataclass(frozen=True)
class Advice:
    """What to do about a `cause`, where `when` says that it fits a diagnosis.

    It is a `sentence`, a line of `code`, and a `chapter`. `effect` says whether that
    code changes the result of the training, "" where it does not. `remedy` names the
    same repair in `kit.diagnosis.repairs`, if it can be tried. Filled in are
    "{workers}", a number of workers to try, and "{update}", the reader's optimizer with
    a fused update.
    """

    cause: str
    sentence: str
    code: str
    chapter: str
    effect: str = ""
    remedy: str = ""
    when: Callable[[Diagnosis], bool] = _always

    def advise(self) -> str:
        """Say what to do, and where to read on."""
        parts = self.sentence, self.effect, f"Chapter {self.chapter}."
        return " ".join(filter(None, parts))


def find_advice(found: Diagnosis) -> Advice | None:
    """Return the first row that fits what was found, None where no cause was."""
    rows = [row for row in ADVICE if row.cause == found.verdict]
    return next((row for row in rows if row.when(found)), None)


def count_workers_to_try(found: Diagnosis) -> int:
    """Return twice as many workers as there are, as far as there are cores."""
    return max(1, min(max(2, 2 * found.loading.workers), found.profile.cores))


def describe_competition(savings: Mapping[str, Saving], profile: Profile) -> str:
    """Say that workers take cores from the training, where the loop hardly waits."""
    waits = profile.shares.get("input", 0.0)
    loading = savings.get("input")
    if not (profile.children and loading and loading.measured and loading.is_sure):
        return ""
    if loading.low < _COMPETES * waits:
        return ""
    return (
        f"The loop waits for its data during only {waits:.0%} of a step, yet without "
        "loading, a step takes much less time: worker processes and training compete "
        "for the cores."
    )


def _has_no_loader(found: Diagnosis) -> bool:
    return not found.loading.kind


def _starts_workers_anew(found: Diagnosis) -> bool:
    competes = describe_competition(found.savings, found.profile)
    return found.loading.is_renewed and not competes


def _has_enough_workers(found: Diagnosis) -> bool:
    """Return whether there are as many workers as cores, or they compete for them."""
    loading = found.loading
    is_full = loading.workers >= found.profile.cores
    competes = bool(describe_competition(found.savings, found.profile))
    return loading.kind == "workers" and (is_full or competes)


def _has_workers(found: Diagnosis) -> bool:
    return found.loading.kind == "workers"


def _loads_quickly(found: Diagnosis) -> bool:
    waits = found.shares.get("input", 0.0) * found.profile.step_seconds
    return waits < _QUICK_SECONDS


def _trains_on_all_cores(found: Diagnosis) -> bool:
    profile = found.profile
    return not clock.find_initialised() and profile.threads >= profile.cores


def _is_frameworks(found: Diagnosis) -> bool:
    return bool(found.profile.inner.get("python"))


def _has_a_repair(found: Diagnosis) -> bool:
    return bool(found.find_best([*found.tried]))


_MORE_WORKERS = (
    "DataLoader(…, num_workers={workers}, persistent_workers=True)  "
    "# kit.tuning.tune_loader finds how many"
)
_ONCE = "samples = [dataset[i] for i in range(len(dataset))]  # once, if memory allows"
_FROZEN = (
    "That is the same training only where nothing in a sample is random: keep what is "
    "decoded and resized, and apply random transforms to each sample as before."
)
_ROUNDING = "It changes results by rounding only."
_LOADING = "04 loading"

ADVICE = [
    Advice(
        "input",
        "The loop waits for a queue or another process: make that process faster, or "
        "let it run ahead.",
        "batches = queue.Queue(maxsize=8)  # more of them may be ready",
        _LOADING,
        when=_has_no_loader,
    ),
    Advice(
        "input",
        "Each epoch starts new workers and waits for their first batches: keep the "
        "workers alive.",
        "DataLoader(…, persistent_workers=True)",
        _LOADING,
        when=_starts_workers_anew,
    ),
    Advice(
        "input",
        "The loop waits for its data, and the cores are busy with loading and "
        "training: do less per sample, such as decoding and resizing them once.",
        _ONCE,
        _LOADING,
        _FROZEN,
        when=_has_enough_workers,
    ),
    Advice(
        "input",
        "The loop waits for its data, and there are cores for more workers.",
        _MORE_WORKERS,
        _LOADING,
        when=_has_workers,
    ),
    Advice(
        "input",
        "The loop waits for its data, but a batch loads so quickly that workers, which "
        "have to send it, rarely help: index each batch directly from memory.",
        "batch = rows[order[n : n + batch_size]]  # in place of a loader",
        _LOADING,
        when=_loads_quickly,
    ),
    Advice(
        "input",
        "The loop waits for its data: do less per sample, such as decoding and "
        "converting them once. Worker processes gain where loading waits for a disk or "
        "a network; else they take cores from the training.",
        _ONCE,
        _LOADING,
        _FROZEN,
        when=_trains_on_all_cores,
    ),
    Advice(
        "input",
        "The loop waits for its data: load in worker processes, which help where a "
        "sample takes longer to make than to send, or do less per sample.",
        _MORE_WORKERS,
        _LOADING,
    ),
    Advice(
        "transfer",
        "The loop waits for batches to reach the device: pin them, and do not wait.",
        "batch.to(device, non_blocking=True)  # with DataLoader(…, pin_memory=True)",
        _LOADING,
    ),
    Advice(
        "python",
        "The framework's own code takes the time: switch off what you do not need, "
        "such as its progress bar, logging and checkpoints, or make it do that less "
        "often.",
        "Trainer(..., enable_progress_bar=False)  # as Lightning calls it",
        "02 profiling",
        when=_is_frameworks,
    ),
    Advice(
        "python",
        "Your own code takes the time. Make what each step needs, such as sampling or "
        "hooks, faster; do what it does not need, such as logging, every hundred "
        "steps.",
        "if step % 100 == 0: ...  # what a step does not need: log, save, metrics",
        "02 profiling",
    ),
    Advice(
        "overhead",
        "Many small operations each take longer to start than to run: make them fewer "
        "and larger.",
        "model = torch.compile(model)  # or larger batches, no loop over samples",
        "08 fewer, larger kernels: where does the time go?",
        "Compiling changes results by rounding only; another batch size changes the "
        "training.",
        remedy="compile",
    ),
    Advice(
        "sync",
        "The loop waits for the device at each step: read its numbers less often.",
        "if step % 100 == 0: print(loss.item())",
        "08 fewer, larger kernels: read numbers less often",
    ),
    Advice(
        "optimizer",
        "Updating the parameters takes the time: one operation on all of them is "
        "faster than one for each. Many optimizers take fused=True.",
        "{update}",
        "08 fewer, larger kernels: one update for all parameters",
        "It changes results by rounding only, and saves less than leaving it all out.",
        remedy="fused",
    ),
    Advice(
        "threads",
        "The threads do not fit the cores: there are too few, or they get in each "
        "other's way.",
        "",  # the line of the repair
        "01 how PyTorch runs: a second thread",
    ),
    Advice(
        "settings",
        "A setting makes the same work expensive: change it, if you do not need it.",
        "",  # that of the repair, or of what is named
        "03 traces: the gallery",
    ),
    Advice(
        "compute",
        "Good news: the largest part of the time is useful arithmetic. Lower precision "
        "makes it faster on hardware that has instructions for it, and so does a "
        "smaller model.",
        "with torch.autocast(device, dtype=torch.bfloat16): ...",
        "10 mixed precision",
        "It changes the result: it computes with fewer digits.",
        remedy="bfloat16",
    ),
    Advice(
        "memory",
        "The largest part of the time goes into moving numbers through memory: fuse "
        "operations, or make the numbers smaller.",
        "model = torch.compile(model)",
        "08 fewer, larger kernels: what the compiler makes",
        _ROUNDING,
        remedy="compile",
    ),
    Advice(
        "healthy",
        "The work is useful, and a repair that was tried does it in less time.",
        "",
        "08 fewer, larger kernels; 10 mixed precision",
        when=_has_a_repair,
    ),
    Advice(
        "healthy",
        "Nothing to repair was found. The kit cannot see whether the work is needed: "
        "padding, for example, is arithmetic like any other.",
        "kit.diagnose(train, seconds=120)  # more seconds see smaller savings",
        "07 memory, on padding; 12 DDP, for more devices",
    ),
]
