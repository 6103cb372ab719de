"""Which code a calibration belongs to: a hash of what measures."""

import ast
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "tutorials" / "scripts"))

from fingerprints import Measured, digest, parse, write

#: The modules of the kit that decide what a number is.
MEASURING = (
    "clock",
    "records",
    "statistics",
    "system",
    "measuring/experiment",
    "measuring/measurement",
    "measuring/doubt",
    "measuring/plan",
    "measuring/quantity",
    "measuring/rates",
    "measuring/ratio",
    "measuring/rounds",
    "measuring/run",
    "measuring/settings",
    "measuring/shared",
    "measuring/silence",
    "measuring/state",
    "measuring/variant",
)


class _WithoutMessages(Measured):
    """Takes out docstrings, and the texts of errors and reports."""

    def visit_Constant(self, node):  # noqa: N802
        is_message = isinstance(node.value, str) and " " in node.value
        return ast.Constant("") if is_message else node

    def visit_JoinedStr(self, node):  # noqa: N802
        return ast.Constant("")


def hash_measuring(folder):
    """Return a hash of what measures in a folder, without docstrings and messages."""
    texts = []
    for name in MEASURING:
        tree = parse((folder / f"{name}.py").read_text("utf-8"))
        texts.append(f"{name}: {write(_WithoutMessages().visit(tree))}")
    return digest("\n".join(texts))
