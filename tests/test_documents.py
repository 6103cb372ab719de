"""Links of documents and notebooks lead somewhere."""

import re

import pytest
from page_links import find_broken_links
from project import ROOT, own_files

PAGES = [path for path in own_files() if path.suffix in (".ipynb", ".md")]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_readers_click_leads_somewhere(path):
    assert not list(find_broken_links(path))


def test_no_file_holds_a_path_of_one_machine():
    folders = "|".join(["work", "root", "home", "Users", "tmp"])  # unlike this line
    stray = re.compile(rf"(?<![\w.}}~-])/(?:{folders})/[\w.]".encode())
    for path in own_files():
        content = path.read_bytes()
        assert b"\0" in content or not stray.search(content), path
