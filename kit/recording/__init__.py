"""Trials on disk: JSON with a format number, never pickle, written atomically.

`files` reads and writes one recording; `chapters` finds those of a chapter, whose code
is in `cells`. To make one, the `recorder` sees that the machine is `quiet`, and runs a
chapter in Jupyter (`notebooks`).
"""

from kit.recording.cells import cell_source
from kit.recording.chapters import (
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
from kit.recording.recorder import Manner, Recorder

__all__ = ["FORMAT", "Manner", "Recorder", "Recording", "RecordingError"]
__all__ += ["cell_source", "compute_checksum", "find_recorded", "is_current", "load"]
__all__ += ["notebook_definitions", "read", "recorded", "save"]
__all__ += ["write", "write_journal"]
