"""The same experiments built to deceive, put to the kit and to its peers, side by side.

From the repository's root, some six minutes; it prints the table in Markdown, and puts
it into a page:

    python tests/benchmarks/adversarial_beside_peers.py --write kit/MEASURING.md
"""

import argparse
import datetime
import json
import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
for _folder in (_HERE, _HERE.parent, _HERE.parents[1]):
    if str(_folder) not in sys.path:  # run as a script, not by pytest
        sys.path.append(str(_folder))

import torch  # noqa: E402
from adversarial import ADVERSARIAL, find  # noqa: E402
from calibration import results  # noqa: E402
from calibration.peers import PEERS  # noqa: E402
from real_adversarial import Stage  # noqa: E402

import kit  # noqa: E402

KIT = "kit"
BEGIN, END = "<!-- adversarial -->", "<!-- end of adversarial -->"
#: Seconds after which a tool hangs: setting up and compiling take their time.
_PATIENCE = 120.0
_NAMES = {KIT: "`kit.compare`", "adaptive_autorange": "`torch.utils.benchmark`"}
_MARKS = {"right": "✓", "wrong": "✗", "says why": "✓ says why"}
_MARKS |= {"undecided": "– undecided", "not catchable": "✗ not catchable"}


def ask(case, tool):
    """Put a case to a tool; return `verdict`, `reason`, `figures` and `judged`."""
    if tool == KIT:
        return ask_kit(case)
    if case.uses_device and not torch.cuda.is_available():
        # It cannot know of the stand-in: what it says about it is no fault of its.
        return _row("", "no GPU here", "", "not asked")
    return ask_peer(case, tool)


def ask_kit(case):
    figures = ""
    with Stage(case.seconds) as stage:
        try:
            ratio = kit.compare(case.real(stage), seconds=case.seconds).ratio
            verdict, reason, figures = ratio.verdict, ratio.reason, str(ratio)
        except kit.measuring.experiment.ExperimentError as error:
            verdict, reason = "refused", str(error)
    return _row(verdict, reason, figures, case.judge(verdict, reason, real=True))


def ask_peer(case, peer):
    """Put a case to a peer, and judge in its favor where there is room.

    None says "same": "cannot tell" is right where it is so. An error is its verdict.
    """
    figures = reason = ""
    with Stage(case.seconds) as stage:
        try:
            starts = case.real(stage).values()
            ratio, low, high, verdict = PEERS[peer](*starts, case.seconds)
            figures = f"{ratio:.3g} × [{low:.3g}, {high:.3g}]"
        except Exception as error:
            verdict, reason = "raised", f"{type(error).__name__}: {error}"
    is_right = verdict == ("cannot tell" if case.truth == "same" else case.truth)
    return _row(verdict, reason, figures, "right" if is_right else "wrong")


def _row(verdict, reason, figures, judged):
    told = {"verdict": verdict, "reason": reason}
    return told | {"figures": figures, "judged": judged}


def ask_afresh(case, tool):
    """Ask in a fresh process; hanging and dying are verdicts."""
    command, said = (
        [sys.executable, __file__, case.name, tool],
        {"capture_output": True},
    )
    try:
        done = subprocess.run(command, text=True, timeout=_PATIENCE, **said)
    except subprocess.TimeoutExpired:
        return _row("hangs", f"no answer within {_PATIENCE:.0f} s", "", "wrong")
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no message"]
        return _row("dies", said[-1], "", "wrong")
    return json.loads(done.stdout.splitlines()[-1])


def render(answers):
    """Return answers, by experiment and tool, as a Markdown table."""
    tools = list(next(iter(answers.values())))
    head = ["experiment", "how it deceives", "truth"]
    head += [_NAMES.get(tool, tool) for tool in tools]
    lines = [head, ["---"] * len(head)]
    for name, told in answers.items():
        cells = [name, find(name).deception, find(name).truth]
        lines.append([*cells, *(_cell(told[tool]) for tool in tools)])
    counts = []
    for tool in tools:
        judged = [told[tool]["judged"] for told in answers.values()]
        right = sum(word in ("right", "says why") for word in judged)
        counts.append(f"{right} of {len(judged) - judged.count('not asked')}")
    lines.append(["**right, or says why**", "", "", *counts])
    escaped = [[" ".join(c.replace("|", "\\|").split()) for c in row] for row in lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped)


def _cell(row):
    said = " ".join(row[key] for key in ("verdict", "figures") if row[key])
    mark = _MARKS.get(row["judged"], row["judged"])
    said = f"{mark}: {said}" if said else mark
    # Why a verdict is withheld is told where it happens; the mark says that it is.
    return f"{said} ({row['reason']})" if row["judged"] == "not asked" else said


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "ask", nargs="*", metavar="EXPERIMENT TOOL", help="one question only"
    )
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put it into a page")
    asked = parser.parse_args()
    if asked.ask:
        torch.set_num_threads(1)  # several wait for each other on a busy machine
        name, tool = asked.ask
        print(json.dumps(ask(find(name), tool)))
        return
    machine, today = kit.this_machine(), datetime.date.today().isoformat()
    table = (
        f"Asked on {today} on {machine.name} ({machine.operating_system}, Python "
        f"{machine.python}, torch {machine.torch}).\n\n"
    )
    cases = [case for case in ADVERSARIAL if case.real]
    tools = (KIT, *PEERS)
    table += render(
        {case.name: {t: ask_afresh(case, t) for t in tools} for case in cases}
    )
    print(table)
    if asked.write:
        results.write_page(asked.write, table, BEGIN, END)


if __name__ == "__main__":
    main()
