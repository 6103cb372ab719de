"""A store that is far away: an S3 server on this machine, and a long way to it.

Chapter 05 reads from it. The server is moto, in a process of its own. It speaks S3 as a
client hears it, but it is a mock: it keeps objects in memory and believes every key.
Before it stands a proxy, in a thread of this process. Clients talk to the proxy, which
makes each request wait, sends the answers over one link, and counts both.

    client ── request ──> proxy: wait `latency` ──> server
    client <── bytes ──── proxy: `bandwidth`   <──  server
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import http.client
import math
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec

import kit

MISSING = [name for name in ("moto", "pyarrow", "s3fs") if find_spec(name) is None]
if MISSING:
    raise ImportError(
        f"chapter 05 also needs {', '.join(MISSING)}. In the repository's folder say: "
        ".venv/bin/python -m pip install --editable '.[store]'"
    )

#: The server's process. It ends when its standard input does: with ours, at the latest.
SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.disable()
server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)  # a free port
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter
#: How the other end of a connection goes away, or this one is closed.
GONE = asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError
#: What the proxy can answer in place of the server.
REFUSALS = {403: "AccessDenied", 404: "NoSuchKey", 503: "SlowDown"}
PIECE = 65_536
#: A quick run waits a tenth as long.
WAITING_SHARE = 0.1 if kit.quick else 1.0
#: A key that a real server would refuse.
KEY = {"Authorization": "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/s3/aws4"}


class FarStore:
    """An S3 server with a long way to it, until `close()`.

    `latency` is in seconds, for each request; `bandwidth` in bytes a second, for all
    answers together. Both may be changed at any time. `requests` and `bytes` count what
    came to the proxy and the bodies that it sent; `log` has each request's method, path
    and range. `fault(number, path)` is asked about each request, counted from 1: it
    returns None, a key of REFUSALS, or "cut", and then the body ends after half of its
    bytes.
    """

    def __init__(self) -> None:
        self.latency = 0.0
        self.bandwidth = math.inf
        self.fault: Callable[[int, str], int | str | None] = lambda number, path: None
        self.reset()
        self._free_at = 0.0  # when the link will have sent all that it was given
        command = [sys.executable, "-c", SERVER]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._server = subprocess.Popen(command, start_new_session=True, **pipes)
        atexit.register(self.close)
        self._server_port = int(self._server.stdout.readline())
        self._is_ready = threading.Event()
        proxy = self._serve()
        self._thread = threading.Thread(target=asyncio.run, args=[proxy], daemon=True)
        self._thread.start()
        self._is_ready.wait()

    @property
    def url(self) -> str:
        """Return where clients find the store: `endpoint_url`."""
        return f"http://127.0.0.1:{self._port}"

    def put(self, path: str, data: bytes) -> None:
        """Put "bucket/name" into the store, past the proxy: not slowed, not counted."""
        server = http.client.HTTPConnection("127.0.0.1", self._server_port)
        bucket = path.partition("/")[0]
        with contextlib.closing(server):
            for place, body in ((bucket, b""), (path, data)):
                server.request("PUT", f"/{place}", body, KEY)
                answer = server.getresponse().read()
                assert not answer, f"cannot put {path}: {answer[:300]}"

    def reset(self) -> None:
        """Count from zero."""
        self.requests = 0
        self.bytes = 0
        self.log: list[tuple[str, str, str]] = []

    def close(self) -> None:
        """End proxy and server."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        with self._server:
            self._server.kill()

    # The proxy

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        proxy = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        self._port = proxy.sockets[0].getsockname()[1]
        self._is_ready.set()
        await self._stop.wait()
        proxy.close()

    async def _talk(self, client: Reader, answer: Writer) -> None:
        """Answer a client's requests, one by one, until one of the two hangs up."""
        with contextlib.suppress(*GONE):
            while await self._pass_on(client, answer):
                await answer.drain()
        answer.close()

    async def _pass_on(self, client: Reader, answer: Writer) -> bool:
        """Pass on one request and its answer; return whether the client may go on."""
        head = await client.readuntil(b"\r\n\r\n")
        body = await client.readexactly(find_length(head))
        text = head.decode("latin-1")
        method, path, _ = text.split(" ", 2)
        wanted = re.search(r"(?i)\r\nrange: *bytes=(\S+)", text)
        self.requests += 1
        self.log.append((method, path, wanted[1] if wanted else ""))
        fault = self.fault(self.requests, path)
        await asyncio.sleep(self.latency * WAITING_SHARE)
        if fault in REFUSALS:
            answer.write(write_refusal(fault, method))
            return True
        server, ask = await asyncio.open_connection("127.0.0.1", self._server_port)
        with contextlib.closing(ask):
            ask.write(head + body)
            head = await server.readuntil(b"\r\n\r\n")
            # The server hangs up after each answer. Clients of a real store need not.
            answer.write(head.replace(b"Connection: close\r\n", b""))
            length = 0 if method == "HEAD" else find_length(head)
            if fault == "cut":
                length //= 2
            await self._send(server, answer, length)
        return fault != "cut"

    async def _send(self, server: Reader, answer: Writer, length: int) -> None:
        """Send so much of a body, piece by piece; all answers share one link.

        A piece that leaves late, because this process was busy, delays no later one.
        """
        arrived = time.monotonic()
        while length:
            piece = await server.readexactly(min(length, PIECE))
            begun = max(arrived, self._free_at)
            self._free_at = begun + WAITING_SHARE * len(piece) / self.bandwidth
            await asyncio.sleep(self._free_at - time.monotonic())
            length -= len(piece)
            self.bytes += len(piece)  # counted before the client can have them
            answer.write(piece)


def write_refusal(status: int, method: str) -> bytes:
    """Return an answer that refuses a request, as S3 does."""
    code = REFUSALS[status]
    body = "" if method == "HEAD" else f"<Error><Code>{code}</Code></Error>"
    head = f"HTTP/1.1 {status} {code}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Content-Type: text/xml\r\n\r\n{body}".encode()


def find_length(head: bytes) -> int:
    """Return how long the body after such a head is.

    >>> find_length(b"HTTP/1.1 200 OK\\r\\nContent-Length: 7\\r\\n\\r\\n")
    7
    """
    found = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return int(found[1]) if found else 0
