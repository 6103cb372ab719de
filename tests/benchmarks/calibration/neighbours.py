"""A neighbor: somebody else's process that keeps a core busy, from outside.

It is no child of the process that starts it, nor of the one that measures: what one's
own children use counts as one's own cost. It ends with the `with` block, and also when
the process that started it dies, for then the pipe that it reads is closed.
"""

import contextlib
import subprocess
import sys

# Forks and leaves, so that the system adopts the neighbor. Its second thread waits for
# the end of the pipe; its standard output says "ready", and by closing, that it ended.
_NEIGHBOUR = """
import os, sys, threading

if os.fork():
    os._exit(0)
os.setsid()
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
print("ready", flush=True)
while True:
    sum(range(1000))
"""


@contextlib.contextmanager
def neighbour():
    """Start a process that keeps one core busy."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", _NEIGHBOUR],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as starter:
        assert starter.stdin is not None and starter.stdout is not None
        if starter.stdout.readline() != b"ready\n":
            raise RuntimeError("the neighbor did not start")
        starter.wait()  # it has left: the neighbor is nobody's child
        try:
            yield
        finally:
            starter.stdin.close()
            starter.stdout.read()  # ends when the neighbor has


CONDITIONS = {"quiet": contextlib.nullcontext, "busy": neighbour}
