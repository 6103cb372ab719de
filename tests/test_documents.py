"""Links of documents and notebooks, and what is said of how the kit measures."""

import math
import re
import shutil
import warnings

import nbformat
import pytest
from adversarial import ADVERSARIAL
from benchmarks.calibration import code, results
from pages import find_anchors, find_broken_links
from project import ROOT, own_files

from kit import statistics
from kit.measuring import doubt, plan, rates, variant

PAGES = [path for path in own_files() if path.suffix in (".ipynb", ".md")]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_readers_click_leads_somewhere(path):
    assert not list(find_broken_links(path))


GOOD = """
[a](other.md) [b](other.md#a-b-c) [c](./other.md 'a title') [d](<other.md>) [e][1]
[f](with%20space.md) [g](https://example.org/page#part) [h](mailto:a@example.org)
![i](picture.png) <img src='picture.png'> `[j](nowhere.md)`

```
[k](nowhere.md)
```

[1]: other.md
"""
BAD = ["[x](nowhere.md)", "[x](other.md#e)", "[x](other.md#not-this)", "[x]()"]
BAD += ["[x](../../../outside.md)", "[x](/other.md)", "[x](file:///other.md)"]
BAD += ["[x](http://localhost:8888/lab)", "![x](none.png)", "<a href='none.md'>x</a>"]
BAD += ["[x][1]\n\n[1]: nowhere.md"]


@pytest.mark.parametrize("kind", ["md", "ipynb"])
def test_links_that_lead_nowhere_are_told_from_others(tmp_path, kind):
    (tmp_path / "other.md").write_text("# A `b` c!\n\n```\n# not this\n```\n")
    (tmp_path / "with space.md").write_text("# X\n")
    (tmp_path / "picture.png").write_bytes(b"")
    page = tmp_path / f"page.{kind}"
    for text, count in [(GOOD, 0), *((bad, 1) for bad in BAD)]:
        text = f"# Same answer?\n\n{text}\n"
        if kind == "md":
            page.write_text(text)
        else:
            cells = [nbformat.v4.new_markdown_cell(text)]
            nbformat.write(nbformat.v4.new_notebook(cells=cells), page)
        assert len(list(find_broken_links(page, tmp_path))) == count, text
    assert find_anchors(page) == {"Same-answer?" if kind == "ipynb" else "same-answer"}


MEASURING = ROOT / "kit" / "MEASURING.md"


def test_the_page_shows_the_newest_calibration_and_every_adversarial_experiment():
    assert results.check_page(MEASURING) == []
    if words := results.describe_age(ROOT / "kit"):
        warnings.warn(words, stacklevel=1)
    page = MEASURING.read_text("utf-8")
    table = page.partition("<!-- adversarial -->")[2].partition("<!-- end of")[0]
    shown = {line.split("|")[1].strip() for line in table.splitlines() if "|" in line}
    assert {case.name for case in ADVERSARIAL if case.real} <= shown


def test_a_calibration_grows_old_by_what_measures_and_not_by_words(tmp_path):
    (tmp_path / "measuring").mkdir()
    for name in code.MEASURING:
        shutil.copy(ROOT / "kit" / f"{name}.py", tmp_path / f"{name}.py")
    before = code.hash_measuring(tmp_path)
    text = (tmp_path / "clock.py").read_text("utf-8")
    for old, new, is_new in (
        ('"""', '"""Other words. ', False),
        ("import", "import  ", False),
        ("import math", "import math, cmath", "import math" in text),
        ("return ", "return not ", True),
    ):
        (tmp_path / "clock.py").write_text(text.replace(old, new, 1))
        assert (code.hash_measuring(tmp_path) != before) == is_new, new


def test_the_page_names_the_limits_that_the_code_has():
    """By private names: nothing else would notice that the page is out of date."""
    page = MEASURING.read_text("utf-8")
    for words in (
        f"[1/{statistics.SAME:g}, {statistics.SAME:g}]",
        f"differs by over {statistics.SAME - 1:.0%}",
        f"take over {doubt._BUSY:g} core",
        f"wait over {doubt._WAITING:.0%} of the time",
        f"stopped the process over {doubt._THROTTLED:.0%} of the time",
        f"{1000 * plan._BLOCK_SECONDS_UNDER_QUOTA:.0f} ms under a quota",
        f"at least {1000 * variant.BLOCK_SECONDS:.0f} ms",
        f"use {plan._FIRST_SHARE:.0%} of the budget",
        f"{plan._OVER_SLOW:g} times the way to a slow block",
    ):
        assert re.sub(r"(\d)%", r"\1 %", words) in page, words
    assert rates.LEAST_PAIRS == 5 and "five, which may take three times" in page
    assert plan._MOST_OVER == 3 and math.exp(plan._NARROW) == pytest.approx(1.005)
    assert plan._SHARE_OF_START == 0.25 and "a quarter of what its start" in page
    assert doubt._CHANGED == 1.2 and "off by over a fifth" in page
