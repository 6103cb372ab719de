"""Build the web site: every chapter with its stored outputs, and the documents.

`make site` runs Sphinx on the repository as it is: no notebook is executed, and a page
has the path on the site that its source has here.
"""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.transforms import Transform
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "urls"
]["Repository"]
BRANCH = "main"
NAME = REPOSITORY.removeprefix("https://github.com/")


def list_pages(*patterns: str) -> list[str]:
    """Return the pages that match, as paths from the root, in order."""
    found = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    return [path.relative_to(ROOT).as_posix() for path in found]


FIRST = "README"
CHAPTERS = list_pages("tutorials/[0-9][0-9]_*.ipynb")
#: What the navigation shows, in its order; appendices are below their chapters.
NAVIGATION = {
    "Chapters": [*list_pages("tutorials/WHAT_HELPS.md"), *CHAPTERS],
    "To look up": list_pages(
        "tutorials/QUESTIONS.md",
        "tutorials/CHEATSHEET.md",
        "tutorials/GLOSSARY.md",
        "tutorials/SOURCES.md",
        "tutorials/CLAIMS.md",
        "tutorials/more/errata.ipynb",
    ),
    "The kit": list_pages(
        "kit/MEASURING.md", "kit/DIAGNOSING.md", "tutorials/KNOWN_SCRIPTS.md"
    ),
    "The project": ["CONTRIBUTING.md", "CHANGELOG.md"],
}
APPENDICES = {
    chapter: list_pages(f"tutorials/more/{Path(chapter).name[:2]}_*.ipynb")
    for chapter in CHAPTERS
}

project = "Training speed kit"
author = "the training-speed-kit authors"
project_copyright = "the training-speed-kit authors, CC BY 4.0"

