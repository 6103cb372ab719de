"""Where a calibration comes from: machine, versions, commit, the kit's very sources."""

from __future__ import annotations

import hashlib
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import kit

_ROOT = Path(kit.__file__).parent.parent
_PACKAGES = ("torch", "pyperf", "numpy", "scipy")


def find() -> dict[str, Any]:
    """Return what a session's results depend on, as JSON can hold it."""
    return {
        "machine": kit.this_machine().to_dict(),
        "commit": _git("rev-parse", "HEAD"),
        "changed": bool(_git("status", "--porcelain", "--", "kit")),
        "kit": hash_sources(_ROOT / "kit"),
        "harness": hash_sources(Path(__file__).parent),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def hash_sources(folder: Path) -> str:
    """Return a digest of all Python files below a folder, names and contents."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode())
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(_ROOT), *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
