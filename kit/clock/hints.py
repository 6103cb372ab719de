"""What to do about the known failures of a DataLoader and its workers."""

from __future__ import annotations

import re
import time
from pathlib import Path

from kit.figures import format_bytes
from kit.machine import limits, this_machine

_ROOT = Path("/")
_KILLED = re.compile(r"DataLoader worker \(pid (\d+)\) is killed by signal: ([\w ]+)")
_CAUGHT = re.compile(r"Caught (\w+) (.*?)\.\nOriginal Traceback", re.S)

_IN_A_FILE = (
    "Processes that are not forked cannot see what a cell defines: write it to a file "
    "with %%writefile my_data.py, then `from my_data import …`."
)
_SHARED = re.compile(
    r"bus error|shared memory|\bshm\b|/torch_\w+|No space left on device", re.I
)


def find_hint(error: BaseException, root: Path = _ROOT) -> str | None:
    """Return what to do about an error that workers are known for, or None.

    Files that tell this machine's limits are read below `root`.

    >>> find_hint(RuntimeError("DataLoader timed out after 5 seconds"))[:24]
    'A worker hangs, or needs'
    """
    said = str(error)
    kinds = (RuntimeError, OSError, AttributeError, TypeError)
    if not isinstance(error, kinds) and type(error).__module__ != "_pickle":
        return None
    killed = _KILLED.search(said)
    if "exited unexpectedly" in said:
        return _hint_at_exit(root, "exit code" in said)
    if "on <module '__main__'" in said or "attribute lookup" in said:
        return _IN_A_FILE
    if re.search(r"can't pickle|cannot pickle|can't get local object", said, re.I):
        return (
            "Processes that are not forked get the data set pickled: put what cannot "
            "be (a lambda, a local function, an open file) into a file's top level."
        )
    if "DataLoader timed out" in said:
        return (
            "A worker hangs, or needs longer than that for a batch. With num_workers=0 "
            "the traceback of an interrupt shows the line where it stands."
        )
    if "ancdata" in said or "Too many open files" in said:
        return (
            "Each tensor on its way from a worker is an open file. Raise `ulimit -n`, "
            'or call torch.multiprocessing.set_sharing_strategy("file_system").'
        )
    if "in forked subprocess" in said:
        return (
            "A forked worker cannot use the GPU: let the data set return CPU tensors "
            "and move the batch in the loop."
        )
    if _SHARED.search(said) and (killed or "DataLoader" in said or "torch_" in said):
        return shared_memory_hint(root)
    if killed and killed[2].strip() == "Killed":
        memory = limits.find_memory(root)[0]
        return (
            "Most often the system does so because memory is full (there are "
            f"{format_bytes(memory)} here): try fewer workers, a smaller batch, "
            "a smaller prefetch_factor."
        )
    if killed:
        return "Native code crashed in the worker: num_workers=0 shows where."
    return None


def name_dead_worker(error: BaseException) -> BaseException:
    """Return PyTorch's error that names a worker which died, or the same error.

    Where a worker dies while it hands a batch over, a broken connection is seen first;
    PyTorch names the process a moment later, from a signal handler.
    """
    if not isinstance(error, (ConnectionError, EOFError, FileNotFoundError)):
        return error
    try:
        for _ in range(30):
            time.sleep(0.01)  # the handler runs in here
    except RuntimeError as named:
        if "DataLoader worker" in str(named):
            return named
    return error


def shared_memory_hint(root: Path = _ROOT) -> str:
    """Say how large the memory is through which workers send batches, and the cure."""
    size = limits.find_shared_memory(root)[0]
    return (
        f"Batches come through /dev/shm, which holds {format_bytes(size)} here. "
        "Give a container more (--shm-size=2g), or use fewer workers, a smaller "
        "prefetch_factor or smaller batches."
    )


def _hint_at_exit(root: Path, by_itself: bool) -> str:
    told = "What it said is in the terminal or the notebook server's log"
    if this_machine().start_method != "fork":
        return f"{told}. {_IN_A_FILE}"
    if by_itself:
        return f"{told}; num_workers=0 shows it here."
    memory = format_bytes(limits.find_memory(root)[0])
    return (
        f"{told}; num_workers=0 shows it here. If it said nothing, it was killed, most "
        f"often because memory was full ({memory} here)."
    )


def split_error(error: BaseException) -> tuple[str, str, str]:
    """Return an error's kind, the worker it was caught in or "", and its message.

    A worker's error comes with the whole traceback as its message.
    """
    kind, said = type(error).__name__, str(error)
    where = ""
    if caught := _CAUGHT.match(said):
        kind, where = caught[1], caught[2]
        # The last line at the margin that begins with the error's name is its message.
        lines = list(re.finditer(rf"^(?:[\w.]+\.)?{kind}(?:: |$)", said, re.M))
        said = said[lines[-1].end() :] if lines else ""
    return kind, where, " ".join(said.split())[:200]


def describe_error(error: BaseException) -> str:
    """Return kind and message on one line; of a worker's error the original ones.

    >>> describe_error(ValueError("so\\nmany words"))
    'ValueError: so many words'
    """
    kind, where, said = split_error(error)
    return " ".join(filter(None, [kind, where])) + (f": {said}" if said else "")
