"""What a diagnosis recognizes and does not try: the table `NAMED`.

To add one: write what finds it, which returns a sentence or "", and a row here.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kit.diagnosis.modules import Training
from kit.diagnosis.repairs import Facts, miss_instructions

#: Denormal numbers may cost time where there are more than this share.
_MANY_DENORMALS = 0.001
#: Gradients of less than this share of the parameters cost little.
_FEW_IDLE = 0.05
#: A dense gradient of so many numbers costs more than one of the rows that a step
#: touches, where these are less than this share.
_LARGE_TABLE = 1_000_000
_FEW_ROWS = 0.1


class Named(NamedTuple):
    """Something that may cost time: what was seen, and the line that changes it.

    `is_setting` says that the same work may cost less without it.
    """

    sentence: str
    code: str
    effect: str
    is_setting: bool


def _find_float64(facts: Facts) -> str:
    import torch

    kinds = {parameter.dtype for parameter in facts.training.list_parameters()}
    is_double = torch.float64 in kinds
    return "Its parameters are float64, which few models need." if is_double else ""


def _find_denormals(facts: Facts) -> str:
    import torch

    few = whole = 0
    for tensor in _list_numbers(facts.training):
        tiny = torch.finfo(tensor.dtype).tiny
        few += int(((tensor != 0) & (tensor.abs() < tiny)).sum())
        whole += tensor.numel()
    share = few / max(whole, 1)
    if share < _MANY_DENORMALS:
        return ""
    return f"{100 * share:.2g} % of its numbers are denormal, which CPUs handle slowly."


def _list_numbers(training: Training) -> Iterator[Any]:
    """Yield parameters, gradients and what optimizers keep, if a CPU has them."""
    import torch

    for parameter in training.list_parameters():
        kept = training.find_state(parameter).values()
        for tensor in (parameter.detach(), parameter.grad, *kept):
            if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
                continue
            if tensor.device.type == "cpu" and tensor.layout == torch.strided:
                yield tensor.detach()


def _find_idle_gradients(facts: Facts) -> str:
    from torch.optim import Optimizer

    # Also those of optimizers that step seldom, or are made in each step.
    everywhere = [x for x in gc.get_objects() if issubclass(type(x), Optimizer)]
    groups = [group for optimizer in everywhere for group in optimizer.param_groups]
    updated = {id(parameter) for group in groups for parameter in group["params"]}
    count = whole = 0
    for root in facts.training.find_roots():
        for parameter in root.parameters():
            whole += parameter.numel()
            has_gradient = parameter.grad is not None and parameter.requires_grad
            if has_gradient and id(parameter) not in updated:
                count += parameter.numel()
    if count <= _FEW_IDLE * whole:
        return ""
    return f"{count:,} numbers have gradients but belong to no optimizer."


def _find_autocast(facts: Facts) -> str:
    if not facts.training.uses_autocast:
        return ""
    missing = miss_instructions(facts.training)
    return f"The loop uses autocast, and {missing}." if missing else ""


def _find_convolutions(facts: Facts) -> str:
    import torch
    from torch import nn

    if not facts.takes("compute"):
        return ""
    last = torch.channels_last
    weights = [
        module._parameters["weight"]
        for root in facts.training.find_roots()
        for module in root.modules()
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d))
        # A parametrized one has no weight of its own.
        and module._parameters.get("weight") is not None
    ]
    if all(weight.is_contiguous(memory_format=last) for weight in weights):
        return ""
    return "Its 2D convolutions are not in channels_last."


def _find_embeddings(facts: Facts) -> str:
    from torch.nn import Embedding

    modules = [
        named
        for root in facts.training.find_roots()
        for named in root.named_modules()
        if isinstance(named[1], Embedding)
    ]
    found = []
    for name, module in modules:
        gradient, rows = module.weight.grad, module.num_embeddings
        if gradient is None or gradient.is_sparse or gradient.numel() < _LARGE_TABLE:
            continue
        touched = int(gradient.any(dim=1).sum())
        if touched < _FEW_ROWS * rows:
            found.append(
                f"A step touches {touched:,} of the {rows:,} rows of the embedding "
                f"{name!r}, but its gradient and its update cover all of them."
            )
    return " ".join(found)


class Row(NamedTuple):
    """How something is found, and what is said of it."""

    find: Callable[[Facts], str]
    code: str
    effect: str = ""
    is_setting: bool = True


#: The first one that is found is advised first.
NAMED = {
    "float64": Row(
        _find_float64,
        "model = model.float()  # and data in float32",
        "It changes the result: it computes with fewer digits.",
    ),
    "autocast": Row(
        _find_autocast,
        "with torch.autocast(device, enabled=False): ...",
        "It changes the result: it computes with more digits.",
    ),
    "idle": Row(_find_idle_gradients, "backbone.requires_grad_(False)"),
    "denormals": Row(
        _find_denormals,
        "torch.set_flush_denormal(True)  # in each thread that computes",
        "It changes the result: numbers below 1e-38 become zero.",
    ),
    "embedding": Row(
        _find_embeddings,
        "nn.Embedding(…, sparse=True)  # with torch.optim.SparseAdam, or SGD",
        "It changes the training: only rows that a step touches are updated.",
        is_setting=False,
    ),
    "channels_last": Row(
        _find_convolutions,
        "model = model.to(memory_format=torch.channels_last)",
        "It changes results by rounding only, and may gain or lose.",
        is_setting=False,
    ),
}


def find_named(facts: Facts) -> dict[str, Named]:
    """Return what is recognized in a run; ask before an update: gradients are there."""
    found = {}
    for name, row in NAMED.items():
        sentence = ""
        with contextlib.suppress(Exception):  # the reader's classes may raise anything
            sentence = row.find(facts)
        if sentence:
            found[name] = Named(sentence, row.code, row.effect, row.is_setting)
    return found
