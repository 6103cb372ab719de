"""Nsight Systems: the command that records a script, and its report read back."""

from __future__ import annotations

import bisect
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kit import figures
from kit.diagnosis import phases
from kit.diagnosis.phases import Segment
from kit.diagnosis.timeline import check_steps, draw, summarize
from kit.diagnosis.trace import Trace
from kit.experiment import ExperimentError
from kit.figures import Span, format_value
from kit.figures.phases import flatten
from kit.tools import nsys_file, nsys_trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: What starting an operation costs, about. Pauses of more than twenty are code outside
#: PyTorch; the machine that a report comes from cannot be asked.
_OPERATION_SECONDS = 5e-6
_WORTH_A_NOTE = 0.01
#: Labels that readers write, in small letters and without anything between.
_LABELS = {
    "input": "load loader loading loaddata loadbatch data dataloader dataloading fetch"
    " nextbatch getbatch input",
    "copies": "copy copies copybatch copytodevice todevice transfer h2d",
    "forward": "forward forwardpass fwd model loss",
    "backward": "backward backwardpass bwd backprop lossbackward",
    "optimizer": "optimizer optimizerstep optim optstep update zerograd",
    "communication": "communication allreduce reducegradients syncgradients",
}
_PHASES = {word: phase for phase, words in _LABELS.items() for word in words.split()}


def describe_nsys() -> str:
    """Say whether Nsight Systems is on this machine, and what to do next."""
    found = shutil.which("nsys")
    if found:
        return f"nsys is here, {found}: type the command in a terminal."
    return (
        "nsys is not on this machine. Where there is an NVIDIA GPU: install Nsight "
        "Systems (https://developer.nvidia.com/nsight-systems), type the command in a "
        "terminal, and read the .sqlite file that it writes."
    )


def make_nsys_command(
    script: str | os.PathLike[str],
    *options: object,
    output: str | os.PathLike[str] | None = None,
    python: str = "python",
    pytorch: bool = True,
) -> str:
    """Write the command line that records a training script with Nsight Systems.

    The options are the script's, each word by itself; `"-m"` and a module stand for a
    script, as they do for Python. Recorded are calls of CUDA, cuDNN, cuBLAS and the
    operating system, and labels (NVTX ranges); with `pytorch` also PyTorch's operations
    and `record_function` labels: give False where `nsys profile --help` does not list
    `--pytorch`. No samples of the processor are taken: they need rights that many
    machines do not give. What is written, over older files, is `output` (by default the
    script's name) with .nsys-rep behind it, for the program, and with .sqlite, for
    `read_nsys_report`. All options: https://docs.nvidia.com/nsight-systems/UserGuide
    Raises ExperimentError where there is no such script.

    >>> make_nsys_command("-m", "my.training", "--epochs", 3)
    'nsys profile --trace=cuda,... --output=training python -m my.training --epochs 3'
    """
    words = [os.fspath(script), *map(str, options)]
    name = _check_script(words)
    written = Path(os.fspath(output or name))
    if written.suffix in (".sqlite", ".nsys-rep"):
        written = written.with_suffix("")
    command = ["nsys", "profile", "--trace=cuda,nvtx,cudnn,cublas,osrt"]
    command += ["--pytorch=autograd-nvtx"] * pytorch
    command += ["--sample=none", "--cpuctxsw=none", "--force-overwrite=true"]
    command += ["--export=sqlite", f"--output={written}", python]
    return shlex.join([*command, *words])


def _check_script(words: Sequence[str]) -> str:
    """Return a script's or module's name; raise ExperimentError where it is none."""
    where = f"make_nsys_command(): script={format_value(words[0], 80)}"
    for word in words[1:]:
        if re.match(r"--?\w[^=]*\s", word):
            parts = ", ".join(map(repr, shlex.split(word)))
            raise ExperimentError(
                f"make_nsys_command(): {format_value(word)} is more than one word.\n"
                f"Give each by itself: {parts}"
            )
    if words[0] == "-m":
        if len(words) == 1:
            raise ExperimentError(
                f"{where} needs a module.\nmake_nsys_command('-m', 'package.module')"
            )
        return words[1].rpartition(".")[2]
    path = Path(words[0])
    if path.suffix == ".ipynb":
        raise ExperimentError(
            f"{where} is a notebook; nsys records what Python runs.\nMake a script of "
            f"it: jupyter nbconvert --to script {shlex.quote(words[0])}"
        )
    if not path.is_file():
        what = "is a folder" if path.is_dir() else f"is no file in {Path.cwd()}"
        raise ExperimentError(
            f"{where} {what}.\nGive the path of the script that trains your model."
        )
    return path.stem


@dataclass(frozen=True, repr=False)
class NsysReport:
    """What Nsight Systems recorded of a training loop; its repr is the table of phases.

    `shares` are fractions of the wall time of the thread that takes the steps, by
    phase; they add up to one. Times are those with nsys at work.
    """

    name: str
    trace: Trace
    segments: Sequence[Segment]
    shares: dict[str, float]
    notes: Sequence[str]

    @property
    def step_seconds(self) -> float:
        """Return the seconds from the start of a step to that of the next."""
        return self.trace.step_seconds

    def sentence(self) -> str:
        """Return what takes most of a step, in one sentence."""
        return summarize(self.shares, self.name)

    def rows(self) -> list[tuple[str, str, str]]:
        """Return the table of phases as text: phase, share, time per step."""
        return phases.list_shares(self.shares, self.step_seconds)

    def timeline(self, steps: int = 3) -> Figure:
        """Draw who was busy when, over some of the steps."""
        check_steps(steps)
        return draw([self], self.name, steps)

    def remarks(self) -> list[str]:
        """Return what else a reader should know, a sentence each."""
        number, time = self.trace.steps, figures.format_seconds(self.step_seconds)
        said = f"{number} step{'s' * (number > 1)}, {time} each with nsys at work."
        return [said, *self.notes]

    def __repr__(self) -> str:
        table = figures.text_table(("phase", "share", "per step"), self.rows())
        return "\n".join([self.sentence(), "", table, "", *self.remarks()])

    def _repr_html_(self) -> str:
        return figures.html_table(
            ("phase", "share", "per step"),
            self.rows(),
            title=self.sentence(),
            note=" ".join(self.remarks()),
        )


