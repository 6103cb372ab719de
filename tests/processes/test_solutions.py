"""The solutions of exercises are accepted; some of them start ranks."""

import linecache

import nbformat
import pytest
from project import TUTORIALS, list_exercises

from kit import teaching
from kit.teaching import check

SOLUTIONS = sorted((TUTORIALS / "solutions").glob("*.ipynb"))


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.stem)
def test_the_solutions_are_accepted(path, quick, monkeypatch):
    """Their cells run here, where PyTorch is imported already."""
    found, names = {}, {"__name__": "__main__"}

    def noted(name, *answers):
        found[name] = check(name, *answers)
        return found[name]

    monkeypatch.setattr(teaching, "check", noted)  # cells import it from there
    monkeypatch.chdir(path.parent)
    monkeypatch.syspath_prepend("")  # as in a kernel
    for place, cell in enumerate(nbformat.read(path, as_version=4).cells):
        if cell.cell_type == "code":
            name = f"<{path.stem}, cell {place}>"  # experiments find their source
            lines = cell.source.splitlines(keepends=True)
            linecache.cache[name] = len(cell.source), None, lines, name
            exec(compile(cell.source, name, "exec"), names)
    assert list(found) == list_exercises(TUTORIALS / path.name)
    assert [result for result in found.values() if not result.passed] == []
