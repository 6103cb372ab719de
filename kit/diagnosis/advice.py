"""What to do about each cause: how it shows, how to be sure, what to try."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kit.diagnosis.causes import Evidence
from kit.ratio import Ratio


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
        "One core is busy and the device is not. It pauses while the loop logs, saves "
        "or computes metrics.",
        "kit.diagnose(train).profile.lines  # your own lines, with their shares",
    ),
    "overhead": Advice(
        "Many small operations each cost more to start than to do: make them fewer and "
        "larger.",
        "model = torch.compile(model)  # or larger batches, and no loop over samples",
        "07 fewer, larger kernels",
        "One core is busy and the device is not. A step with half the batch takes as "
        "long.",
        "[kit.measure(train, batch_size=n).step_seconds for n in (16, 32)]  # alike?",
    ),
    "sync": Advice(
        "The loop waits for the device at each step: read its numbers less often.",
        "if step % 100 == 0: print(loss.item())",
        "07 fewer, larger kernels",
        "GPU utilisation stays low. A profile of your Python shows `.item()`, `.cpu()` "
        "or a `print` of a tensor as the slowest line.",
        'torch.cuda.set_sync_debug_mode("warn")  # most waits then warn, with the line',
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
    'kit.compare({"loop": train, "same loop": train})  # what can be seen here, now',
)


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
