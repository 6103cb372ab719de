"""Experiments that add a known number of bytes: a tensor, two workers, shared pages."""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import time

import torch

#: In whole pages; so much that what a fork itself costs, some megabytes, is small.
BYTES = 400 * 1000 * 1000 // mmap.PAGESIZE * mmap.PAGESIZE


def tensor():
    """Fill one tensor."""
    filled = torch.ones(BYTES, dtype=torch.uint8)
    while True:
        time.sleep(0.002)
        yield len(filled)


def workers():
    """Let two child processes fill half of the bytes each, of their own."""
    with _children(_fill_own, BYTES // 2):
        while True:
            time.sleep(0.002)
            yield 1


def shared_pages():
    """Fill shared memory that two child processes read as well."""
    memory = mmap.mmap(-1, BYTES)  # shared with whoever is forked from here
    filled = torch.frombuffer(memory, dtype=torch.uint8)
    filled.fill_(1)
    with _children(_read_shared, filled):
        while True:
            time.sleep(0.002)
            yield len(filled)


def _fill_own(count, ready):
    filled = bytearray(b"1") * count
    ready.release()
    time.sleep(600)
    return filled


def _read_shared(filled, ready):
    filled.numpy().max()
    ready.release()
    time.sleep(600)


@contextlib.contextmanager
def _children(target, argument):
    context = multiprocessing.get_context("fork")
    ready = context.Semaphore(0)
    processes = [
        context.Process(target=target, args=(argument, ready), daemon=True)
        for _ in range(2)
    ]
    try:
        for process in processes:
            process.start()
        for _ in processes:
            if not ready.acquire(timeout=60):
                raise RuntimeError("a child process did not fill its memory")
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


ALLOCATIONS = {"tensor": tensor, "workers": workers, "shared_pages": shared_pages}
