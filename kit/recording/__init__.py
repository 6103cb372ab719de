"""Trials on disk: JSON with a format number, never pickle, written atomically.

`files` reads and writes one recording, which `checks` looks through; `chapters` finds
those of a chapter.
"""

from kit.recording.chapters import (
    cell_source,
    find_recorded,
    is_current,
    notebook_definitions,
    recorded,
    write_journal,
)
from kit.recording.files import (
    FORMAT,
    Recording,
    RecordingError,
    compute_checksum,
    load,
    read,
    save,
    write,
)

__all__ = ["FORMAT", "Recording", "RecordingError", "cell_source", "compute_checksum"]
__all__ += [
    "find_recorded",
    "is_current",
    "load",
    "notebook_definitions",
    "read",
    "recorded",
    "save",
]
__all__ += ["write", "write_journal"]
