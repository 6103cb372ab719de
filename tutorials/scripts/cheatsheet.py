"""Write the cheat sheet's table: what a reader sees, how to be sure, what to try.

    python tutorials/scripts/cheatsheet.py --write tutorials/CHEATSHEET.md

It says what a diagnosis advises.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pages import PageError, format_table, write_table

from kit.diagnosis.causes import CAUSES

START = (
    "<!-- table: `python tutorials/scripts/cheatsheet.py"
    " --write tutorials/CHEATSHEET.md` -->"
)
END = "<!-- end of the table -->"
#: What a reader sees, and a line that tells whether it is this cause; what follows
#: a `#` says what to look at.
SYMPTOMS = {
    "input": (
        "GPU utilisation goes up and down, or the training idles while workers are "
        "busy. A smaller model trains no faster.",
        'kit.diagnose(train).savings.get("input")  # without the wait for data',
    ),
    "transfer": (
        "The GPU pauses at the start of each step, although the batches are ready.",
        'kit.timeline(train)  # is the device idle during "copies to the device"?',
    ),
    "python": (
        "One core is busy and the device is not. It pauses while the loop logs, saves "
        "or computes metrics.",
        "kit.diagnose(train).profile.lines  # your own lines, with their shares",
    ),
    "overhead": (
        "One core is busy and the device is not. A step with half the batch takes as "
        "long.",
        "[kit.measure(train, batch_size=n).step_seconds for n in (16, 32)]  # alike?",
    ),
    "sync": (
        "GPU utilisation stays low. A profile of your Python shows `.item()`, `.cpu()` "
        "or a `print` of a tensor as the slowest line.",
        'torch.cuda.set_sync_debug_mode("warn")  # most waits then warn, with the line',
    ),
    "optimizer": (
        "A step takes long even with a tiny batch. The model has very many parameters, "
        "or many small ones.",
        'kit.diagnose(train).shares.get("optimizer")  # the fraction of a step',
    ),
    "threads": (
        "All cores are busy and yet it is no faster than on a few; or one is busy and "
        "the others idle. In a container it is slower than outside.",
        "kit.this_machine().cores, torch.get_num_threads()  # and how many processes?",
    ),
    "settings": (
        "The same code is slower here than elsewhere, or since somebody looked for a "
        "NaN, for determinism, or for more digits.",
        "kit.diagnose(train).tried  # settings that may cost time are tried",
    ),
    "hooks": (
        "It is slower since activations or gradients are logged.",
        'kit.diagnose(train).savings.get("hooks")  # at most this fraction of a step',
    ),
    "compute": (
        "The device is busy all the time, steadily. Twice the batch takes twice as "
        "long.",
        'kit.diagnose(train).profile.mean("compute")  # the fraction of a step',
    ),
    "memory": (
        "The device is busy all the time, and yet matrix products are a small part of "
        "it: activations, normalisation and copies lead the profiler's table.",
        'kit.diagnose(train).profile.mean("memory")  # the fraction of a step',
    ),
    "healthy": (
        "No row above fits, or each measurement says something else.",
        'kit.compare({"loop": train, "same loop": train})  # what can be seen here',
    ),
}
HEADERS = ("you see", "to be sure", "it is called", "then try", "chapter")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table into its page; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", type=Path, metavar="FILE", required=True)
    page = parser.parse_args(arguments).write
    try:
        write_table(page, START, format_table(HEADERS, list_rows(page.parent)), END)
    except PageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def list_rows(tutorials: Path) -> list[tuple[str, ...]]:
    """Return a row for each verdict of a diagnosis, in Markdown.

    A chapter is a link where its notebook is in the folder `tutorials`.
    """
    return [
        (
            symptom,
            format_line(measure),
            f"`{verdict}`",
            format_line(CAUSES[verdict].code),
            format_link(CAUSES[verdict].chapter, tutorials),
        )
        for verdict, (symptom, measure) in SYMPTOMS.items()
    ]


def format_line(line: str) -> str:
    """Return a line of code, and what its comment says below it."""
    code, _, remark = line.partition("  # ")
    return f"`{code}`<br>{remark}" if remark else f"`{code}`"


def format_link(chapter: str, tutorials: Path) -> str:
    """Return a link to a chapter, or its name where there is no notebook yet.

    What follows a colon is the heading of a section.
    """
    notebook = next(tutorials.glob(f"{chapter[:2]}_*.ipynb"), None)
    _, colon, section = chapter.partition(": ")
    anchor = "#" + section.capitalize().replace(" ", "-") if colon else ""
    return f"[{chapter}]({notebook.name}{anchor})" if notebook else chapter


if __name__ == "__main__":
    sys.exit(main())
