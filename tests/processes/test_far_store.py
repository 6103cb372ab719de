"""Chapter 05's store breaks as a real one does, and a client sees it."""

import contextlib

import pytest
from far_store import FarStore
from s3fs import S3FileSystem

PHOTOS = {f"data/few/{number}": bytes([number]) * 100_000 for number in range(4)}


@pytest.fixture(scope="module")
def store():
    with contextlib.closing(FarStore()) as started:
        for path, data in PHOTOS.items():
            started.put(path, data)
        yield started


@pytest.fixture
def client(store):
    options = {"connect_timeout": 5, "retries": {"max_attempts": 0}}
    account = {"key": "any", "secret": "any", "config_kwargs": options}
    client = S3FileSystem(endpoint_url=store.url, **account)
    client.find("data/few")
    store.reset()
    yield client
    store.fault = lambda number, path: None


@pytest.mark.parametrize("answer", [503, "cut"])
def test_a_fault_now_and_then_is_survived_without_loss(store, client, answer):
    store.fault = lambda number, path: None if number % 3 else answer
    assert client.cat(list(PHOTOS), batch_size=1) == PHOTOS
    assert store.requests > len(PHOTOS), "nothing was asked for again"


@pytest.mark.parametrize(
    ("answer", "error"),
    [(503, OSError), (403, PermissionError), (404, FileNotFoundError)],
)
def test_a_fault_for_good_is_raised(store, client, answer, error):
    store.fault = lambda number, path: answer
    with pytest.raises(error):
        client.cat_file("data/few/0")
