"""A SQLite export of Nsight Systems: opened for reading only, its rows by table.

Tables and columns are NVIDIA's: https://docs.nvidia.com/nsight-systems/AnalysisGuide
("SQLite Schema Reference", "Common SQLite Examples"). Tables are made only where there
is something to write, columns may be NULL or, in other versions, not there, and rows
come in any order.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kit.experiment import ExperimentError
from kit.figures import format_value

RANGES, CALLS = "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME"
#: How a file begins, and where it says how long it is:
#: https://www.sqlite.org/fileformat.html ("The Database Header")
_HEADER, _PAGE_SIZE, _PAGES = b"SQLite format 3\0", slice(16, 18), slice(28, 32)
_EXPORT = "nsys export --type=sqlite {}"


class Window(NamedTuple):
    """Which rows are wanted: those that begin in a time, of one process."""

    start: int
    stop: int
    process: int


def name_file(path: Path) -> str:
    """Write which file an error is about."""
    return f"read_nsys_report(): path={format_value(str(path), 100)}"


@contextlib.contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open an export for reading only, wherever it lies.

    Raises ExperimentError for what is no export, here and while it is read.
    """
    where = name_file(path)
    _check_file(path, where)
    # A file that nobody changes needs no other files, for locks, beside it.
    address = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True)) as db:
            db.text_factory = lambda text: text.decode("utf-8", "replace")
            _check_tables(db, where)
            yield db
    except sqlite3.Error as error:
        raise _call_damaged(where, error) from error


def _check_file(path: Path, where: str) -> None:
    """Raise ExperimentError where this is no SQLite file that can be read."""
    try:
        with path.open("rb") as file:
            head, size = file.read(100), os.fstat(file.fileno()).st_size
    except (FileNotFoundError, NotADirectoryError):
        raise ExperimentError(
            f"{where} does not exist.\nnsys profile --export=sqlite writes it beside "
            f"the report; or make it: {_EXPORT.format('REPORT')}"
        ) from None
    except IsADirectoryError:
        raise ExperimentError(
            f"{where} is a folder.\nGive the .sqlite file in it."
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ExperimentError(
            f"{where} cannot be read: {why}.\nCheck its name and its permissions, or "
            "copy it to a folder of yours."
        ) from None
    if not head.startswith(_HEADER):
        report = path.name if path.suffix in (".nsys-rep", ".qdrep") else "REPORT"
        raise ExperimentError(
            f"{where} is not an SQLite file.\nMake one of the report: "
            f"{_EXPORT.format(report)}"
        )

    # SQLite itself does not notice where the last page is not whole.
    page_size = int.from_bytes(head[_PAGE_SIZE], "big")
    whole = int.from_bytes(head[_PAGES], "big") * (
        page_size if page_size > 1 else 1 << 16
    )
    if size < whole:
        raise _call_damaged(where, f"{size:,} of {whole:,} bytes are there")


def _call_damaged(where: str, why: object) -> ExperimentError:
    return ExperimentError(
        f"{where} is damaged, or not whole: {why}.\nExport the report again: "
        f"{_EXPORT.format('--force-overwrite=true REPORT')}"
    )


def _check_tables(db: sqlite3.Connection, where: str) -> None:
    if not list_columns(db, "StringIds"):
        raise ExperimentError(
            f"{where} is an SQLite file, but no export of Nsight Systems: it has no "
            f"table StringIds.\nMake one of the report: {_EXPORT.format('REPORT')}"
        )
    if not list_columns(db, RANGES):
        raise ExperimentError(
            f"{where} holds no labels (NVTX ranges).\nPut one around each step, and "
            "profile with --trace=nvtx, as make_nsys_command() writes it."
        )


def list_columns(db: sqlite3.Connection, table: str) -> set[str]:
    """Return a table's columns; none where there is no such table."""
    return {row[1] for row in db.execute(f"PRAGMA table_info({table})")}


def look_up(column: str) -> str:
    """Write the SQL for the string that a column has the number of."""
    return f"(SELECT value FROM StringIds WHERE id = {column})"


def look_up_range(db: sqlite3.Connection) -> str:
    """Write the SQL for a range's text: in its row, or among the strings."""
    there = list_columns(db, RANGES)
    return f"coalesce(text, {look_up('textId')})" if "textId" in there else "text"


def select(
    db: sqlite3.Connection,
    table: str,
    name: str,
    columns: Sequence[str],
    window: Window,
    condition: str = "1",
) -> Iterator[tuple[Any, ...]]:
    """Yield the starts, names and columns of a window's rows.

    A column that is not there is None, a table that is not there has no rows.
    """
    there = list_columns(db, table)
    if there:
        asked = ", ".join(f'"{c}"' if c in there else "NULL" for c in columns)
        where = f"{_write_condition(there)} AND {condition}"
        query = f"SELECT start, {name}, {asked} FROM {table} WHERE {where}"
        yield from db.execute(query, window)


def count(db: sqlite3.Connection, table: str, window: Window) -> int:
    """Return how many of a table's rows are in a window."""
    there = list_columns(db, table)
    if not there:
        return 0
    query = f"SELECT count(*) FROM {table} WHERE {_write_condition(there)}"
    return int(db.execute(query, window).fetchone()[0])


def _write_condition(there: set[str]) -> str:
    """Write that a row is of a window's time and, as far as it says, process."""
    owner = next((c for c in ("globalTid", "globalPid") if c in there), "NULL")
    return f"start >= ?1 AND start < ?2 AND coalesce({owner} >> 24 & 0xFFFFFF, ?3) = ?3"


def find_process(identifier: int) -> int:
    """Return the process in a serialized identifier of a thread or process."""
    return identifier >> 24 & 0xFFFFFF


def find_thread(identifier: int) -> int:
    """Return the thread in a serialized identifier."""
    return identifier & 0xFFFFFF