extensions = ["myst_nb"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
root_doc = FIRST
include_patterns = [
    f"{FIRST}.md",
    *(page for pages in NAVIGATION.values() for page in pages),
    *(page for pages in APPENDICES.values() for page in pages),
]
# Folders in which Sphinx need not look for pages.
exclude_patterns = [".*", "build", "dist", "venv"]

nb_execution_mode = "off"
nb_merge_streams = True
smartquotes = False  # anchors and text are what the sources say
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 6
# A line that begins with a percent sign is text, as it is on GitHub.
myst_disable_syntax = ["myst_line_comment"]
# Formulas are MathML, which browsers draw without a script from elsewhere.
html_math_renderer = "mathml"

# The build ends at a warning. What is suppressed breaks no reference:
suppress_warnings = [
    "misc.highlighting_failure",  # a cell with magics that no lexer knows has no colors
    "myst.header",  # a page may go from one level of headings to the next but one
]

html_theme = "sphinx_book_theme"
html_title = project
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_use_index = False
html_theme_options = {
    "repository_url": REPOSITORY,
    "repository_branch": BRANCH,
    "path_to_docs": "",
    "use_repository_button": True,
    "use_source_button": True,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "navbar_persistent": [],  # the sidebar has the search already
    "home_page_in_toc": True,
    "show_toc_level": 2,
}

#: A link into a folded section opens it.
UNFOLD = """
function unfold() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  const section = target.closest("section") ?? target;
  const folded = [target.closest("details"), section.querySelector(":scope > details")];
  folded.forEach((details) => { if (details) details.open = true; });
  target.scrollIntoView();
}
addEventListener("hashchange", unfold);
addEventListener("DOMContentLoaded", unfold);
"""


def list_below(page: str) -> str:
    """Return the navigation below a page, as directives of MyST."""
    groups = NAVIGATION if page == f"{FIRST}.md" else {"": APPENDICES.get(page, [])}
    blocks = []
    for caption, pages in groups.items():
        options = [":hidden:", ":titlesonly:"]
        options += [f":caption: {caption}"] if caption else []
        lines = [*options, "", *(f"/{page}" for page in pages)]
        blocks.append("\n".join(["```{toctree}", *lines, "```"]) if pages else "")
    return "\n\n".join(blocks)


def link_launchers(page: str) -> str:
    """Return the line that opens a notebook elsewhere."""
    return (
        f"[Open in Colab](https://colab.research.google.com/github/{NAME}/blob/{BRANCH}/{page})"
        f" · [Open in Binder](https://mybinder.org/v2/gh/{NAME}/HEAD?urlpath=lab/tree/{page})"
        f" · [On GitHub]({REPOSITORY}/blob/{BRANCH}/{page})"
    )


def add_to_source(app: Sphinx, docname: str, source: list[str]) -> None:
    """Add navigation to a page, and to a notebook the line of its launchers."""
    path = Path(app.env.doc2path(docname))
    page = path.relative_to(ROOT).as_posix()
    below = list_below(page)
    if path.suffix == ".md":
        source[0] += f"\n\n{below}\n"
        return
    notebook = json.loads(source[0])
    # The launch line stands for the cell and the badge of Colab.
    cells = [
        c for c in notebook["cells"] if "colab" not in c["metadata"].get("tags", [])
    ]
    notebook["cells"] = cells
    first = notebook["cells"][0]
    title, _, rest = "".join(first["source"]).partition("\n")
    rest = "\n".join(line for line in rest.split("\n") if "colab-badge" not in line)
    first["source"] = f"{title}\n\n{link_launchers(page)}\n{rest}"
    if below:
        cell = {"cell_type": "markdown", "id": "below", "metadata": {}, "source": below}
        notebook["cells"].append(cell)
    source[0] = json.dumps(notebook)


def list_folded(path: Path) -> set[str]:
    """Return the headings of a notebook that JupyterLab shows folded."""
    if path.suffix != ".ipynb":
        return set()
    cells = json.loads(path.read_text("utf-8"))["cells"]
    folded = [c for c in cells if c["metadata"].get("jp-MarkdownHeadingCollapsed")]
    heads = ["".join(cell["source"]).partition("\n")[0] for cell in folded]
    return {head.lstrip("#").replace("`", "").strip() for head in heads}


class Sections(Transform):
    """Give sections JupyterLab's anchors, and fold those that are folded there."""

    default_priority = 800  # after MyST's own anchors, before its links are resolved

    def apply(self, **kwargs: Any) -> None:
        """Change all sections of a page."""
        env = self.document.settings.env
        folded = list_folded(Path(env.doc2path(env.docname)))
        slugs = getattr(self.document, "myst_slugs", {})
        for section in list(self.document.findall(nodes.section)):
            title = section.next_node(nodes.title).astext()
            anchor = title.replace(" ", "-")
            if anchor not in self.document.ids:
                self.document.ids[anchor] = section
                slugs[anchor] = (section.line, section["ids"][0], title)
                section["ids"].append(anchor)
            if title in folded:
                start = "<details class='folded'><summary>Show this section</summary>"
                section.insert(1, nodes.raw("", start, format="html"))
                section.append(nodes.raw("", "</details>", format="html"))
        self._remove_second_anchors()

    def _remove_second_anchors(self) -> None:
        """Remove anchors that documents set for JupyterLab; the heading has them."""
        for paragraph in list(self.document.findall(nodes.paragraph)):
            anchor = re.fullmatch(r'<a id="([^"]+)"></a>', paragraph.astext())
            if anchor and anchor[1] in self.document.ids:
                paragraph.parent.remove(paragraph)


class LinksToFiles(Transform):
    """Lead links to what is no page to the repository."""

    default_priority = 800

    def apply(self, **kwargs: Any) -> None:
        """Replace links to files and folders of the repository."""
        env = self.document.settings.env
        links = [*self.document.findall(addnodes.pending_xref)]
        links += self.document.findall(addnodes.download_reference)
        for link in links:
            if link.get("reftype") != "myst" or link["reftarget"] in env.found_docs:
                continue
            target, _, anchor = link["reftarget"].partition("#")
            if link.get("refdomain") == "doc":  # a page that the site does not have
                anchor = link["reftargetid"] or ""
                paths = [ROOT / f"{target}{suffix}" for suffix in source_suffix]
            else:
                paths = [Path(env.relfn2path(target, env.docname)[1])]
            path = next((path for path in paths if path.exists()), None)
            if not target or not path:
                continue  # an anchor, or a broken link, at which the build ends
            kind = "tree" if path.is_dir() else "blob"
            inside = path.resolve().relative_to(ROOT).as_posix()
            url = f"{REPOSITORY}/{kind}/{BRANCH}/{inside}" + f"#{anchor}" * bool(anchor)
            link.replace_self(nodes.reference("", "", *link.children, refuri=url))


def write_formula(translator: HTML5Translator, node: nodes.Element) -> None:
    """Write a formula as MathML."""
    is_block = isinstance(node, nodes.math_block)
    formula = tex2mathml(node.astext(), as_block=is_block)
    tag = "div" if is_block else "span"
    translator.body.append(f"<{tag} class='math'>{formula}</{tag}>")
    raise nodes.SkipNode


def finish(app: Sphinx, error: Exception | None) -> None:
    """Add the first page's second name, and pictures that pages name in HTML."""
    if not error:
        out = Path(app.outdir)
        shutil.copyfile(out / f"{FIRST}.html", out / "index.html")
        shutil.copytree(ROOT / "images", out / "images", dirs_exist_ok=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx what this site adds to it."""
    formula = (write_formula, None)
    app.add_html_math_renderer("mathml", formula, formula)
    app.add_js_file(None, body=UNFOLD)
    app.add_transform(Sections)
    app.add_transform(LinksToFiles)
    app.connect("source-read", add_to_source)
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
