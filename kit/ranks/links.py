"""`simulate_link`: a process group whose messages take as long as over another link."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kit.costs import Link
from kit.experiment import ExperimentError
from kit.figures import format_value

if TYPE_CHECKING:
    from kit.ranks.link_group import LinkGroup

#: PyTorch makes a group by the name of what carries its messages.
_BACKEND = "simulated_link"


def simulate_link(link: Link | None = None) -> LinkGroup:
    """Return a process group whose messages take as long as over this link.

    Call it on every rank of the world, each with the same link; pass what it returns
    as `group=` to `dist.all_reduce` and others, or to DistributedDataParallel as
    `process_group=`. A message goes through the world's own group, and is then held
    back for as long as the link takes, which carries one after the other: an
    all-reduce or all-gather as a ring does (`kit.costs.predict_all_reduce`). So it
    comes on top of the real exchange; None adds nothing. `group.sent_bytes` counts
    what this rank has sent, as a ring sends it. Tensors are on the CPU. Raises
    ExperimentError where there is no process group, and for what is no link.

    >>> import kit
    >>> def add_up_slowly():
    ...     group = simulate_link(Link(latency_seconds=0.01, bytes_per_second=1e6))
    ...     dist.all_reduce(torch.ones(1000), group=group)
    ...     return group.sent_bytes
    >>> with kit.start_ranks(2) as ranks:
    ...     ranks.run(add_up_slowly)
    [4000, 4000]
    """
    import torch.distributed as dist

    if not (link is None or isinstance(link, Link)):
        raise ExperimentError(
            f"simulate_link(link={format_value(link)}) is no link.\n"
            "Use one of kit.costs.LINKS, a kit.costs.Link of your own, or None."
        )
    if not dist.is_initialized():
        raise ExperimentError(
            "simulate_link(): this process belongs to no process group.\n"
            "Call it in a function that runs on ranks: ranks.run(function)."
        )
    if _BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(_BACKEND, _join, devices=["cpu"])
    group: LinkGroup = dist.new_group(backend=_BACKEND)
    group.link = link
    return group


def _join(store: Any, rank: int, size: int, timeout: Any) -> LinkGroup:
    """Make a group as PyTorch asks for it: the world carries its messages."""
    import torch.distributed as dist

    from kit.ranks.link_group import LinkGroup

    return LinkGroup(dist.group.WORLD, None)
