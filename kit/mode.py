"""Modes of the kit, which variables of the environment ask for."""

from __future__ import annotations

import os


def is_quick() -> bool:
    """Return whether KIT_QUICK=1 asks for quick mode: a few steps of each choice."""
    return os.environ.get("KIT_QUICK") == "1"


def is_static() -> bool:
    """Return whether KIT_STATIC=1 asks for panels as pictures, and for no progress."""
    return os.environ.get("KIT_STATIC") == "1"
