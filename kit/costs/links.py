"""Links between two ranks: how late a message arrives, and how fast its bytes flow.

The six in `LINKS` are nominal, not measured: what standards and vendors promise at
best. Before you rely on one, measure your own and fit it (`fit_link`).

Bandwidths, one way:

- Ethernet: its name, in bits.
- PCIe 5 x16: 32 GT/s on 16 lanes, 128 of 130 bits; PCI Express Base Specification 5.0.
- InfiniBand NDR: 100 Gbit/s on each of four lanes; InfiniBand Trade Association.
- NVLink 4 and 5: 18 links of 25 and 50 GB/s. https://www.nvidia.com/en-us/data-center/nvlink/
  counts both ways together: 900 GB/s and 1.8 TB/s.

Latencies, of a message between two processes, rounded:

- Ethernet, 1 Gbit/s: 23 µs, NetPIPE between two Linux machines,
  http://norma.mbg.duth.gr/index.php?id=about:benchmarks:network
- Ethernet, 100 Gbit/s: 10 µs, MPI over TCP, tuned, on a fast card,
  https://blogs.cisco.com/performance/aint-your-fathers-tcp
- Between GPUs: what NCCL's own model takes for a hop of a ring with its protocol LL128:
  1.9 µs over NVLink, 2.5 µs over PCIe, 4 µs over a network, `hwLat` in
  https://github.com/NVIDIA/nccl/blob/01afd20a77b5804e0ecf1042509dd9d20ebf9e93/src/graph/tuning.cc
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Link(NamedTuple):
    """A way from one rank to another, and as good a one back at the same time.

    A message of m bytes takes `latency_seconds` + m / `bytes_per_second`: the α–β
    model, α + m / β. Hockney 1994, "The communication challenge for MPP: Intel Paragon
    and Meiko CS-2", https://doi.org/10.1016/S0167-8191(06)80021-9.
    """

    latency_seconds: float
    bytes_per_second: float

    def slowed(self, factor: float) -> Link:
        """Return a link with `factor` times the latency and a part of the bandwidth.

        Every message takes `factor` times as long. Raises ValueError for a factor that
        is not above 0.

        >>> Link(0.5, 64.0).slowed(2)
        Link(latency_seconds=1.0, bytes_per_second=32.0)
        """
        if not 0 < factor < math.inf:
            raise ValueError(f"Link.slowed(): factor={factor} is not above 0")
        return Link(self.latency_seconds * factor, self.bytes_per_second / factor)


#: Nominal, not measured: where the numbers come from, the module's docstring says.
LINKS: dict[str, Link] = {
    "Ethernet, 1 Gbit/s": Link(25e-6, 1e9 / 8),
    "Ethernet, 100 Gbit/s": Link(10e-6, 100e9 / 8),
    "PCIe 5 x16": Link(2.5e-6, 63e9),
    "InfiniBand NDR": Link(4e-6, 400e9 / 8),
    "NVLink 4": Link(2e-6, 450e9),
    "NVLink 5": Link(2e-6, 900e9),
}


def predict_message(message_bytes: float, *, link: Link) -> float:
    """Predict the seconds that one message takes on a link that is free.

    >>> predict_message(1e6, link=Link(1e-3, 1e9))
    0.002
    """
    return link.latency_seconds + message_bytes / link.bytes_per_second


def check_link(function: str, name: str, link: Link) -> None:
    """Raise ValueError in the name of a function where a link cannot be."""
    if not 0 <= link.latency_seconds < math.inf:
        raise ValueError(
            f"{function}(): {name}.latency_seconds={link.latency_seconds} "
            "is not finite or below 0"
        )
    if not link.bytes_per_second > 0:
        raise ValueError(
            f"{function}(): {name}.bytes_per_second={link.bytes_per_second} "
            "is not above 0"
        )


def check_machines(
    function: str,
    link: Link,
    between: Link | None,
    ranks_per_machine: int | None,
    cards_per_machine: int | None,
) -> None:
    """Raise ValueError in the name of a function where machines are half described."""
    check_link(function, "link", link)
    sizes = {
        "ranks_per_machine": ranks_per_machine,
        "cards_per_machine": cards_per_machine,
    }
    for name, size in sizes.items():
        if size is not None and between is None:
            raise ValueError(
                f"{function}(): {name}={size} is for several machines; "
                "say with between= which link is between them"
            )
        if size is not None and size < 1:
            raise ValueError(f"{function}(): {name}={size} is below 1")
    if between is not None:
        check_link(function, "between", between)
        if ranks_per_machine is None:
            raise ValueError(
                f"{function}(): between= is a link between machines; "
                "say with ranks_per_machine= how many ranks each has"
            )


def check_bytes(function: str, message_bytes: float) -> None:
    """Raise ValueError in the name of a function where bytes cannot be."""
    if not 0 <= message_bytes < math.inf:
        raise ValueError(
            f"{function}(): message_bytes={message_bytes} is not finite or below 0"
        )
