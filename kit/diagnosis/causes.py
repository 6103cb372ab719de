"""The causes that a diagnosis knows, and what leaving each out would be."""

from __future__ import annotations

#: Phases of a step that are not called as their cause.
PHASE_OF_CAUSE = {"transfer": "copies"}
#: By cause, what would be left out, in words.
CAUSES = {
    "input": "the wait for data",
    "transfer": "copies to the device",
    "python": "your own code outside forward, backward and update",
    "overhead": "the cost of starting operations",
    "sync": "waits for the device",
    "optimizer": "the update of parameters",
    "threads": "this number of threads",
    "settings": "a setting that makes the same work expensive",
    "compute": "arithmetic",
    "memory": "moving numbers through memory",
    "healthy": "nothing",
}
