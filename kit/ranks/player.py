"""The rank's end of a session: it leads the lives that the kernel asks for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from multiprocessing.connection import Client, Connection
from typing import Any

from kit.clock.experiment import ExperimentError
from kit.clock.life import LocalLife
from kit.clock.log import Block
from kit.clock.stage import LocalStage
from kit.progress import Progress
from kit.ranks.rank import here, lend

_SECONDS_BETWEEN_LOOKS = 0.25
#: The command that ends a session.
END = "end"


def play(address: tuple[str, int], key: bytes) -> None:
    """Do what comes over a connection to the kernel, until it says so."""
    import cloudpickle

    with Client(address, authkey=key) as connection:
        connection.send_bytes(cloudpickle.dumps(here().seat.number))
        player = Player()
        try:
            while True:
                verb, arguments = cloudpickle.loads(_receive(connection))
                if verb == END:
                    return
                answer = getattr(player, verb)(*arguments)
                connection.send_bytes(cloudpickle.dumps(answer))
        except ExperimentError as error:
            # What the reader's code raised says more, in a traceback of its own.
            failure = error.__cause__ or error
        finally:
            player.leave_all()
    raise failure


def _receive(connection: Connection) -> bytes:
    while not connection.poll(_SECONDS_BETWEEN_LOOKS):
        pass  # an interrupt is heard in between
    return connection.recv_bytes()


class Player:
    """Stages and lives on this rank, by the kernel's numbers: a method for a verb."""

    def __init__(self) -> None:
        self._stages: dict[int, tuple[LocalStage, tuple[int, ...]]] = {}
        self._lives: dict[int, tuple[LocalLife, tuple[int, ...]]] = {}
        self._entered: dict[int, contextlib.ExitStack] = {}
        self._contexts: list[tuple[contextlib.ExitStack, Any]] = []

    def prepare(
        self, stage: int, members: tuple[int, ...], payload: bytes
    ) -> list[str]:
        """Make a stage; return the names of what it shares."""
        import cloudpickle

        with here().within(members):
            experiment, knobs = cloudpickle.loads(payload)
            lend(experiment.own, here().names)
            made = LocalStage(experiment, knobs, may_idle=len(members) > 1)
        self._stages[stage] = made, members
        return made.shared

    def live(self, stage: int, life: int) -> None:
        """Make a life, which is not yet started."""
        made, members = self._stages[stage]
        self._lives[life] = made.live(Progress(made.experiment.name)), members

    def enter(self, life: int) -> None:
        """Swap in the state of a life and the world of its ranks."""
        made, members = self._lives[life]
        with contextlib.ExitStack() as stack:
            stack.enter_context(here().within(members))
            stack.enter_context(made.active())
            self._entered[life] = stack.pop_all()

    def leave(self, life: int) -> bool:
        """Swap them out; return whether the life can be suspended."""
        self._entered.pop(life).close()
        return self._lives[life][0].can_be_suspended

    def start(self, life: int, seed: int) -> float | None:
        """Start a generator, and run it to its first yield."""
        return self._lives[life][0].start(seed)

    def time(self, life: int, count: int) -> Block:
        """Time so many steps."""
        return self._lives[life][0].time(count)

    def call(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Call a function here."""
        return function(*arguments)

    def open(self, make: Callable[[], Any]) -> None:
        """Enter a context."""
        with contextlib.ExitStack() as stack:
            value = stack.enter_context(make())
            self._contexts.append((stack.pop_all(), value))

    def shut(self, read: Callable[[Any], Any]) -> Any:
        """Leave the latest context; return what `read` makes of what it gave."""
        stack, value = self._contexts.pop()
        stack.close()
        return read(value)

    def close(self, life: int) -> list[str]:
        """Close a generator; return the child processes that had to be ended."""
        made, members = self._lives.pop(life)
        self._entered.pop(life, contextlib.ExitStack()).close()
        with here().within(members):
            return made.close()

    def leave_all(self) -> None:
        """Leave and close what is still there, and put back what is shared."""
        for stack in self._entered.values():
            stack.close()
        while self._contexts:
            self._contexts.pop()[0].close()
        for made, _ in self._lives.values():
            with contextlib.suppress(Exception):  # another error is on its way
                made.close(KeyboardInterrupt())
        for stage, _ in self._stages.values():
            stage.close()
