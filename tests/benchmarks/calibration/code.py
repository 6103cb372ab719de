"""Which code a calibration belongs to: a hash of what measures."""

import ast
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "tutorials" / "scripts"))

from fingerprints import Measured, digest, parse, write

#: What only shows results, which no number depends on.
_SHOWS = "report.py"


class _WithoutMessages(Measured):
    """Takes out docstrings, and the texts of errors and reports."""

    def visit_Constant(self, node):  # noqa: N802
        is_message = isinstance(node.value, str) and " " in node.value
        return ast.Constant("") if is_message else node

    def visit_JoinedStr(self, node):  # noqa: N802
        return ast.Constant("")


def hash_measuring(folder):
    """Return a hash of what measures in a folder, without docstrings and messages."""
    paths = [folder / "clock.py", folder / "system.py"]
    paths += sorted((folder / "measuring").glob("*.py"))
    texts = []
    for path in paths:
        if path.name != _SHOWS:
            tree = parse(path.read_text("utf-8"))
            texts.append(f"{path.name}: {write(_WithoutMessages().visit(tree))}")
    return digest("\n".join(texts))
