"""Record chapters, one after another: on a quiet machine, until the time is over."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.machine import ticks
from kit.recording.files import Recording, RecordingError, read
from kit.recording.notebooks import replace_recording, run_notebook, write_notebook

#: Kept back from the time there is: to interrupt a cell and write down what was
#: measured, and for the check that the machine is still quiet.
_SECONDS_TO_END, _SECONDS_TO_CHECK = 15.0, 30.0

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Manner:
    """How chapters are recorded, and where to.

    `into` is a folder for recordings and notebooks, instead of the chapter's own.
    `smoke` is as short as can be, `dry_run` writes nothing, `plain` does without
    Jupyter and its notebooks. After `seconds` for all, the running chapter is cut.
    """

    into: Path | None = None
    smoke: bool = False
    dry_run: bool = False
    plain: bool = False
    seconds: float | None = None

    def check(self, notebooks: Iterable[Path]) -> None:
        """Raise RecordingError where this would put half a result before readers."""
        if self.smoke and not (self.into or self.dry_run):
            raise RecordingError(
                "record: --smoke is a short run, which says nothing about speed.\n"
                "Name a folder of its own: --into FOLDER; or add --dry-run."
            )
        if self.seconds and (self.plain or not self.into):
            raise RecordingError(
                "record: --seconds may cut a chapter, whose notebook replaces none.\n"
                "Name a folder for it, --into FOLDER, and leave --plain out."
            )
        for path in notebooks if self.into else ():
            chapters = path.parent.resolve()
            if self.into.resolve() in (chapters, chapters / "recordings"):
                raise RecordingError(
                    f"record: --into {self.into} is where readers look.\n"
                    "Name a folder of its own, or leave --into out."
                )

    def needs_quiet(self, path: Path) -> bool:
        """Return whether speeds will be read off what is written."""
        return not self.smoke and not self.dry_run and keeps_trials(path)


def keeps_trials(path: Path) -> bool:
    """Return whether what a notebook measures is kept: a solution has no chapter."""
    return path.parent.name != "solutions"


def record_chapters(
    notebooks: Sequence[Path],
    manner: Manner,
    *,
    tell: Tell,
    warn: Tell,
    judge: Callable[[Recording], Iterable[str]],
) -> bool:
    """Run chapters, keep outputs and what was measured; return whether all is there.

    What fails is told by `warn`, and the others are recorded all the same. `judge`
    says what became of the claims. Raises RecordingError where the machine is not
    quiet before a chapter begins.
    """
    manner.check(notebooks)
    # All that runs here has full length; only what the cells see is told otherwise.
    os.environ.pop("KIT_SMOKE", None)
    environment = {**os.environ, "KIT_SMOKE": "1"} if manner.smoke else {**os.environ}
    deadline = ticks.CLOCK.wall() + (manner.seconds or math.inf)
    is_quiet, is_whole = False, True
    for path in notebooks:
        needs_quiet = manner.needs_quiet(path)
        to_end = _SECONDS_TO_END + _SECONDS_TO_CHECK * needs_quiet
        if needs_quiet and not is_quiet and _left(deadline, to_end) > 0:
            tell(f"  {check_quiet()}")
        if _left(deadline, to_end) <= 0:
            warn(f"{path}: left out, there is no time left.")
            is_whole = False
            continue
        tell(f"recording {path} …")
        is_quiet = False
        try:
            seconds = _left(deadline, to_end)
            made, notebook, is_cut = _run(path, environment, manner, seconds)
        except Exception as error:
            warn(f"{path}: {error}")
            is_whole = False
            continue
        for line in judge(made):
            tell(f"  {line}")
        if is_cut:
            warn(f"{path}: cut, the time is over. Comparisons made by then are kept.")
            is_whole = False
        if needs_quiet:  # so that it serves for the next one, too
            try:
                tell(f"  {check_quiet()}")
                is_quiet = True
            except RecordingError as error:
                warn(f"{path}: nothing of it is kept, for {error}")
                is_whole = False
                continue
        if not manner.dry_run:
            for written in _keep(path, made, notebook, is_cut, manner):
                tell(f"  {written}")
    return is_whole


def check_quiet() -> str:
    """Return how quiet this machine is; raise RecordingError where it is not."""
    from kit.recording import quiet  # it needs PyTorch

    return quiet.check_quiet()


def _left(deadline: float, to_end: float) -> float:
    return deadline - to_end - ticks.CLOCK.wall()


def _run(
    path: Path, environment: Mapping[str, str], manner: Manner, seconds: float
) -> tuple[Recording, Any, bool]:
    """Run a chapter; return what it made, its notebook if any, and whether it was cut.

    The notebook has outputs; without Jupyter there is None.
    """
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal.json"
        if manner.plain:
            from kit.recording.plain import run_plainly

            run_plainly(path, journal, environment)
            return read(journal), None, False
        notebook, is_cut = run_notebook(path, journal, environment, seconds)
        return read(journal), notebook, is_cut


def _keep(
    path: Path, made: Recording, notebook: Any, is_cut: bool, manner: Manner
) -> Iterable[Path]:
    """Write the recording, then the notebook; yield where."""
    if made.trials and keeps_trials(path):
        if manner.smoke:
            for trial in made.trials:
                trial.conditions["smoke"] = 1.0
        folder = manner.into or path.parent / "recordings"
        yield replace_recording(path, made, folder)
    if notebook is not None:
        target = path
        if manner.into:
            name = f"{path.stem}_cut.ipynb" if is_cut else path.name
            target = manner.into / name
        write_notebook(notebook, target)
        yield target
