"""Starts the neighbor and, beside it, a fresh process for a few comparisons."""

import contextlib
import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import kit

from .code import hash_measuring
from .neighbours import CONDITIONS
from .schedule import all_batches, all_jobs, expected_minutes

_FOLDER, _ROOT = Path(__file__).parent, Path(kit.__file__).parents[1]
#: A process that takes so many times as long as expected hangs, loading not counted.
_HANGS, _SECONDS_TO_LOAD = 5.0, 60.0


def run(out, minutes, *, resume=False, keep=lambda job: True):
    """Make as much of the schedule as these minutes hold; append a line for each.

    `resume` leaves out what `out` holds already, except for errors; its minutes are
    for this time only. `keep` chooses among the jobs. Raises FileExistsError where
    `out` is there and `resume` is not set.
    """
    if out.exists() and not resume:
        raise FileExistsError(f"{out} is there: say --resume, or take another name")
    done = {row["name"] for row in read(out)[1] if "error" not in row}
    out.parent.mkdir(parents=True, exist_ok=True)
    begun = time.time()
    until = begun + 60 * minutes
    with open(out, "a") as file:
        session = {"session": {**find_provenance(), "at": begun}}
        file.write(json.dumps(session) + "\n")
    print(
        f"{len(all_jobs())} comparisons, of which {len(done)} are done, to {out}; all "
        f"of them take about {expected_minutes():.0f} minutes"
    )
    for batch in all_batches():
        jobs = [job for job in batch if keep(job) and job.name not in done]
        left = until - time.time()
        if left <= 0:
            print("the time is over; --resume goes on")
            break
        if jobs:
            cell = f"{jobs[0].condition}, {jobs[0].work}"
            print(f"{left / 60:5.1f} min left: {len(jobs)} of {cell}", flush=True)
            with CONDITIONS[jobs[0].condition]():
                _measure(jobs, out, until)


def _measure(jobs, out, until):
    paths = [str(_FOLDER.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environment.pop("KIT_QUICK", None)
    environment["KIT_STATIC"] = "1"  # no bars in the log
    rows = [dataclasses.asdict(job) for job in jobs]
    order = json.dumps({"out": str(out.resolve()), "until": until, "jobs": rows})
    limit = _SECONDS_TO_LOAD + _HANGS * sum(job.expected_seconds for job in jobs)
    limit = min(limit, max(until - time.time(), 0.0))
    with open(out.with_suffix(".log"), "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", f"{_FOLDER.name}.measuring"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        try:
            process.communicate(order.encode() + b"\n", timeout=limit)
        except subprocess.TimeoutExpired:
            print(f"  it was ended after {limit:.0f} s")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode:
        print(f"  it ended with {process.returncode}; see {log.name}")


def read(out):
    """Return the sessions and the rows of a file; the last row of a name counts.

    A line that was cut off, by a power failure say, is left out.
    """
    sessions, rows = [], {}
    for line in out.read_text().splitlines() if out.exists() else []:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        if "session" in entry:
            sessions.append(entry["session"])
        else:
            rows[entry["name"]] = entry
    return sessions, list(rows.values())


def find_provenance():
    """Return what results depend on: machine, versions, the very sources."""
    versions = dict.fromkeys(("torch", "pyperf", "numpy", "scipy"))
    for name in versions:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "machine": dataclasses.asdict(kit.this_machine()),
        "commit": _git("rev-parse", "HEAD"),
        "changed": bool(_git("status", "--porcelain", "--", "kit")),
        "kit": hash_sources(_ROOT / "kit"),
        "measuring": hash_measuring(_ROOT / "kit"),
        "harness": hash_sources(_FOLDER),
        "packages": versions,
    }


def hash_sources(folder):
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode())
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _git(*arguments):
    command = ["git", "-C", str(_ROOT), *arguments]
    try:
        return subprocess.check_output(command, text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return None
