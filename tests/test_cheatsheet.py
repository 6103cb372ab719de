"""The cheat sheet says what the kit advises, and every line of code in it works."""

import functools
import re
import shlex
from pathlib import Path

import cheatsheet
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import kit
from kit.__main__ import main
from kit.diagnosis.causes import CAUSES
from kit.figures import PHASES

ROOT = Path(__file__).resolve().parents[1]
SHEET = ROOT / "tutorials" / "CHEATSHEET.md"
TEXT = SHEET.read_text("utf-8")

# Options of programs that need not be here, as their manuals have them.
# https://docs.nvidia.com/nsight-systems/UserGuide/index.html
# https://github.com/benfred/py-spy
OPTIONS = {
    ("nsys", "profile"): {"--trace", "--output"},
    ("nsys", "stats"): set(),
    ("py-spy", "top"): {"--pid"},
    ("py-spy", "record"): {"--pid", "--subprocesses", "--output"},
}


def rows():
    """The cells of the table in the file, without its head."""
    lines = [line for line in TEXT.splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines[2:]]


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.M | re.S)


def code():
    """Every piece of Python in the sheet: of the table, of its prose, of its blocks."""
    prose = re.sub(r"^```.*?^```|^\|.*?$|<!--.*?-->", "", TEXT, flags=re.M | re.S)
    inline = re.findall(r"`((?:kit|diagnosis)\.[^`]+)`", prose)
    lines = [measure for _, measure in cheatsheet.SYMPTOMS.values()]
    lines += [cause.code for cause in CAUSES.values()]
    return [*dict.fromkeys([*lines, *inline]), *blocks("python")]


# The table


def test_the_sheet_has_what_the_kit_advises():
    written = TEXT.partition(cheatsheet.START)[2].partition(cheatsheet.END)[0]
    lines = [line for line in written.splitlines() if line]
    assert lines[0] == "| " + " | ".join(cheatsheet.HEADERS) + " |"
    made = [f"| {' | '.join(row)} |" for row in cheatsheet.list_rows(SHEET.parent)]
    again = f"run `python {cheatsheet.__file__} --write {SHEET}`"
    assert lines[2:] == made, again


def test_every_verdict_has_a_row():
    named = [row[2].strip("`") for row in rows()]
    assert sorted(named) == sorted(CAUSES)
    assert named[-1] == "healthy"


def test_a_row_has_what_a_diagnosis_advises():
    for seen, measured, named, tried, chapter in rows():
        cause = CAUSES[named.strip("`")]
        symptom, measure = cheatsheet.SYMPTOMS[named.strip("`")]
        assert symptom == seen and symptom.endswith(".")
        for line, cell in ((measure, measured), (cause.code, tried)):
            code, _, remark = cell.partition("<br>")
            assert line == code.strip("`") + (f"  # {remark}" if remark else "")
        assert cause.chapter in chapter


def test_a_chapter_is_a_link_once_its_notebook_is_there(tmp_path):
    def chapters():
        return {row[4] for row in cheatsheet.list_rows(tmp_path)}

    assert "02 profiling" in chapters()
    (tmp_path / "02_made_up.ipynb").touch()
    assert "[02 profiling](02_made_up.ipynb)" in chapters()
    assert "04 loading" in chapters()


def test_no_cell_breaks_the_table():
    for row in cheatsheet.list_rows(SHEET.parent):
        assert len(row) == len(cheatsheet.HEADERS)
        assert not re.search(r"[|\n]", "".join(row))


# The command

TABLE = f"# Title\n\nBefore.\n\n{cheatsheet.START}\nold\n{cheatsheet.END}\n\nAfter.\n"


def write(path, capsys):
    status = cheatsheet.main(["--write", str(path)])
    return status, capsys.readouterr().err


def test_the_command_writes_the_table(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(TABLE, encoding="utf-8")
    (tmp_path / "04_loading.ipynb").touch()
    assert write(page, capsys) == (0, "")
    text = page.read_text("utf-8")
    assert text.startswith("# Title\n\nBefore.\n\n") and text.endswith("\n\nAfter.\n")
    assert "old" not in text
    assert "| [04 loading](04_loading.ipynb) |" in text and "| 02 profiling |" in text
    assert write(page, capsys) == (0, "")
    assert page.read_text("utf-8") == text


@pytest.mark.parametrize("content", ["# Title\n", f"{cheatsheet.START}\n"])
def test_a_page_without_a_place_for_the_table_is_left_alone(tmp_path, capsys, content):
    page = tmp_path / "page.md"
    page.write_text(content, encoding="utf-8")
    status, said = write(page, capsys)
    assert status == 1
    assert "page.md" in said and cheatsheet.START in said
    assert page.read_text("utf-8") == content


def test_a_page_that_is_not_there_is_named(tmp_path, capsys):
    status, said = write(tmp_path / "absent.md", capsys)
    assert status == 1
    assert "absent.md" in said and "Traceback" not in said


# Every line of code in it


class Model(nn.Linear):
    """A layer that can put off the exchange of gradients, as a wrapped model can."""

    require_backward_grad_sync = True
    no_sync = DistributedDataParallel.no_sync


TRAIN = """
import torch
from torch import nn

def train(*, batch_size=16):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        optimizer.zero_grad()
        model(torch.randn(batch_size, 4)).sum().backward()
        optimizer.step()
        yield batch_size
"""
made = {}
exec(TRAIN, made)
train = made["train"]
diagnosed = functools.cache(kit.diagnose)


def names():
    """What a reader has: the loop, and what lies in it."""
    here = {"kit": kit, "torch": torch, "train": train, "repaired": train}
    here |= {"DataLoader": DataLoader, "dataset": TensorDataset(torch.rand(8, 4))}
    here |= {"batch_size": 4, "batch": torch.rand(4, 4), "device": "cpu"}
    here |= {"model": Model(4, 1), "loss": torch.zeros(()), "diagnosis": None}
    return here


@pytest.mark.parametrize("line", code())
def test_the_code_runs(line, smoke, monkeypatch, tmp_path, capsys):
    """Where there is no GPU, its lines need to name what there is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kit, "diagnose", diagnosed)
    here, step = names(), train()
    here |= {"diagnosis": kit.diagnose(train)} if "diagnosis." in line else {}
    here |= {"step": (lambda: next(step)) if "step()" in line else 0}
    if line.startswith("torch.cuda") and not torch.cuda.is_available():
        assert callable(eval(line.partition("(")[0], here))
        return
    exec(line, here)
    for name in re.findall(r'"(\w+\.json)"', line):
        assert (tmp_path / name).stat().st_size > 100


def test_what_is_looked_up_has_a_name():
    """`get` would hide a name that a diagnosis does not have."""
    asked = re.findall(r"\.(savings|shares)\.get\(\"(\w+)\"\)", "\n".join(code()))
    assert asked
    for where, name in asked:
        assert name in (PHASES if where == "shares" else CAUSES)


def test_the_commands_run(smoke, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    lines = [x for block in blocks("console") for x in block.splitlines()]
    for line in lines:
        prompt, program, command, *rest = shlex.split(line)
        assert prompt == "$"
        if (program, command) == ("python", "-m"):
            assert rest[0] == "kit" and main(rest[1:]) == 0
        else:
            options = {word.partition("=")[0] for word in rest if word[:2] == "--"}
            assert options <= OPTIONS[program, command]
    assert (tmp_path / "report.html").exists()
    assert len(lines) >= 5
