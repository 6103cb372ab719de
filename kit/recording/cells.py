"""A notebook's cells as Python: magics and shell lines become calls, as in IPython."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

#: What a line that is not Python may be, and the call that IPython makes of it.
_LINES = (
    (r"(\s*)%(\w+) *(.*)", "{0}get_ipython().run_line_magic({1!r}, {2!r})"),
    (r"(\s*)!(.*)", "{0}get_ipython().system({1!r})"),
    (r"(\s*\w+ *= *)%(\w+) *(.*)", "{0}get_ipython().run_line_magic({1!r}, {2!r})"),
    (r"(\s*\w+ *= *)!(.*)", "{0}get_ipython().getoutput({1!r})"),
    (r"(\s*)([\w.]+)\?", "{0}get_ipython().run_line_magic('pinfo', {1!r})"),
)


def cell_source(cell: Mapping[str, Any]) -> str:
    """Return a cell's source as Python: magics and shell lines become calls.

    Of a cell that writes a file, it is what the file will hold.
    """
    source = "".join(cell["source"])
    if source.startswith("%%writefile"):
        return source.partition("\n")[2] if ".py" in source.splitlines()[0] else ""
    return make_python(source)


def make_python(source: str) -> str:
    """Return a cell's source with a call in place of each magic and shell line.

    As IPython does it, for what notebooks use.

    >>> make_python("%env WIDTH=3\\nx = 1")
    "get_ipython().run_line_magic('env', 'WIDTH=3')\\nx = 1\\n"
    """
    lines = source.splitlines()
    if lines and lines[0].startswith("%%"):
        name, _, line = lines[0][2:].partition(" ")
        body = "".join(line + "\n" for line in lines[1:])
        return f"get_ipython().run_cell_magic({name!r}, {line.strip()!r}, {body!r})\n"
    # Python itself says which line it does not understand: in a string, or after an
    # open bracket, "%" and "!" are no magic.
    while (number := _find_error(lines)) is not None:
        for pattern, call in _LINES:
            if found := re.fullmatch(pattern, lines[number].rstrip()):
                lines[number] = call.format(*found.groups())
                break
        else:  # it is no magic: whoever runs this will tell
            break
    return "".join(line + "\n" for line in lines)


def _find_error(lines: list[str]) -> int | None:
    """Return the index of the line where Python stops to understand, if it does."""
    try:
        ast.parse("\n".join(lines))
    except SyntaxError as error:
        number = (error.lineno or 0) - 1
        return number if 0 <= number < len(lines) else None
    return None
