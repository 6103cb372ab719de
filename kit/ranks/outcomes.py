"""How a call ended on a rank, and where in the reader's code that was."""

from __future__ import annotations

import linecache
import os
import sysconfig
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_KIT = Path(__file__).resolve().parents[1]
_LIBRARIES = tuple(
    {
        os.path.join(os.path.realpath(folder), "")
        for name, folder in sysconfig.get_paths().items()
        if name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
    | {os.path.join(_KIT, "")}
)
#: Libraries elsewhere: of the user, or of the Python that a virtual one is based on.
_FOLDERS = {"site-packages", "dist-packages"}
_TYPED = ("<ipython", "<python-input", "<stdin", "<string")
_LONGEST_TEXT = 60


@dataclass(frozen=True)
class Place:
    """A line of code, as a traceback names it."""

    file: str
    line: int
    function: str
    text: str = ""

    def describe(self) -> str:
        """Return the place as a reader finds it: a cell's number or a file.

        >>> Place("train.py", 4, "train", "dist.barrier()").describe()
        'train.py, line 4, in train: dist.barrier()'
        """
        text = self.text or linecache.getline(self.file, self.line).strip()
        if len(text) > _LONGEST_TEXT:
            text = text[: _LONGEST_TEXT - 1] + "…"
        where = f"{_name_file(self.file)}, line {self.line}, in {self.function}"
        return f"{where}: {text}" if text else where


@dataclass(frozen=True)
class Outcome:
    """How a call ended on one rank.

    `value` is what was returned, pickled. `error` is kind and message on one line;
    `victim` says that only another rank's end, or its silence, can have caused it.
    `intact` is False where the rank's process groups cannot be used any more.
    """

    kind: Literal["returned", "raised", "stopped", "died"]
    value: bytes = b""
    error: str = ""
    victim: bool = False
    place: Place | None = None
    traceback: str = ""
    intact: bool = True


def find_place(frames: Iterable[traceback.FrameSummary]) -> Place | None:
    """Return the innermost place in the reader's code, else the innermost of all.

    Frames come outermost first, as in a traceback.
    """
    found = None
    for frame in frames:
        if found is None or is_readers(frame.filename) or not is_readers(found.file):
            found = Place(
                frame.filename,
                frame.lineno or 0,
                frame.name,
                (frame.line or "").strip(),
            )
    return found


def is_readers(file: str) -> bool:
    """Return whether a file, or a cell, is neither a library's nor the kit's.

    >>> is_readers("train.py"), is_readers(os.__file__), is_readers(__file__)
    (True, False, False)
    """
    if file.startswith("<"):
        return file.startswith(_TYPED)
    path = os.path.realpath(file)
    return not path.startswith(_LIBRARIES) and _FOLDERS.isdisjoint(Path(path).parts)


def _name_file(file: str) -> str:
    from IPython import get_ipython

    shell = get_ipython()
    named = shell.compile.format_code_name(file) if shell is not None else None
    if named is not None:
        return " ".join(named)
    if Path(file).parent.name.startswith("ipykernel_"):
        return "a %%px cell"
    inside = os.path.relpath(file) if os.path.isabs(file) else file
    return file if inside.startswith("..") else inside
