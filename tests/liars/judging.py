"""What a liar is, and how an answer to it is judged."""

from collections.abc import Callable, Generator
from dataclasses import dataclass

from liars.stages import SimulatedStage, Stage

Experiments = dict[str, Callable[[], Generator]]

#: The machine's own doings. A real machine may be too busy to tell, and then says so.
DISTURBED = ("other programs", "quota", "the host", "the machine's own speed")
#: Words of a reason that says: its steps are not all alike.
CHANGES = ("settle", "change", "drift", "slow steps")


@dataclass(frozen=True)
class Liar:
    """A pair of experiments that deceives, the truth, and what a tool may answer.

    `truth` is about speed, variant over baseline, `ratio` its value where it is exact
    in simulated time. A tool may also answer that it cannot tell, or refuse, with one
    of the words `excuses` in its reason. One that nobody can catch says why in
    `not_catchable`, and `deceived` is the verdict that it gets.
    """

    name: str
    truth: str
    simulated: Callable[["SimulatedStage"], Experiments] | None
    real: Callable[["Stage"], Experiments] | None
    ratio: float | None = None
    excuses: tuple[str, ...] = ()
    not_catchable: str = ""
    deceived: str = ""
    uses_device: bool = False
    seconds: float = 2.5

    @property
    def deception(self) -> str:
        """How it deceives, in one sentence."""
        return (self.simulated or self.real).__doc__.splitlines()[0]

    def judge(self, verdict: str, reason: str = "", *, real: bool = False) -> str:
        """Return right, wrong, says why, undecided, or not catchable.

        Only a real machine may leave it undecided: because something else disturbs it,
        or because two that are the same cannot be told to be within 2 %.
        """
        if self.not_catchable and verdict == self.deceived:
            return "not catchable"
        if verdict == self.truth:
            return "right"
        if verdict not in ("cannot tell", "refused"):
            return "wrong"
        if any(word in reason for word in self.excuses):
            return "says why"
        disturbed = any(word in reason for word in DISTURBED)
        undecided = verdict == "cannot tell" and (disturbed or self.truth == "same")
        return "undecided" if real and undecided else "wrong"
