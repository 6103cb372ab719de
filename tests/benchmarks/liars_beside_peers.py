"""The same experiments built to deceive, put to the kit and to its peers, side by side.

From the repository's root, some six minutes; it prints the table in Markdown, and puts
it into a page:

    python tests/benchmarks/liars_beside_peers.py --write kit/MEASURING.md
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import time
from pathlib import Path

_HERE = Path(__file__).resolve().parent
for _folder in (_HERE, _HERE.parent, _HERE.parents[1]):
    if str(_folder) not in sys.path:  # run as a script, not by pytest
        sys.path.append(str(_folder))

import torch  # noqa: E402
from calibration import results  # noqa: E402
from calibration.peers import PEERS  # noqa: E402
from liars import LIARS, Liar, find  # noqa: E402
from real_liars import Stage  # noqa: E402

import kit  # noqa: E402

KIT = "kit"
BEGIN, END = "<!-- liars -->", "<!-- end of liars -->"
#: Seconds after which a tool hangs: setting up and compiling take their time.
_PATIENCE = 120.0
_NAMES = {
    KIT: "`kit.compare`",
    "adaptive_autorange": "`torch.utils.benchmark`",
    "pyperf": "pyperf",
}
_MARKS = {
    "right": "✓",
    "wrong": "✗",
    "says why": "✓ says why",
    "undecided": "– undecided",
    "not catchable": "✗ not catchable",
    "not asked": "not asked",
}


def ask_kit(liar: Liar) -> dict[str, object]:
    """Put a liar to `kit.compare`; return verdict, reason, figures and judgement."""
    begun = time.perf_counter()
    figures = ""
    with Stage(liar.seconds) as stage:
        try:
            made = kit.compare(liar.real(stage), seconds=liar.seconds)
        except kit.experiment.ExperimentError as error:
            verdict, reason = "refused", str(error)
        else:
            ratio = made.ratio
            verdict, reason, figures = ratio.verdict, ratio.reason, str(ratio)
    judged = liar.judge(verdict, reason, real=True)
    return _row(liar, KIT, verdict, reason, figures, judged, begun)


def ask_peer(liar: Liar, peer: str) -> dict[str, object]:
    """Put a liar to a peer, and judge in its favour where there is room.

    No peer says "same": "cannot tell" is right where both are the same. An error that
    it raises is its verdict.
    """
    begun = time.perf_counter()
    figures = reason = ""
    if liar.uses_device and not torch.cuda.is_available():
        # It cannot know of the stand-in: what it says about it is no fault of its.
        return _row(liar, peer, "", "no GPU here", "", "not asked", begun)
    with Stage(liar.seconds) as stage:
        starts = liar.real(stage).values()
        try:
            outcome = PEERS[peer](*starts, liar.seconds)
        except Exception as error:
            verdict, reason = "raised", f"{type(error).__name__}: {error}"
        else:
            ratio, low, high, verdict = outcome
            figures = f"{ratio:.3g} × [{low:.3g}, {high:.3g}]"
    if verdict == "cannot tell":
        judged = "right" if liar.truth == "same" else "wrong"
    else:
        judged = "right" if verdict == liar.truth else "wrong"
    return _row(liar, peer, verdict, reason, figures, judged, begun)


def _row(
    liar: Liar,
    tool: str,
    verdict: str,
    reason: str,
    figures: str,
    judged: str,
    begun: float,
) -> dict[str, object]:
    return {
        "liar": liar.name,
        "deception": liar.deception,
        "truth": liar.truth,
        "tool": tool,
        "verdict": verdict,
        "reason": reason,
        "figures": figures,
        "judged": judged,
        "seconds": time.perf_counter() - begun,
    }


def run_liars(liars: list[Liar] | None = None) -> list[dict[str, object]]:
    """Put every liar to every tool, each in a fresh process; return a row for each.

    A row has `liar`, `deception`, `truth`, `tool`, `verdict`, `reason`, `figures`,
    `judged` (see `Liar.judge`) and `seconds`. Hanging and raising are verdicts.
    """
    asked = [liar for liar in liars or LIARS if liar.real]
    return [_in_fresh_process(liar, tool) for liar in asked for tool in (KIT, *PEERS)]


def _in_fresh_process(liar: Liar, tool: str) -> dict[str, object]:
    """Ask there, so that what one tool lets leak does not reach the next."""
    begun = time.perf_counter()
    command = [sys.executable, __file__, liar.name, tool]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        reason = f"no answer within {_PATIENCE:.0f} s"
        return _row(liar, tool, "hangs", reason, "", "wrong", begun)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return _row(liar, tool, "dies", reason, "", "wrong", begun)
    return json.loads(done.stdout.splitlines()[-1])


def render(rows: list[dict[str, object]]) -> str:
    """Return the rows as a Markdown table: a line per liar, a column per tool."""
    tools = list(dict.fromkeys(row["tool"] for row in rows))
    head = ["experiment", "how it deceives", "truth", *(_NAMES[t] for t in tools)]
    lines = [_line(head), _line(["---"] * len(head))]
    for name in dict.fromkeys(row["liar"] for row in rows):
        own = {row["tool"]: row for row in rows if row["liar"] == name}
        first = next(iter(own.values()))
        cells = [name, first["deception"], first["truth"]]
        lines.append(_line([*cells, *(_cell(own[t]) for t in tools if t in own)]))
    right = [
        sum(row["judged"] in ("right", "says why") for row in rows if row["tool"] == t)
        for t in tools
    ]
    asked = [
        sum(row["judged"] != "not asked" for row in rows if row["tool"] == t)
        for t in tools
    ]
    counts = [f"{r} of {a}" for r, a in zip(right, asked, strict=True)]
    lines.append(_line(["**right, or says why**", "", "", *counts]))
    return "\n".join(lines)


def _cell(row: dict[str, object]) -> str:
    said = " ".join(str(row[key]) for key in ("verdict", "figures") if row[key])
    mark = _MARKS[str(row["judged"])]
    said = f"{mark}: {said}" if said else mark
    # Why a verdict is withheld is told where it happens; the mark says that it is.
    return f"{said} ({row['reason']})" if row["judged"] == "not asked" else said


def _line(cells: list[object]) -> str:
    escaped = (" ".join(str(cell).replace("|", "\\|").split()) for cell in cells)
    return "| " + " | ".join(escaped) + " |"


def main() -> None:
    """Ask one tool about one liar, or all about all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ask", nargs="*", metavar="LIAR TOOL", help="one question only")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put it into a page")
    arguments = parser.parse_args()
    if not arguments.ask:
        table = f"{_provenance()}\n\n{render(run_liars())}"
        print(table)
        if arguments.write:
            results.write_page(arguments.write, table, BEGIN, END)
        return
    torch.set_num_threads(1)  # several wait for each other where the machine is busy
    name, tool = arguments.ask
    liar = find(name)
    print(json.dumps(ask_kit(liar) if tool == KIT else ask_peer(liar, tool)))


def _provenance() -> str:
    machine, today = kit.this_machine(), datetime.date.today().isoformat()
    return (
        f"Asked on {today} on {machine.name} ({machine.operating_system}, Python "
        f"{machine.python}, torch {machine.torch})."
    )


if __name__ == "__main__":
    main()
