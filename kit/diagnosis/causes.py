"""The causes that a diagnosis knows: what each means, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """A verdict: what it means, and what to do.

    `removed` is what leaving it out would be, in words. The advice is a `sentence`, a
    line of `code`, and a `chapter`. `effect` says whether that code changes the result
    of the training, "" where it does not. `remedy` names the same repair in
    `kit.diagnosis.repairs`, if it can be tried.
    """

    removed: str
    sentence: str
    code: str
    chapter: str
    effect: str = ""
    remedy: str = ""

    def advise(self) -> str:
        """Say what to do, and where to read on."""
        parts = self.sentence, self.effect, f"Chapter {self.chapter}."
        return " ".join(filter(None, parts))


#: Phases of a step that are not called as their cause.
PHASE_OF_CAUSE = {"transfer": "copies"}
CAUSES = {
    "input": Cause(
        "the wait for data",
        "The loop waits for its data: do less per sample, or load in worker processes, "
        "which gain where a sample takes longer to make than to send.",
        "DataLoader(dataset, batch_size, num_workers=2, persistent_workers=True)",
        "04 loading",
    ),
    "transfer": Cause(
        "copies to the device",
        "The loop waits for batches to reach the device: pin them and do not wait.",
        "batch.to(device, non_blocking=True)  # with DataLoader(…, pin_memory=True)",
        "04 loading",
    ),
    "python": Cause(
        "your own code outside forward, backward and update",
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
        remedy="compile",
    ),
    "sync": Cause(
        "waits for the device",
        "The loop waits for the device at each step: read its numbers less often.",
        "if step % 100 == 0: print(loss.item())",
        "08 fewer, larger kernels: read numbers less often",
    ),
    "optimizer": Cause(
        "the update of parameters",
        "Updating the parameters takes the time: one operation over all of them is "
        "quicker than one for each. Many optimizers take fused=True.",
        "torch.optim.AdamW(model.parameters(), fused=True)",
        "08 fewer, larger kernels: one update for all parameters",
        "It changes results by rounding only, and gains less than leaving it all out.",
        remedy="fused",
    ),
    "threads": Cause(
        "this number of threads",
        "The threads do not fit the cores: there are too few, or they get in each "
        "other's way.",
        "torch.set_num_threads(2)",
        "01 how PyTorch runs: a second thread",
    ),
    "settings": Cause(
        "a setting that makes the same work expensive",
        "A setting makes the same work expensive: change it, if you do not need it.",
        "torch.autograd.set_detect_anomaly(False)",
        "01 how PyTorch runs",
    ),
    "hooks": Cause(
        "hooks of modules",
        "Hooks of modules take the time: remove those that you do not need.",
        "handle.remove()  # of what register_forward_hook has returned",
        "02 profiling",
    ),
    "compute": Cause(
        "arithmetic",
        "Good news: the largest part of the time is useful arithmetic. Lower precision "
        "makes it faster on hardware that has instructions for it, and so does a "
        "smaller model.",
        "with torch.autocast(device, dtype=torch.bfloat16): ...",
        "10 mixed precision",
        "It changes the result: it computes with fewer digits.",
        remedy="bfloat16",
    ),
    "memory": Cause(
        "moving numbers through memory",
        "The largest part of the time goes into moving numbers through memory: fuse "
        "operations, or make the numbers smaller.",
        "model = torch.compile(model)",
        "08 fewer, larger kernels: what the compiler makes",
        "It changes results by rounding only.",
        remedy="compile",
    ),
    "healthy": Cause(
        "nothing",
        "Nothing to repair was found.",
        "kit.diagnose(train, seconds=120)  # more seconds see smaller savings",
        "00 start here",
    ),
}
