"""Neighbors: other people's processes that keep a core busy, from outside.

A neighbor is no child of the process that starts it, nor of the one that measures: what
one's own children use counts as one's own cost. It ends with the `with` block, and also
when the process that started it dies, for then the pipe that it reads is closed.
"""

import contextlib
import functools
import subprocess
import sys

# Forks and leaves, so that the system adopts the neighbor. Its second thread waits for
# the end of the pipe; its standard output says "ready", and by closing, that it ended.
_NEIGHBOUR = """
import os, random, sys, threading, time

if os.fork():
    os._exit(0)
os.setsid()
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
print("ready", flush=True)
longest, before = map(float, sys.argv[1:])
time.sleep(before)
while True:
    end = time.monotonic() + (random.uniform(0, longest) if longest else 1.0)
    while time.monotonic() < end:
        sum(range(1000))
    time.sleep(random.uniform(0, longest))
"""


@contextlib.contextmanager
def neighbour(longest_pause, before=0.0):
    """Start a process that is busy, then rests for up to so long, and so on.

    It first waits for as many seconds as it shall be idle before.
    """
    with subprocess.Popen(
        [sys.executable, "-S", "-c", _NEIGHBOUR, str(longest_pause), str(before)],
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


CONDITIONS = {
    "quiet": contextlib.nullcontext,
    "busy": functools.partial(neighbour, 0.0),
}
