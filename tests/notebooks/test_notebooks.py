"""Notebooks store nothing that would mislead or disturb a reader."""

import re
from html.parser import HTMLParser

import nbformat
import pytest
import recording
from project import APPENDICES, CHAPTERS, TUTORIALS

NOTEBOOKS = [*CHAPTERS, *APPENDICES]
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
#: Cells with this tag show the same on every machine, at any length; so many at least.
SAME = "nbval-check-output"
LEAST = 5
BEHIND_THE_BACK = {
    r"[!%] *(?:pip|conda|mamba|uv)\b": "installs something",
    r"! *python\b": "runs another Python than this one's: write {PYTHON}",
    r"\bsys\.path\b|\bPYTHONPATH\b": "changes the path",
    r"(?:filterwarnings|simplefilter)\(\s*['\"]ignore['\"]\s*\)": "hides warnings",
}


@every_notebook
def test_nothing_is_wrong_with_what_a_notebook_stores(path):
    assert list(find_faults(path)) == []


def find_faults(path):
    """Yield what is wrong with a notebook as it is stored."""
    book = nbformat.read(path, as_version=4)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    if book.metadata.get("kernelspec", {}).get("name") != "python3":
        yield "without the kernelspec python3, Jupyter asks for one and nothing runs"
    if "widgets" in book.metadata:
        yield "it stores the state of widgets, which shows as an error"
    if path.stat().st_size >= 1_000_000:
        yield "it has 1 MB or more"
    if [cell.execution_count for cell in code] != [*range(1, len(code) + 1)]:
        yield "its cells were not run once each and in order"
    compared = [cell for cell in code if SAME in cell.metadata.get("tags", [])]
    if path in CHAPTERS and len(compared) < LEAST:
        yield f"only {len(compared)} cells have the tag {SAME}"
    for cell in compared:
        if not any(map(read_text, cell.outputs)):
            yield f"cell {cell.id} has the tag {SAME}, and shows nothing to compare"
    for cell in book.cells:
        for fault in [*find_faults_of_source(cell), *find_faults_of_outputs(cell)]:
            yield f"cell {cell.id} {fault}"


def find_faults_of_source(cell):
    tags = cell.metadata.get("tags", [])
    is_hidden = any(tag.startswith(("hide", "remove")) for tag in tags)
    if is_hidden or cell.metadata.get("jupyter"):
        yield "is hidden"
    if cell.cell_type == "code":
        for pattern, what in BEHIND_THE_BACK.items():
            if re.search(pattern, cell.source):
                yield what
    else:
        alts = re.findall(r"!\[(.*?)\]", cell.source) + Images(cell.source).alts
        if not all(alts):
            yield "has a picture without alt text"


def find_faults_of_outputs(cell):
    tags = cell.metadata.get("tags", [])
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        if output.output_type == "error" and "raises-exception" not in tags:
            yield "stores an error"
        if output.get("name") == "stderr" and "stderr-is-meant" not in tags:
            yield "stores words on stderr"
        if any("widget" in kind for kind in data):
            yield "stores a widget"
        if "<script" in "".join(data.get("text/html", "")):
            yield "stores a script"
        if not all(find_alts(output)):
            yield "has a picture without alt text"


def read_text(output):
    """Return what an output says as text."""
    return output.get("text", "") or output.get("data", {}).get("text/plain", "")


def find_alts(output):
    """Return the alt text of each picture in an output; None where it has none."""
    data = output.get("data", {})
    page = "".join(data.get("text/html", ""))
    if page:
        return Images(page).alts
    kinds = [kind for kind in data if kind.startswith("image/")]
    return [output.metadata.get(kind, {}).get("alt") for kind in kinds]


class Images(HTMLParser):
    """The alt texts of a page's images; None for an image without one."""

    def __init__(self, page):
        super().__init__()
        self.alts = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            self.alts.append(dict(attrs).get("alt"))


@every_notebook
def test_a_stored_picture_shows_what_was_recorded_and_predicted(path):
    book = nbformat.read(path, as_version=4)
    name = book.metadata.get("kit", {}).get("recording")
    if name is None:
        return  # its outputs are older than recordings of plots
    alts = []
    for cell in book.cells:
        for output in cell.get("outputs", []):
            alts += find_alts(output)
    stored = [find_numbers(alt) for alt in alts]
    plots = recording.read(TUTORIALS / "recordings" / name).read_plots()
    missing = []
    for plot in plots:
        alt = plot.draw().figure.alt
        if find_numbers(alt) not in stored:
            missing.append(alt)
    draws = any(".plot(" in cell.source for cell in book.cells)
    assert plots or not draws
    assert missing == []


def find_numbers(alt):
    return re.findall(r"\d[\d.,]*", alt)


def test_the_chapters_cover_all_points_of_their_sources():
    """No list but what the notebooks say: dropping a point shows here."""
    said = set()
    for path in NOTEBOOKS:
        said |= {
            *nbformat.read(path, as_version=4)
            .metadata.get("kit", {})
            .get("sources", [])
        }
    known = {"A": 18, "D": 9, "R": 7, "P": 11}
    assert said == {f"{k}{n + 1}" for k, most in known.items() for n in range(most)}
