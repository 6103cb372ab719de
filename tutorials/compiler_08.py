"""The compiler of chapter 08: where it keeps what it builds, and what it wrote."""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
from pathlib import Path

import torch

import kit

#: What the compiler builds; it is deleted when Python ends.
FOLDER = tempfile.TemporaryDirectory()


def prepare_compiler(device: torch.device) -> str:
    """Give the compiler an empty folder and a quiet log; print, return its backend.

    The backend is `inductor`, or `eager`, which builds nothing: in quick mode, and on
    a CPU without a C++ compiler.
    """
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = FOLDER.name
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # builds one piece at a time
    os.environ["OMP_NUM_THREADS"] = "1"  # of scripts that the notebook runs
    os.environ["TORCH_LOGS"] = "-torch.utils.cpp_extension"  # of the same scripts
    logging.getLogger("torch").setLevel(logging.ERROR)
    can_build = device.type != "cpu" or shutil.which("g++") or shutil.which("clang++")
    backend = "inductor" if can_build and not kit.quick else "eager"
    print(f"torch.compile uses the backend {backend} here.")
    return backend


def show_generated() -> None:
    """Print the loop that was built: C++ as it is, of Triton the kernel's name."""
    for path in sorted(Path(FOLDER.name).rglob("*.main.cpp")):
        for line in path.read_text().splitlines():
            if "tmp" in line:
                print(line.strip().replace("at::vec::", "").replace("auto ", ""))
    for path in sorted(Path(FOLDER.name).rglob("*.py")):
        for name in re.findall(r"def (triton_\w+)", path.read_text()):
            print("a kernel of Triton:", name)