def read_nsys_report(
    path: str | os.PathLike[str],
    *,
    step: str = "step",
    skip: int = 1,
    process: int | None = None,
) -> NsysReport:
    """Read an SQLite export of Nsight Systems: where the time of a step went.

    `step` is the label around each step of your loop, with or without a number behind
    it; a step lasts from one's start to the next's. The first `skip` are left out, for
    they also prepare the device. `process` chooses a rank where several were recorded.
    PyTorch's own names tell the phases, and where they do not, labels like "load",
    "forward", "backward" and "optimizer". Raises ExperimentError where the file cannot
    be read, is no export, or has too few such labels.

    >>> read_nsys_report("missing.sqlite")
    Traceback (most recent call last):
    ...
    kit.experiment.ExperimentError: read_nsys_report(): ... does not exist.
    nsys profile --export=sqlite writes it beside the report; ...
    """
    _check_arguments(path, step, skip)
    file = Path(path)
    where = nsys_file.name_file(file)
    with nsys_file.opened(file) as db:
        steps = nsys_trace.find_steps(db, step, process, where)
        if len(steps.starts) < skip + 2:
            raise ExperimentError(
                f"{where} has {len(steps.starts)} × the label {format_value(step)}, "
                f"and the first skip={skip} are left out.\nA step lasts from one to "
                f"the next: record {skip + 2} or more."
            )
        steps = steps._replace(starts=steps.starts[skip:])
        trace = nsys_trace.read_trace(db, steps)
    segments = list(_follow_labels(phases.part(trace, _OPERATION_SECONDS), trace))
    notes = _list_notes(trace, segments, len(steps.starts) - 1)
    return NsysReport(file.name, trace, segments, phases.shares(segments, {}), notes)


def _check_arguments(path: object, step: object, skip: object) -> None:
    if not isinstance(path, (str, os.PathLike)):
        raise ExperimentError(
            f"read_nsys_report(): path={format_value(path)} is no path.\nGive the name "
            "of the .sqlite file that nsys wrote."
        )
    if not isinstance(step, str) or not step:
        raise ExperimentError(
            f"read_nsys_report(): step={format_value(step)} is no label.\nGive the "
            "text of the label around each step."
        )
    if isinstance(skip, bool) or not isinstance(skip, int) or skip < 0:
        raise ExperimentError(
            f"read_nsys_report(): skip={format_value(skip)} is not a number of steps.\n"
            "Use a whole number, 0 or more."
        )


def _follow_labels(segments: Sequence[Segment], trace: Trace) -> Iterator[Segment]:
    """Let the reader's labels say which phase it is where PyTorch's names do not."""
    labels = [(e, _name_phase(e.name)) for e in trace.events if e.is_label]
    pieces = flatten([Span(e.start, e.stop, p, e.name) for e, p in labels if p])
    starts, stops = [piece.start for piece in pieces], [piece.stop for piece in pieces]
    for segment in segments:
        at = segment.start
        if segment.phase in ("forward", "python"):  # guessed, where nothing tells
            first = bisect.bisect_right(stops, at)
            last = bisect.bisect_left(starts, segment.stop)
            for start, stop, phase, label in pieces[first:last]:
                start, stop = max(at, int(start)), min(segment.stop, int(stop))
                if start > at:
                    yield segment._replace(start=at, stop=start)
                yield Segment(start, stop, phase, segment.name or label)
                at = stop
        if at < segment.stop:
            yield segment._replace(start=at)


def _name_phase(label: str) -> str:
    """Return the phase that a reader's label stands for, "" where it stands for none.

    >>> [_name_phase(label) for label in ("Forward pass 2", "train/opt_step", "epoch")]
    ['forward', 'optimizer', '']
    """
    last = re.split(r"[/:]", label.lower())[-1]
    return _PHASES.get(re.sub(r"[^a-z0-9]", "", last).rstrip("0123456789"), "")


def _list_notes(trace: Trace, segments: Sequence[Segment], steps: int) -> list[str]:
    """Say what the shares do not."""
    notes, whole = [], trace.marks[-1] - trace.marks[0]
    if trace.steps < steps:
        notes.append(f"Of {steps} steps these are the first: more are too many.")
    others = sum(s.stop - s.start for s in segments if s.name and s.phase == "python")
    if others > _WORTH_A_NOTE * whole:
        notes.append(
            f"{others / whole:.0%} are operations that no gradient needs, such as "
            "metrics and clipping: code outside PyTorch, unless a label like "
            "'optimizer' is around them."
        )
    if not nsys_trace.has_operations(trace):
        notes.append(
            "PyTorch's operations were not recorded, see make_nsys_command(): outside "
            "labels, calls of CUDA count as forward, all else as code outside PyTorch."
        )
    lanes: dict[int, list[Span]] = {}
    for event in trace.devices:
        stop = min(event.stop, trace.marks[-1])
        lanes.setdefault(event.device, []).append(Span(event.start, stop, "", ""))
    for device, spans in sorted(lanes.items()):
        busy = sum(piece.stop - piece.start for piece in flatten(spans))
        notes.append(f"Device {device} is busy {busy / whole:.0%} of the time.")
    return notes
