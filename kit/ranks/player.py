"""The rank's end of a session: it leads the lives that the kernel asks for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from multiprocessing.connection import Client, Connection
from typing import Any

from kit.experiment import ExperimentError
from kit.life import Block, Life
from kit.progress import Progress
from kit.ranks.rank import here, lend
from kit.variant import Variant

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
    """Variants and lives on this rank, by the kernel's numbers: a method for a verb."""

    def __init__(self) -> None:
        self._variants: dict[int, tuple[Variant, tuple[int, ...]]] = {}
        self._lives: dict[int, tuple[Life, contextlib.ExitStack]] = {}
        self._contexts: list[tuple[contextlib.ExitStack, Any]] = []

    def prepare(
        self, variant: int, members: tuple[int, ...], payload: bytes
    ) -> list[str]:
        """Make a variant; return the names of what it shares."""
        import cloudpickle

        with here().within(members):
            experiment, knobs = cloudpickle.loads(payload)
            lend(experiment.own, here().names)
            made = Variant(experiment, knobs, may_idle=len(members) > 1)
            names = made.shared.names
        self._variants[variant] = made, members
        return names

    def live(self, variant: int, life: int) -> None:
        """Make a life in the world of its ranks, which is not yet started."""
        made, members = self._variants[variant]
        with contextlib.ExitStack() as stack:
            stack.enter_context(here().within(members))
            led = made.lead(0, Progress(made.experiment.name))
            led.look_around()
            self._lives[life] = led, stack.pop_all()

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

    def close(self, life: int, because: BaseException | None = None) -> list[str]:
        """Close a generator; return the child processes that had to be ended."""
        led, stack = self._lives.pop(life)
        ended = led.variant.ended_children
        ended.clear()
        with stack:
            led.close(because)
        return ended

    def leave_all(self) -> None:
        """Leave and close what is still there, and put back what is shared."""
        while self._contexts:
            self._contexts.pop()[0].close()
        for life in [*self._lives]:
            with contextlib.suppress(Exception):  # another error is on its way
                self.close(life, KeyboardInterrupt())
        for variant, _ in self._variants.values():
            variant.close()
