"""Where the project's own files are, and not a reader's beside them."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = ROOT / "tutorials"
CHAPTERS = sorted(TUTORIALS.glob("[0-9][0-9]_*.ipynb"))
APPENDICES = sorted((TUTORIALS / "more").glob("*.ipynb"))
#: A call of `check` in the JSON of a notebook.
CHECK = re.compile(r"\bcheck\((?:\\n|[^\w)])*(\d\d/\w+)")
#: What a notebook says of its kernel.
PYTHON = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
FOLDERS = (".ci", "bench", "binder", "images", "kit", "site", "tests", "tutorials")


def list_exercises(path):
    """Return what a chapter asks `check` about, as "chapter/exercise", in order."""
    return [*dict.fromkeys(CHECK.findall(path.read_text("utf-8")))]


def own_files():
    """Files that are committed or added; without git all that lies in its folders."""
    command = ["git", "ls-files", "-z", "--cached"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    names = [name for name in done.stdout.split("\0") if name]
    if done.returncode == 0 and names:
        found = [ROOT / name for name in names]
    else:
        found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
        found += ROOT.glob("*")
    return sorted(path for path in found if path.is_file())
