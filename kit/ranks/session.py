"""A measurement on ranks: one call that does what the kernel asks, command by command.

The kernel decides everything (which life goes on, for how many steps, when it ends), so
ranks make equal steps without asking each other. Commands and answers go over
connections of their own.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from multiprocessing.connection import Connection, Listener, wait
from socket import gethostname
from typing import TYPE_CHECKING, Any

from kit import clock
from kit.progress import Progress, Stopped
from kit.ranks.player import END, play

if TYPE_CHECKING:
    from kit.ranks.team import Team

_SECONDS_BETWEEN_LOOKS = 0.05
#: Where others may answer in time, or not at all.
_SECONDS_FOR_NOW = 0.02
_SECONDS_BETWEEN_PRINTS = 0.25


class Session:
    """All ranks of a team, waiting for commands as long as one of `users` is there.

    Raises RankError where a rank fails, and Stopped where the progress is abandoned:
    then the session is over, and the ranks are ready for another.
    """

    def __init__(self, team: Team, progress: Progress, name: str) -> None:
        import cloudpickle

        from kit.ranks.packing import pack

        self.users: set[object] = set()
        #: What the latest command was answered, by rank.
        self.answers: dict[int, Any] = {}
        self._team, self._progress = team, progress
        self._pack, self._loads = pack, cloudpickle.loads
        self._connections: dict[int, Connection] = {}
        self._printed = clock.CLOCK.wall()
        everyone, key = range(len(team.engines.ids)), secrets.token_bytes(32)
        with Listener((team.host, 0), authkey=key) as listener:
            address = (team.host or gethostname(), listener.address[1])
            self._call = team.start(progress, everyone, play, (address, key), {})
            self._following = iter(self._call)
            self._call.name = f"{name}()"
            try:
                self._accept(listener, len(everyone))
            except BaseException as error:
                self.abandon(error)
                raise

    def _accept(self, listener: Listener, count: int) -> None:
        """Wait until each rank has connected and said which it is."""
        socket = listener._listener._socket  # type: ignore[attr-defined]
        while len(self._connections) < count:
            if wait([socket], _SECONDS_BETWEEN_LOOKS):
                connection = listener.accept()
                self._connections[self._loads(connection.recv_bytes())] = connection
            else:
                self._look()

    @property
    def is_open(self) -> bool:
        """Whether the ranks wait for commands."""
        return bool(self._connections)

    def ask(
        self, members: Sequence[int], verb: str, *arguments: object
    ) -> dict[int, Any]:
        """Let some ranks do the same; return what each answers."""
        self.send(members, verb, *arguments)
        return self.gather(members)

    def send(self, members: Sequence[int], verb: str, *arguments: object) -> None:
        """Send a command to some ranks."""
        message = self._pack(verb, (verb, arguments))
        for rank in members:
            self._connections[rank].send_bytes(message)

    def gather(
        self, members: Sequence[int], seconds: float | None = None
    ) -> dict[int, Any]:
        """Return what these ranks answer, or those of them that do in time."""
        answers = self.answers = {}
        deadline = None if seconds is None else clock.CLOCK.wall() + seconds
        try:
            while waiting := {
                self._connections[rank]: rank for rank in members if rank not in answers
            }:
                pause = _SECONDS_BETWEEN_LOOKS if seconds is None else _SECONDS_FOR_NOW
                ready = wait([*waiting], pause)
                for connection in ready:
                    rank = waiting[connection]  # type: ignore[index]
                    answers[rank] = self._receive(rank)
                if ready:
                    continue
                if deadline is not None and clock.CLOCK.wall() > deadline:
                    break
                if self._progress.abandoned:
                    raise Stopped
                self._look()
            self._print()
        except BaseException as error:
            self.abandon(error)
            raise
        return answers

    def _look(self) -> None:
        """See whether the call goes on, without waiting: an answer may come first."""
        self._call.patience, usual = 0.0, self._call.patience
        next(self._following)
        self._call.patience = usual

    def _receive(self, rank: int) -> Any:
        try:
            return self._loads(self._connections[rank].recv_bytes())
        except (EOFError, OSError):
            while True:  # it has failed, and the call is about to tell how
                next(self._following)

    def _print(self) -> None:
        if clock.CLOCK.wall() - self._printed > _SECONDS_BETWEEN_PRINTS:
            self._call.hear()
            self._printed = clock.CLOCK.wall()

    def leave(self, user: object) -> None:
        """Do without a user; the last one ends the session."""
        self.users.discard(user)
        if self.users or not self.is_open:
            return
        try:
            self.send([*self._connections], END)
            for _ in self._following:
                pass
        except BaseException as error:
            self.abandon(error)
            raise
        self._disconnect()
        self._call.__exit__(None, None, None)

    def abandon(self, because: BaseException) -> None:
        """End the call at once, whatever the ranks do, and get them ready again."""
        self._disconnect()
        self._call.__exit__(type(because), because, because.__traceback__)

    def _disconnect(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
