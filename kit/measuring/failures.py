"""What is said of an error in the reader's code: where, what, and what to do.

The table names the known failures of a DataLoader and its workers.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kit.errors import ExperimentError
from kit.figures import format_bytes
from kit.machine import this_machine
from kit.measuring.experiment import Experiment, describe

_IN_A_FILE = """Processes that are not forked cannot see what a cell defines: write it \
to a file with %%writefile my_data.py, then `from my_data import …`."""
_SHARED_MEMORY = """Batches come through /dev/shm ({shared} here): give a container \
more (--shm-size=2g), or use fewer workers, smaller batches or prefetch_factor."""
#: The first pattern that is found in an error's message gives the advice.
_HINTS = {
    "exited unexpectedly": """What it said is in the terminal or the server's log; \
num_workers=0 shows it here. If it said nothing, it was killed, most often because \
memory was full ({memory} here).""",
    "on <module '__main__'|attribute lookup": _IN_A_FILE,
    "can't pickle|cannot pickle|can't get local": """Processes that are not forked get \
the data set pickled: put what cannot be (a lambda, a local function, an open file) \
into a file's top level.""",
    "DataLoader timed out": """A worker hangs, or needs longer than that for a batch. \
With num_workers=0 the traceback of an interrupt shows the line where it stands.""",
    "ancdata|too many open files": """Each tensor on its way from a worker is an open \
file. Raise `ulimit -n`, or call \
torch.multiprocessing.set_sharing_strategy("file_system").""",
    "in forked subprocess": """A forked worker cannot use the GPU: let the data set \
return CPU tensors and move the batch in the loop.""",
    r"DataLoader.*(bus error|shared memory|\bshm\b)|/torch_\w+": _SHARED_MEMORY,
    "worker .*signal: killed": """Most often the system does so because memory is full \
({memory} here): try fewer workers, smaller batches or prefetch_factor.""",
    "worker .*by signal": "Native code crashed in it: num_workers=0 shows where.",
}


class Failure(NamedTuple):
    """An error's kind, the worker that it was caught in or "", and its message."""

    kind: str
    worker: str
    message: str


def explain(
    experiment: Experiment, knobs: Mapping[str, object], error: BaseException, at: str
) -> ExperimentError:
    """Return the error that says where the experiment itself has raised one.

    `at` is "set-up", "step 12" or the like.
    """
    named = name_dead_worker(error)
    failure = read_failure(named)
    where = f"{at}, {failure.worker}" if failure.worker else at
    call = describe(experiment.name, knobs)
    lines = [f"{call} raised {failure.kind} in {where}: {failure.message}"]
    lines.append(find_hint(named) or "The traceback shows the line.")
    if command := _find_command(experiment, knobs, at):
        lines.append(f"Try it without the kit: {command}.")
    return ExperimentError("\n".join(lines))


def _find_command(experiment: Experiment, knobs: Mapping[str, object], at: str) -> str:
    """Return what runs to the same place without the kit, "" where that is unclear."""
    if experiment.is_script:
        return f"python {describe(experiment.name, knobs)}"
    name = getattr(experiment.own, "__name__", "")
    if not name.isidentifier():  # a lambda, or an object
        return ""
    call = describe(name, knobs)
    steps = at.removeprefix("step ")
    if steps.isdigit():
        return f"list(zip(range({steps}), {call}))"
    return f"next({call})"


def walk_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what it came of, each once: it may be its own cause."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        yield error
        visited.add(id(error))
        error = error.__cause__ or error.__context__


def find_hint(error: BaseException) -> str | None:
    """Return what to do about an error that workers are known for, or None.

    >>> find_hint(RuntimeError("DataLoader timed out after 5 seconds"))[:24]
    'A worker hangs, or needs'
    """
    message, machine = read_failure(error).message, this_machine()
    if "exited unexpectedly" in message and machine.start_method != "fork":
        return f"What it said is in the terminal or the server's log. {_IN_A_FILE}"
    for pattern, hint in _HINTS.items():
        if re.search(pattern, message, re.IGNORECASE):
            memory = format_bytes(machine.memory_bytes)
            shared = format_bytes(machine.shared_memory_bytes)
            return hint.format(memory=memory, shared=shared)
    return None


def name_dead_worker(error: BaseException) -> BaseException:
    """Return PyTorch's error that names a worker which died, or the same error.

    Where a worker dies while it hands a batch over, a broken connection is seen first.
    """
    if isinstance(error, (ConnectionError, EOFError, FileNotFoundError)):
        try:
            time.sleep(0.3)  # PyTorch's signal handler names the process in here
        except RuntimeError as named:
            return named
    return error


def read_failure(error: BaseException) -> Failure:
    """Return what an error says; a worker's has the whole traceback as its message."""
    kind, worker, message = type(error).__name__, "", str(error)
    caught = re.match(r"Caught (\w+) (.*?)\.\nOriginal Traceback", message, re.DOTALL)
    if caught:
        kind, worker = caught.groups()
        # The last line at the margin that begins with the error's name is its message.
        message = re.split(rf"^(?:\S+\.)?{kind}(?:: |$)", message, flags=re.M)[-1]
    return Failure(kind, worker, " ".join(message.split())[:200])
