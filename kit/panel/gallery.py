"""`Gallery`: read a loop, guess what takes its time, diagnose it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kit.diagnosis import Diagnosis, trace
from kit.diagnosis.diagnosing import check_seconds, diagnose_watched
from kit.experiment import Experiment, ExperimentError, named, resolve
from kit.figures import format_value
from kit.panel.driver import Driver
from kit.panel.findings import CAUSES, Findings
from kit.panel.static import is_static, show_static
from kit.progress import Progress, Stopped

if TYPE_CHECKING:
    from kit.panel.gallery_view import GalleryView


class Gallery:
    """Training loops to read and to guess about; each is diagnosed on request.

    `loops` maps names to experiments, `seconds` is about how long a diagnosis takes.
    `run(name)` diagnoses one from code as the button does; `diagnoses` maps names to
    the latest diagnoses. PyTorch's settings for a thread, as the number of its threads,
    are for the button those of when the gallery was made. Raises ExperimentError for
    what cannot be diagnosed.

    >>> def train():
    ...     while True:
    ...         yield sum(range(10_000)) and 1
    >>> Gallery({"A": train, "B": train})
    Gallery of 2 loops: A, B
    """

    def __init__(self, loops: Mapping[str, object], *, seconds: float = 12.0) -> None:
        check_seconds("Gallery()", seconds)
        self._loops, self._seconds = _resolve(loops), seconds
        self._findings = Findings(self._loops)
        self._view: GalleryView | None = None
        self._driver = Driver(
            self._show, lambda partial: None, self.close, follows_cells=False
        )
        trace.prepare()

    @property
    def diagnoses(self) -> dict[str, Diagnosis]:
        """The latest diagnosis of each loop that has one, by name."""
        return dict(self._findings.diagnoses)

    def run(self, name: str, guess: str | None = None) -> Diagnosis:
        """Diagnose one loop, whose cause was guessed or not; return the diagnosis.

        Raises ExperimentError for a loop or a cause that is not there, and where the
        diagnosis fails or is stopped.
        """
        _check("a loop of this gallery", "name", name, self._loops)
        if guess is not None:
            _check("a cause", "guess", guess, CAUSES)
        self._driver.run(f"diagnosing {name}", lambda p: self._diagnose(name, guess, p))
        return self._findings.last(name)

    def start(self, name: str, guess: str | None) -> None:
        """Diagnose one loop in the background, as the button does."""
        self._driver.start(
            f"diagnosing {name}", lambda p: self._diagnose(name, guess, p)
        )

    def stop(self) -> None:
        """Stop the diagnosis after the loop's current step."""
        self._driver.stop()

    def close(self) -> None:
        """Stop the diagnosis, and take the controls out of service."""
        self._driver.close()
        if self._view is not None:
            self._view.close()

    def _diagnose(self, name: str, guess: str | None, progress: Progress) -> None:
        experiment = self._loops[name]
        try:
            knobs = experiment.bind({})
            found = diagnose_watched(experiment, knobs, progress, self._seconds)
        except Stopped:
            self._findings.stop(name, guess)
        except Exception as error:
            self._findings.fail(name, guess, error)
        else:
            self._findings.add(name, guess, found)

    # What the view asks for

    @property
    def title(self) -> str:
        """What there is to do."""
        return "What takes the time? Read, guess, diagnose"

    @property
    def results(self) -> Findings:
        """What was found, as pictures, words and tables."""
        return self._findings

    @property
    def driver(self) -> Driver:
        """What runs the diagnoses."""
        return self._driver

    @property
    def loops(self) -> Mapping[str, Experiment]:
        """The loops, by name."""
        return self._loops

    @property
    def seconds(self) -> float:
        """How long a diagnosis takes, about."""
        return self._seconds

    def _show(self) -> None:
        if self._view is not None:
            self._view.refresh()

    def __repr__(self) -> str:
        count = f"{len(self._loops)} loop{'s' * (len(self._loops) > 1)}"
        return f"Gallery of {count}: {', '.join(self._loops)}"

    def _ipython_display_(self) -> None:
        # A stored widget would be an error message. Nothing is diagnosed either: that
        # would give the answers away.
        if is_static():
            show_static(repr(self), self._findings.invitation())
            return
        from kit.panel.gallery_view import GalleryView

        if self._view is None:
            self._view = GalleryView(self)
        self._view.display()


def _resolve(loops: object) -> dict[str, Experiment]:
    """Return the loops as experiments; raise ExperimentError where one cannot be."""
    if not isinstance(loops, Mapping) or not loops:
        raise ExperimentError(
            f"Gallery(): {format_value(loops)} has no loops to choose from.\n"
            'Pass experiments by name, as in Gallery({"A": train}).'
        )
    with named("Gallery()"):
        found = {str(name): resolve(loop) for name, loop in loops.items()}
        for experiment in found.values():
            experiment.bind({})
    return found


def _check(kind: str, argument: str, value: Any, known: Mapping[str, object]) -> None:
    if not isinstance(value, str) or value not in known:
        names = ", ".join(map(repr, known))
        raise ExperimentError(
            f"Gallery.run: {argument}={format_value(value)} is not {kind}.\n"
            f"Choose one of {names}."
        )
