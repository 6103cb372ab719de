"""What decides a claim: the statements of a notebook that its ratio comes from.

From the claim's ratio back: the statement that last bound each name, those that changed
it in between, and all settings before the comparison. What only shows or words a
result is left out. CONTRIBUTING.md says what a slice cannot see.
"""

from __future__ import annotations

import ast
import difflib
import functools
import hashlib
import json
import symtable
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kit.recording import cell_source

#: Keywords that word a result, and calls that show one.
_WORDS = {"title", "otherwise", "labels", "unit", "xlabel", "ylabel"}
_SHOWING = {"display", "print", "plot", "table", "check", "explore", "guess"}
#: Modules that are called to show something, or to measure.
_NO_SETTINGS = {"kit", "pd"}
#: Statements that run at once, and perhaps in part.
_COMPOUND = (ast.For, ast.While, ast.If, ast.With, ast.Try)
_IMPORTS = (ast.Import, ast.ImportFrom)


class SliceError(Exception):
    """It cannot be told what decides a claim; says which, and why."""


@dataclass(frozen=True)
class Statement:
    """A top-level statement of a notebook, as text, and the names it has to do with.

    `binds` are names that it gives a value, `changes` those whose value it alters,
    `mentions` those whose value it may alter, `now` those that it reads at once and
    `later` those that its functions read when they are called. `is_setting` says that
    it may decide every claim after it.
    """

    node: ast.stmt
    text: str
    binds: frozenset[str] = frozenset()
    changes: frozenset[str] = frozenset()
    mentions: frozenset[str] = frozenset()
    now: frozenset[str] = frozenset()
    later: frozenset[str] = frozenset()
    is_setting: bool = False


@dataclass(frozen=True)
class Notebook:
    """The statements of a notebook in order, and files that it writes, by module."""

    folder: Path
    statements: list[Statement] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)


def read_notebook(path: Path, text: str | None = None) -> Notebook:
    """Read a notebook's code; `text` is its content, if it is not the file's."""
    content = path.read_text(encoding="utf-8") if text is None else text
    found, modules = (
        Notebook(path.parent),
        set[str](),
    )  # a module's name is in lower case
    for cell in json.loads(content)["cells"]:
        if cell["cell_type"] != "code":
            continue
        first, _, rest = "".join(cell["source"]).partition("\n")
        if first.startswith("%%writefile"):
            found.files[Path(first.split()[-1]).stem] = rest
            continue
        source = cell_source(cell)
        for node in ast.parse(source).body:
            text = ast.get_source_segment(source, node) or ast.unparse(node)
            statement = _make_statement(node, text, modules)
            found.statements.append(statement)
            modules -= statement.binds
            if isinstance(node, _IMPORTS):
                modules |= {name for name in statement.binds if name.islower()}
    return found


def _make_statement(node: ast.stmt, text: str, modules: set[str]) -> Statement:
    """Find out which names a statement has to do with, given imported ones."""
    now, later = set[str](), set[str]()
    module = symtable.symtable(ast.unparse(node), "cell", "exec")
    binds = {s.get_name() for s in module.get_symbols() if _is_bound(s)}
    now |= {s.get_name() for s in module.get_symbols() if s.is_referenced()}
    for table in module.get_children():
        _find_globals(table, now, later)
    roots = set(filter(None, map(_changed_root, _walk_at_once(node))))
    shows = isinstance(node, ast.Assert) or _is_showing(node)
    settings = roots & (modules | {"get_ipython"}) - _NO_SETTINGS
    return Statement(
        node,
        text,
        binds=frozenset(binds),
        changes=frozenset(() if shows else roots | (binds & now)),
        mentions=frozenset(() if shows else now & _mentioned(node)),
        now=frozenset(now),
        later=frozenset(later),
        is_setting=bool(settings) and not shows and not _is_test(node),
    )


