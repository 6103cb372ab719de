"""What a panel shows where it has no controls: in a stored notebook (KIT_STATIC=1)."""

from __future__ import annotations

import os


def is_static() -> bool:
    """Return whether panels are to show what needs no front end."""
    return os.environ.get("KIT_STATIC") == "1"


def show_static(name: str, html: str) -> None:
    """Show a panel's name as text, and what it found as HTML."""
    from IPython.display import display

    display({"text/plain": name, "text/html": html}, raw=True)
