"""Record chapters, one after another: on a quiet machine, until the time is over."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.machine import ticks
from kit.recording.files import Recording, RecordingError, read
from kit.recording.notebooks import replace_recording, run_notebook, write_notebook

#: Kept back from the time there is: to interrupt a cell and write down what was
#: measured, and for the check that the machine is still quiet.
_SECONDS_TO_END, _SECONDS_TO_CHECK = 15.0, 30.0


@dataclass(frozen=True)
class Manner:
    """How chapters are recorded, and where to.

    `into` is a folder for recordings and notebooks, instead of the chapter's own.
    `smoke` is as short as can be, `dry_run` writes nothing. After `seconds` for all,
    the running chapter is cut.
    """

    into: Path | None = None
    smoke: bool = False
    dry_run: bool = False
    seconds: float | None = None

    def check(self, notebooks: Iterable[Path]) -> None:
        """Raise RecordingError where this would put half a result before readers."""
        if self.smoke and not (self.into or self.dry_run):
            raise RecordingError(
                "record: --smoke is a short run, which says nothing about speed.\n"
                "Name a folder of its own: --into FOLDER; or add --dry-run."
            )
        if self.seconds and not self.into:
            raise RecordingError(
                "record: --seconds may cut a chapter, whose notebook replaces none.\n"
                "Name a folder for it: --into FOLDER."
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


@dataclass
class Recorder:
    """Records one chapter after another, until the time is over.

    `tell` shows a line, `warn` what failed, `judge` says what became of the claims.
    """

    manner: Manner
    tell: Callable[[str], None]
    warn: Callable[[str], None]
    judge: Callable[[Recording], Iterable[str]]

    def __post_init__(self) -> None:
        # All that runs here has full length; only what cells see is told otherwise.
        os.environ.pop("KIT_SMOKE", None)
        self.environment = dict(os.environ)
        if self.manner.smoke:
            self.environment["KIT_SMOKE"] = "1"
        self.deadline = ticks.CLOCK.wall() + (self.manner.seconds or math.inf)
        self.is_quiet = False

    def record(self, path: Path) -> bool:
        """Run a chapter, keep outputs and what was measured; return whether all of it.

        Raises RecordingError where the machine is not quiet before it begins.
        """
        needs_quiet = self.manner.needs_quiet(path)
        to_end = _SECONDS_TO_END + _SECONDS_TO_CHECK * needs_quiet
        if needs_quiet and not self.is_quiet and self._left(to_end) > 0:
            self.tell(f"  {check_quiet()}")
        seconds = self._left(to_end)
        if seconds <= 0:
            self.warn(f"{path}: left out, there is no time left.")
            return False
        self.tell(f"recording {path} …")
        self.is_quiet = False
        try:
            made, notebook, is_cut = self._run(path, seconds)
        except Exception as error:
            self.warn(f"{path}: {error}")
            return False
        for line in self.judge(made):
            self.tell(f"  {line}")
        if needs_quiet:  # so that it serves for the next one, too
            try:
                self.tell(f"  {check_quiet()}")
            except RecordingError as error:
                self.warn(f"{path}: nothing of it is kept, for {error}")
                return False
            self.is_quiet = True
        if is_cut:
            self.warn(f"{path}: cut, the time is over. What was measured is kept.")
        if not self.manner.dry_run:
            self._keep(path, made, notebook, is_cut)
        return not is_cut

    def _left(self, to_end: float) -> float:
        return self.deadline - to_end - ticks.CLOCK.wall()

    def _run(self, path: Path, seconds: float) -> tuple[Recording, Any, bool]:
        """Run a chapter; return what it made, its notebook, and whether it was cut."""
        with tempfile.TemporaryDirectory() as folder:
            journal = Path(folder) / "journal.json"
            ran = run_notebook(path, journal, self.environment, seconds)
            return read(journal), *ran

    def _keep(self, path: Path, made: Recording, notebook: Any, is_cut: bool) -> None:
        """Write the recording, then the notebook; say where."""
        into = self.manner.into
        if made.trials and keeps_trials(path):
            if self.manner.smoke:
                for trial in made.trials:
                    trial.conditions["smoke"] = 1.0
            folder = into or path.parent / "recordings"
            self.tell(f"  {replace_recording(path, made, folder)}")
        name = f"{path.stem}_cut.ipynb" if is_cut else path.name
        target = into / name if into else path
        if into:
            into.mkdir(parents=True, exist_ok=True)
            self.tell(f"  {target}")
        write_notebook(notebook, target)


def check_quiet() -> str:
    """Return how quiet this machine is; raise RecordingError where it is not."""
    from kit.recording import quiet  # it needs PyTorch

    return quiet.check_quiet()
