"""The cheat sheet's table: what a reader sees, how to be sure, what to try."""

from __future__ import annotations

from pathlib import Path

from kit.diagnosis.advice import ADVICE, NO_CAUSE

START = "<!-- table: `python -m kit cheatsheet --write tutorials/CHEATSHEET.md` -->"
END = "<!-- end of the table -->"
HEADERS = ("you see", "to be sure", "it is called", "then try", "chapter")


def list_rows(tutorials: Path) -> list[tuple[str, ...]]:
    """Return a row for each verdict of a diagnosis, in Markdown.

    A chapter is a link where its notebook is in the folder `tutorials`.

    >>> list_rows(Path("elsewhere"))[6][2:]
    ('`threads`', '`torch.set_num_threads(2)`', '01 how PyTorch runs')
    """
    return [
        (
            advice.symptom,
            _write_line(advice.measure),
            f"`{verdict}`",
            _write_line(advice.code),
            _link(advice.chapter, tutorials),
        )
        for verdict, advice in {**ADVICE, "None": NO_CAUSE}.items()
    ]


def _write_line(line: str) -> str:
    """Write a line of code, and what its comment says below it."""
    code, _, remark = line.partition("  # ")
    return f"`{code}`<br>{remark}" if remark else f"`{code}`"


def _link(chapter: str, tutorials: Path) -> str:
    notebook = next(tutorials.glob(f"{chapter[:2]}_*.ipynb"), None)
    return f"[{chapter}]({notebook.name})" if notebook else chapter
