"""The code cells of a notebook: their claims, and which code a claim belongs to.

A hash covers the syntax trees of the cells up to a claim's own. Comments, layout,
docstrings, prints, titles and a claim's own words do not count. It is the same on every
version of Python.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

#: A line of IPython's own: `%magic`, `!command`, `found = !command`, `name?`.
_MAGIC = re.compile(r"(?P<before>\s*(?:[\w.]+ *= *)?)(?:[%!?].*|[\w.]+\?{1,2})$")


class Cell(NamedTuple):
    """A code cell of a notebook."""

    name: str
    source: str


class ClaimError(Exception):
    """A claim cannot be judged as it is written; says which one, and why."""


def read_cells(text: str) -> list[Cell]:
    """Return the code cells of a notebook's text, in order; none tagged `colab`."""
    found = []
    for cell in json.loads(text)["cells"]:
        tags = cell["metadata"].get("tags", [])
        if cell["cell_type"] == "code" and "colab" not in tags:
            found.append(Cell(cell["id"], "".join(cell["source"])))
    return found


def read_notebook(path: Path) -> list[Cell]:
    """Return the code cells of a notebook, in order."""
    return read_cells(path.read_text(encoding="utf-8"))


def hash_claims(cells: Sequence[Cell]) -> dict[str, str]:
    """Return the hash of the code up to each claim, by the claim's sentence."""
    found: dict[str, str] = {}
    statements: list[str] = []
    for cell in cells:
        tree = _Measured().visit(parse(cell.source))
        statements += [_write(statement) for statement in tree.body]
        code = hashlib.sha256("\n".join(statements).encode()).hexdigest()[:12]
        for sentence, _ in find_claims(cell):
            if sentence in found:
                raise ClaimError(f"{sentence!r} stands twice: say what differs")
            found[sentence] = code
    return found


def find_claims(cell: Cell) -> Iterator[tuple[str, ast.Call]]:
    """Yield the sentence and the call of each claim in a cell.

    Raises ClaimError for a claim in a function or behind an `if`: nobody would know
    whether it was made.
    """
    tree = parse(cell.source)
    plain = [part for part in tree.body if isinstance(part, ast.Expr | ast.Assign)]
    certain = [node for statement in plain for node in ast.walk(statement)]
    for call in filter(_is_claim, ast.walk(tree)):
        text = ast.unparse(call)[:60]
        if call not in certain:
            raise ClaimError(f"{text}: write a claim at the top level of its cell")
        if len(call.args) != 2 or not isinstance(call.args[0], ast.Constant):
            raise ClaimError(f"{text}: write its sentence, as a string, and its ratio")
        for keyword in call.keywords:
            is_literal = isinstance(keyword.value, ast.Constant)
            if keyword.arg != "otherwise" and not is_literal:
                raise ClaimError(f"{text}: {keyword.arg}= must be a literal")
        yield str(call.args[0].value), call


def parse(source: str) -> ast.Module:
    """Parse a cell: a cell magic counts as text, a line magic not at all."""
    if source.startswith("%%"):
        return ast.Module([ast.Expr(ast.Tuple([ast.Constant(source)], ast.Load()))], [])
    lines = source.split("\n")
    try:
        return _parse(source)
    except SyntaxError:
        return _parse("\n".join(map(_replace_magic, lines)))


def _parse(source: str) -> ast.Module:
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return compile(source, "cell", "exec", flags)


def _replace_magic(line: str) -> str:
    magic = _MAGIC.match(line)
    return f"{magic['before']}None" if magic else line


def _is_claim(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    return getattr(node.func, "attr", getattr(node.func, "id", "")) == "claim"


class _Measured(ast.NodeTransformer):
    """Takes out what measures nothing: docstrings, prints, titles, a claim's words."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        """Drop a text, a magic, or a print."""
        call = node.value
        is_print = isinstance(call, ast.Call) and ast.unparse(call.func) == "print"
        if is_print or isinstance(call, ast.Constant):
            return None
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Drop a title, and what a claim says beside its ratio."""
        self.generic_visit(node)
        if _is_claim(node):
            node.args, node.keywords = node.args[1:], []
        node.keywords = [each for each in node.keywords if each.arg != "title"]
        return node


def _write(node: object) -> str:
    """Return a tree as text: names of nodes, and fields that are not empty.

    `ast.dump` would not do: fields come and go with the versions of Python.
    """
    if isinstance(node, list):
        return f"[{' '.join(map(_write, node))}]"
    if isinstance(node, ast.Constant):
        return repr(node.value)
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.JoinedStr):
        node = ast.JoinedStr(_join_texts(node.values))
    fields = []
    for name, value in ast.iter_fields(node):
        if value is not None and value != []:
            fields.append(f"{name}={_write(value)}")
    return f"{type(node).__name__}({' '.join(fields)})"


def _join_texts(pieces: Sequence[ast.expr]) -> list[ast.expr]:
    """Join the texts of an f-string, which Python 3.12 cuts into more pieces."""
    joined: list[ast.expr] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if isinstance(piece, ast.Constant) and isinstance(last, ast.Constant):
            joined[-1] = ast.Constant(last.value + piece.value)
        else:
            joined.append(piece)
    return joined
