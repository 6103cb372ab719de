"""Chapter 08: the compiler's folder and what it wrote, launches, first losses."""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import kit


@cache
def make_folder() -> tempfile.TemporaryDirectory:
    """Make a folder for what the compiler builds; it is deleted when Python ends."""
    return tempfile.TemporaryDirectory()


def choose_backend(device: torch.device) -> str:
    """Give the compiler an empty folder and a quiet log; return its backend.

    The backend is `inductor`, or `eager`, which builds nothing: in quick mode, and on
    a CPU without a C++ compiler.
    """
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = make_folder().name
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # builds one piece at a time
    logging.getLogger("torch").setLevel(logging.ERROR)
    can_build = device.type != "cpu" or shutil.which("g++") or shutil.which("clang++")
    return "inductor" if can_build and not kit.quick else "eager"


def prepare_compiler(device: torch.device) -> str:
    """Prepare the compiler, for scripts as well; print and return its backend."""
    backend = choose_backend(device)
    os.environ["OMP_NUM_THREADS"] = "1"  # of scripts that the notebook runs
    os.environ["TORCH_LOGS"] = "-torch.utils.cpp_extension"  # of the same scripts
    print(f"torch.compile uses the backend {backend} here.")
    return backend


def show_generated() -> None:
    """Print the loop that was built, and how many tensors a call of it makes.

    C++ is shown without casts of numbers that count, of Triton only the kernel's name.
    """
    for path in sorted(Path(make_folder().name).rglob("*.main.cpp")):
        for line in path.read_text().splitlines():
            if "tmp" in line:
                line = re.sub(r"static_cast<int64_t>\((\w+)\)", r"\1", line.strip())
                print(line.replace("at::vec::", "").replace("auto ", ""))
    for path in sorted(Path(make_folder().name).rglob("*.py")):
        text = path.read_text()
        for name in re.findall(r"def (triton_\w+)", text):
            print("a kernel of Triton:", name)
        if "def call(" in text:
            made = re.findall(r"buf\d+ = empty_strided", text)
            print("new tensors in a call:", len(made))


def first_losses(train: Callable[..., Iterator[Any]], **knobs: Any) -> torch.Tensor:
    """Return the losses of three steps from a fixed seed."""
    torch.manual_seed(0)
    steps = train(**knobs)
    return torch.stack([next(steps)[1]["loss"].detach() for _ in range(3)])


def count_launches(steps: Iterator[Any]) -> int:
    """Run two steps; return how many operations of the second no other one calls.

    A GPU's kernels are not counted again.
    """
    next(steps)
    with profile(activities=[ProfilerActivity.CPU]) as log:
        next(steps)
    return sum(event.cpu_parent is None for event in log.events())
