"""What a panel shows where it has no controls: in a stored notebook, or as text.

The variable KIT_STATIC asks for it: "1" where a notebook keeps it, "text" where there
is none, as in `python -m kit record --plain`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


def is_static() -> bool:
    """Return whether panels are to show what needs no front end."""
    return os.environ.get("KIT_STATIC") in ("1", "text")


def show_static(
    name: str, make_html: Callable[[], str], make_text: Callable[[], str]
) -> None:
    """Show a panel's name and what it found, as HTML or as text."""
    if os.environ["KIT_STATIC"] == "text":
        sys.stdout.write(f"{name}\n{make_text()}\n")
        return
    from IPython.display import display

    display({"text/plain": name, "text/html": make_html()}, raw=True)
