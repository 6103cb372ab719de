"""Trials on disk: JSON with a format number, never pickle, written atomically.

`files` reads and writes one recording, which `checks` looks through; `chapters` finds
those of a chapter, whose code is in `cells`. To make one, a chapter runs in Jupyter
(`notebooks`), or where there is none in a `plain` process.
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
from kit.recording.notebooks import replace_recording, run_notebook, write_notebook

__all__ = ["FORMAT", "Recording", "RecordingError", "cell_source", "compute_checksum"]
__all__ += ["find_recorded", "is_current", "load", "notebook_definitions", "read"]
__all__ += ["recorded", "replace_recording", "run_notebook", "save", "write"]
__all__ += ["write_journal", "write_notebook"]
