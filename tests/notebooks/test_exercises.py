"""Exercises: each waits for an answer, and plausible wrong ones are refused."""

import re
import runpy

import nbformat
import pytest
import torch
from project import TUTORIALS, every_chapter

from kit.teaching import check


@pytest.fixture(scope="module")
def compiler():
    """Load what `torch.compile` needs, so that no test pays for it."""
    torch.compile(lambda x: x + 1, backend=lambda graph, _: graph)(torch.ones(2))


@every_chapter
def test_an_exercise_waits_and_refuses_a_plausible_wrong_answer_with_a_reason(
    path, smoke, compiler, monkeypatch
):
    monkeypatch.chdir(TUTORIALS)
    number = path.name[:2]
    wrong = runpy.run_path(f"checks/{number}_wrong.py")["WRONG"]
    cells = nbformat.read(path, as_version=4).cells
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    checked = dict.fromkeys(re.findall(r"\bcheck\(\s*['\"]([^'\"]+)['\"]", code))
    assert [f"{number}/{name}" for name in wrong] == [*checked]
    assert len(wrong) >= 3
    for name, answers in wrong.items():
        assert not check(f"{number}/{name}", None).attempted
        assert 2 <= len(answers) <= 3, name
        for answer in answers:
            found = check(f"{number}/{name}", answer)
            assert found.attempted and not found.passed, f"{name} takes {answer}"
            assert len(found.message) > 20, f"{name} does not say why"
            assert not found.message.startswith("it raised"), found