def _is_bound(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()


def _find_globals(table: symtable.SymbolTable, now: set[str], later: set[str]) -> None:
    """Sort the global names of a scope: read at once, or when it is called."""
    at_once = table.get_type() == "class" or table.get_name() in _COMPREHENSIONS
    into = now if at_once else later
    into |= {s.get_name() for s in table.get_symbols() if s.is_global()}
    for inner in table.get_children():
        _find_globals(inner, into if at_once else later, later)


_COMPREHENSIONS = {"listcomp", "setcomp", "dictcomp", "genexpr"}


def _walk_at_once(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is in a statement, but for bodies that run when they are called."""
    ahead = [node]
    while ahead:
        found = ahead.pop()
        yield found
        if not isinstance(found, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
            ahead += ast.iter_child_nodes(found)


def _mentioned(node: ast.stmt) -> set[str]:
    """Return the names that a loop, a `with` or an `if` may change: all it mentions."""
    inside = _walk_at_once(node) if isinstance(node, _COMPOUND) else ()
    return {n.id for n in inside if isinstance(n, ast.Name)}


def _changed_root(node: ast.AST) -> str | None:
    """Return the name whose object a piece of code changes, or calls a method of."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return _root(node.value.func)
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        return None if isinstance(node.ctx, ast.Load) else _root(node)
    return None


def _root(node: ast.AST) -> str | None:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def _is_showing(node: ast.stmt) -> bool:
    """Return whether a statement only shows something."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    path = ast.unparse(node.value.func).split(".")
    return path[-1] in _SHOWING or path[:2] == ["kit", "figures"]


def _is_test(node: ast.stmt) -> bool:
    return ast.unparse(node).startswith("torch.testing.")


def find_claims(notebook: Notebook) -> dict[str, tuple[int, ast.Call]]:
    """Return each claim's statement and call, by its sentence.

    Raises SliceError for one that cannot be checked: not at top level, with a sentence
    that is put together or comes twice, or with arguments that are no literals.
    """
    found: dict[str, tuple[int, ast.Call]] = {}
    for number, statement in enumerate(notebook.statements):
        calls = [n for n in ast.walk(statement.node) if _is_claim(n)]
        for call in calls:
            sentence = _read_sentence(call)
            if not isinstance(statement.node, (ast.Expr, ast.Assign)) or any(
                call in ast.walk(n) for n in ast.walk(statement.node) if _hides(n)
            ):
                raise SliceError(f"{sentence!r}: write a claim at top level")
            if sentence in found:
                raise SliceError(f"{sentence!r} stands twice: say what differs")
            found[sentence] = number, call
    return found


def _is_claim(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    return getattr(node.func, "attr", getattr(node.func, "id", "")) == "claim"


def _hides(node: ast.AST) -> bool:
    return isinstance(node, (ast.Lambda, ast.comprehension, ast.ListComp, ast.IfExp))


def _read_sentence(call: ast.Call) -> str:
    """Return a claim's sentence; refuse what is decided by no literal."""
    said = ast.unparse(call)[:60]
    if len(call.args) != 2 or not isinstance(call.args[0], ast.Constant):
        raise SliceError(
            f"{said}…: write sentence and ratio first, the one as a string"
        )
    for keyword in call.keywords:
        if keyword.arg is None:
            raise SliceError(f"{said}…: write `**{ast.unparse(keyword.value)}` out")
        if keyword.arg != "otherwise" and not isinstance(keyword.value, ast.Constant):
            raise SliceError(f"{said}…: {keyword.arg}= must be a literal")
    return str(call.args[0].value)


def cut(notebook: Notebook, sentence: str) -> list[str]:
    """Return what decides a claim, as texts in the notebook's order.

    >>> cell = {"cell_type": "code", "source": "x = 2\\ny = 3\\nclaim('so', f(x))"}
    >>> read = read_notebook(Path("x.ipynb"), json.dumps({"cells": [cell]}))
    >>> cut(read, "so")
    ['x = 2', 'f(x)']
    """
    number, call = find_claims(notebook)[sentence]
    ratio = ast.Expr(call.args[1])
    goal = _make_statement(ratio, ast.unparse(ratio), set())
    taken: dict[int, set[str]] = {}
    ahead = [(name, number) for name in goal.now | goal.later]
    seen = set(ahead)
    settings = [n for n in range(number) if notebook.statements[n].is_setting]
    for n in settings:
        taken[n] = set()
        ahead += [(name, n) for name in notebook.statements[n].now]
    while ahead:
        name, before = ahead.pop()
        for n in _find_makers(notebook.statements, name, before):
            statement = notebook.statements[n]
            taken.setdefault(n, set()).add(name)
            needs = {(x, n) for x in statement.now} | {
                (x, before) for x in statement.later
            }
            ahead += needs - seen
            seen |= needs
    texts = [_write(notebook.statements[n], taken[n]) for n in sorted(taken)]
    return [*_read_files(notebook, texts), *texts, goal.text]


def _find_makers(
    statements: Sequence[Statement], name: str, before: int
) -> Iterator[int]:
    """Yield the statements that gave a name its value, the last one first."""
    earlier = range(before - 1, -1, -1)
    binding = next((n for n in earlier if _binds(statements[n], name)), -1)
    kind = type(statements[binding].node) if binding >= 0 else None
    for n in range(before - 1, binding, -1):
        statement = statements[n]
        if (
            name in statement.binds
            or (name in statement.changes and kind not in _IMPORTS)
            or (name in statement.mentions and not _is_fixed(statements, binding))
        ):
            yield n
    if binding >= 0:
        yield binding


def _is_fixed(statements: Sequence[Statement], binding: int) -> bool:
    """Return whether a loop that only mentions a name cannot change its value."""
    node = statements[binding].node if binding >= 0 else None
    if isinstance(node, ast.Assign):
        return isinstance(node.value, (ast.Constant, ast.Compare))
    return isinstance(node, (*_IMPORTS, ast.FunctionDef, ast.ClassDef))


def _binds(statement: Statement, name: str) -> bool:
    """Return whether a statement gives a name a value, whatever it was before."""
    partly = isinstance(statement.node, (*_COMPOUND, ast.AugAssign))
    return name in statement.binds and not partly


def _write(statement: Statement, names: set[str]) -> str:
    """Return a statement's text; of an import only what is used of it."""
    node = statement.node
    if not isinstance(node, _IMPORTS) or not names:
        return statement.text
    used = [a for a in node.names if (a.asname or a.name).partition(".")[0] in names]
    if isinstance(node, ast.Import):
        return ast.unparse(ast.Import(used))
    return ast.unparse(ast.ImportFrom(node.module, used, node.level))


def _read_files(notebook: Notebook, texts: Sequence[str]) -> Iterator[str]:
    """Yield the files that some code imports, and definitions of `kit.data`."""
    used = set[str]()
    for node in ast.walk(ast.parse("\n".join(texts))):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            beside = notebook.folder / f"{name}.py"
            if name in notebook.files:
                yield notebook.files[name]
            elif name and beside.is_file():
                yield beside.read_text(encoding="utf-8")
        if isinstance(node, ast.ImportFrom) and node.module == "kit.data":
            used |= {alias.name for alias in node.names}
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "kit.data":
            used.add(node.attr)
    known = _read_definitions(notebook.folder.resolve().parent / "kit" / "data")
    done = set[str]()
    while used - done:
        name = min(used - done)
        done.add(name)
        node = known.get(name)
        if node is not None:
            used |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & {*known}
    yield from (ast.unparse(known[name]) for name in sorted(done & {*known}))


@functools.cache
def _read_definitions(folder: Path) -> dict[str, ast.stmt]:
    """Return what the files of `kit.data` define, by name: all but the cache."""
    found: dict[str, ast.stmt] = {}
    for path in sorted(set(folder.glob("*.py")) - {folder / "cache.py"}):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found[node.name] = node
            elif isinstance(node, ast.Assign):
                names = (t.id for t in node.targets if isinstance(t, ast.Name))
                found |= dict.fromkeys(names, node)
    return found


def fingerprint(source: str) -> str:
    """Return a short name for what a cell's code does, whatever its layout.

    It is the same in every version of Python: empty fields of a tree do not count. A
    claim's `open=` does not either: it says nothing to the reader, only to the check.

    >>> fingerprint("x = 1  # one") == fingerprint("x=1") != fingerprint("x = 2")
    True
    """

    def write(part: object) -> str:
        if isinstance(part, list):
            return f"[{' '.join(map(write, part))}]"
        if not isinstance(part, ast.AST):
            return repr(part)
        known = ((n, x) for n, x in ast.iter_fields(part) if x not in (None, []))
        fields = (f"{name}={write(value)}" for name, value in known)
        return f"{type(part).__name__}({' '.join(fields)})"

    tree = ast.parse(cell_source({"source": source}))
    for call in filter(_is_claim, ast.walk(tree)):
        call.keywords = [k for k in call.keywords if k.arg != "open"]
    return hashlib.sha256(write(tree).encode()).hexdigest()[:12]


def compare(recorded: Sequence[str], now: Sequence[str]) -> str:
    """Return what changed between two slices, line by line; nothing if they are equal.

    >>> compare(["x = 2  # two"], ["x = 2"]), compare(["x = 2"], ["x = 3"])
    ('', '-x = 2\\n+x = 3')
    """
    before, after = ("\n".join(map(_normal, texts)) for texts in (recorded, now))
    if before == after:
        return ""
    lines = difflib.unified_diff(
        before.split("\n"), after.split("\n"), n=0, lineterm=""
    )
    return "\n".join(line for line in lines if line[:2] not in ("--", "++", "@@"))


class _Strip(ast.NodeTransformer):
    """Takes out what words a result: docstrings, and keywords such as `title=`."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        node.keywords = [k for k in node.keywords if k.arg not in _WORDS]
        return node

    def _strip(self, node: Any) -> Any:
        self.generic_visit(node)
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return node

    visit_Module = visit_ClassDef = visit_FunctionDef = _strip  # noqa: N815


def _normal(text: str) -> str:
    return ast.unparse(_Strip().visit(ast.parse(text)))
