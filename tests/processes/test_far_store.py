"""Chapter 05's store: what its proxy counts, slows and breaks, as a client sees it."""

import contextlib
import importlib.util
import re
import runpy
import time
from pathlib import Path

import pytest
from botocore.exceptions import EndpointConnectionError
from far_store import FarStore
from s3fs import S3FileSystem

PHOTOS = {f"data/few/{n}": bytes([n]) * 100_000 for n in range(4)}


@pytest.fixture(scope="module")
def store():
    with contextlib.closing(FarStore()) as store:
        for path, data in PHOTOS.items():
            store.put(path, data)
        yield store


@pytest.fixture(scope="module")
def client(store):
    quick = {"connect_timeout": 5, "retries": {"max_attempts": 0}}
    account = {"key": "any", "secret": "any", "config_kwargs": quick}
    client = S3FileSystem(endpoint_url=store.url, **account)
    client.find("data/few")
    return client


def every(n, fault):
    return lambda number, path: fault if number % n == 0 else None


#: What the proxy answers, and what chapter 05 tells its readers to expect of it.
FAULTS = {
    "busy now and then": (every(3, 503), ""),
    "busy for good": (every(1, 503), "OSError: .*SlowDown"),
    "no rights": (every(1, 403), "PermissionError: .*AccessDenied"),
    "no such object": (every(1, 404), "FileNotFoundError: .*NoSuchKey"),
    "cut once in a while": (every(3, "cut"), ""),
    "always cut": (every(1, "cut"), "ClientPayloadError: .*not completed"),
}


@pytest.mark.parametrize(("fault", "told"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_survived_whole_or_told(store, client, fault, told):
    paths = [*PHOTOS][:1] if told else [*PHOTOS]
    store.fault, got, said = fault, {}, ""
    store.reset()
    try:
        got = client.cat(paths, batch_size=1)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    finally:
        store.fault = every(1, None)
    assert re.match(told, said) if told else not said, said
    assert got == ({} if told else PHOTOS), "half an object got through"
    assert told or store.requests > len(PHOTOS), "nothing was asked for again"


def test_requests_and_bytes_are_counted_and_cost_what_the_knobs_say(store, client):
    try:
        store.latency, store.bandwidth = 0.05, 4e6
        store.reset()
        begun = time.perf_counter()
        assert client.cat([*PHOTOS], batch_size=1) == PHOTOS
        took = time.perf_counter() - begun
    finally:
        store.latency, store.bandwidth = 0.0, float("inf")
    assert (store.requests, store.bytes) == (4, 400_000)
    assert took >= 4 * 0.05 + 400_000 / 4e6
    assert store.log == [("GET", f"/{path}", "") for path in PHOTOS]
    assert client.cat_file("data/few/1", start=5, end=9) == PHOTOS["data/few/1"][5:9]
    assert (store.requests, store.bytes) == (5, 400_004)
    assert store.log[-1] == ("GET", "/data/few/1", "5-8")


def test_the_server_ends_with_the_kernel_and_its_absence_is_told(store, client):
    """The last test here. The server's standard input ends with whoever holds it."""
    store._server.stdin.close()
    assert store._server.wait(20) == 0
    store.close()
    client.retries = 1
    with pytest.raises(EndpointConnectionError, match=store.url):
        client.cat_file("data/few/0", start=0, end=9)


def test_without_the_extra_one_line_says_what_to_install(monkeypatch):
    path = Path(__file__).resolve().parents[2] / "tutorials" / "far_store.py"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install --editable '\.\[store\]'"):
        runpy.run_path(str(path))
