"""Fingerprints: which code a recording, or a stored output, belongs to.

A fingerprint is a hash over a syntax tree: the names of its nodes and their non-empty
fields, in order. So layout and comments do not count, and it is the same on every
version of Python. Nothing here needs more than the standard library.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

#: A line of IPython's own: `%magic`, `!command`, `found = !command`, `name?`.
_MAGIC = re.compile(r"(?P<before>\s*(?:[\w.]+ *= *)?)(?:[%!?].*|[\w.]+\?{1,2})$")

#: Their parts may run never, later, or more than once.
_CONDITIONAL = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_CONDITIONAL += (ast.If, ast.For, ast.While, ast.Try, ast.With, ast.IfExp, ast.BoolOp)
_CONDITIONAL += (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Cell(NamedTuple):
    """A code cell of a notebook."""

    name: str
    source: str


class ClaimError(Exception):
    """A claim cannot be judged as it is written; says which one, and why."""


def read_cells(notebook: Path) -> list[Cell]:
    """Return the code cells of a notebook, in order."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    return [Cell(cell["id"], "".join(cell["source"])) for cell in code]


def fingerprint(source: str) -> str:
    """Return the fingerprint of a cell with all that it shows.

    >>> fingerprint("x = 1  # one") == fingerprint("x=1") != fingerprint("x = 2")
    True
    """
    return digest(write(parse(source, keep_magics=True)))


def fingerprint_outputs(notebook: Path, cells: Sequence[Cell]) -> dict[str, str]:
    """Return what decides the stored outputs: each cell's and each module's print."""
    made_by = {cell.name: fingerprint(cell.source) for cell in cells}
    for path in find_modules(notebook, cells):
        made_by[path.name] = fingerprint(path.read_text(encoding="utf-8"))
    return made_by


def fingerprint_claims(notebook: Path, cells: Sequence[Cell]) -> dict[str, str]:
    """Return the fingerprint of each claim of a notebook, by its sentence.

    It covers the cells up to the claim's own, wherever one ends and the next begins,
    and the modules beside the notebook that they import. What only words a result does
    not count.
    """
    found: dict[str, str] = {}
    statements: list[str] = []
    for number, cell in enumerate(cells):
        statements += _write_statements(cell.source)
        sentences = [sentence for sentence, _ in find_claims(cell)]
        for sentence in sentences:
            if sentence in found or sentences.count(sentence) > 1:
                raise ClaimError(f"{sentence!r} stands twice: say what differs")
        if sentences:
            modules = find_modules(notebook, cells[: number + 1])
            beside = []
            for path in modules:
                beside += _write_statements(path.read_text(encoding="utf-8"))
            found |= dict.fromkeys(sentences, digest("\n".join(statements + beside)))
    return found


def _write_statements(source: str) -> list[str]:
    return [write(statement) for statement in Measured().visit(parse(source)).body]


def find_claims(cell: Cell) -> Iterator[tuple[str, ast.Call]]:
    """Yield the sentence and the call of each claim in a cell.

    Raises ClaimError for a claim that is not a statement of its own: in a function or
    behind an `if`, nobody would know whether it was made.
    """
    tree = parse(cell.source)
    certain = [call for statement in tree.body for call in _find_certain(statement)]
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


def _find_certain(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a statement that run whenever its cell does."""
    if isinstance(node, _CONDITIONAL):
        return
    yield node
    for inner in ast.iter_child_nodes(node):
        yield from _find_certain(inner)


def find_modules(notebook: Path, cells: Sequence[Cell]) -> list[Path]:
    """Return the modules beside a notebook that its cells import, and theirs in turn.

    Files that a cell writes are left out: their text is the cell's.
    """
    written = set()
    for cell in cells:
        if name := re.match(r"%%writefile +(?:-a +)?(\S+)", cell.source):
            written.add(name[1])
    found: set[Path] = set()
    trees = [parse(cell.source) for cell in cells]
    while trees:
        for name in _find_imports(trees.pop()):
            path = notebook.parent / f"{name}.py"
            if path in found or path.name in written or not path.is_file():
                continue
            found.add(path)
            trees.append(parse(path.read_text(encoding="utf-8")))
    return sorted(found)


def parse(source: str, *, keep_magics: bool = False) -> ast.Module:
    """Parse a cell. Magics count as text with `keep_magics`, otherwise not at all."""
    head, _, rest = source.partition("\n")
    if head.startswith("%%"):
        if head.startswith("%%writefile") and head.endswith(".py"):
            return parse(rest)
        return ast.Module([ast.Expr(ast.Constant(source))], [])
    try:
        return _parse(source)
    except SyntaxError:
        lines = [_replace_magic(line, keep_magics) for line in source.split("\n")]
        return _parse("\n".join(lines))


def _replace_magic(line: str, keep: bool) -> str:
    magic = _MAGIC.match(line)
    if magic is None:
        return line
    return magic["before"] + (repr(line.strip()) if keep else "None")


def _parse(source: str) -> ast.Module:
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return compile(source, "cell", "exec", flags)


def _find_imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def _is_claim(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    return getattr(node.func, "attr", getattr(node.func, "id", "")) == "claim"


class Measured(ast.NodeTransformer):
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

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Let no block be empty where all of it was dropped."""
        super().generic_visit(node)
        if getattr(node, "body", None) == [] and not isinstance(node, ast.Module):
            node.body = [ast.Pass()]
        return node


def write(node: object) -> str:
    """Return a tree as text: names of nodes, and fields that are not empty."""
    if isinstance(node, list):
        return "[" + " ".join(write(each) for each in node) + "]"
    if isinstance(node, ast.Constant):
        return repr(node.value)
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.JoinedStr):
        return f"JoinedStr({' '.join(_write_pieces(node.values))})"
    fields = []
    for name, value in ast.iter_fields(node):
        if value is not None and value != []:
            fields.append(f"{name}={write(value)}")
    return f"{type(node).__name__}({' '.join(fields)})"


def _write_pieces(values: Sequence[ast.expr]) -> Iterator[str]:
    """Write the pieces of an f-string; Python 3.12 cuts its text into more of them."""
    for is_text, pieces in itertools.groupby(values, _is_text):
        if is_text:
            text = "".join(piece.value for piece in pieces)
            yield from [repr(text)] if text else []
        else:
            yield from map(write, pieces)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant)


def digest(text: str) -> str:
    """Return a short name for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
