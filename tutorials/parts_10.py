"""Parts of chapter 10's step, each by itself: its linear layers, and its casts.

Both take the network from the chapter, as a function that makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn


def multiply(
    *, make_net: Callable[[], nn.Sequential], dtype: torch.dtype, batch_size: int
) -> Iterator[int]:
    """Run the linear layers alone, forward and backward, in one format."""
    net = make_net().to(dtype)
    layers = [layer for layer in net if isinstance(layer, nn.Linear)]
    inputs = []
    for layer in layers:
        x = layer.weight.new_ones(batch_size, layer.in_features)
        inputs.append(x.requires_grad_(layer is not layers[0]))
    while True:
        for layer, x in zip(layers, inputs, strict=True):
            output = layer(x)
            output.backward(output.detach())
            x.grad = None
        net.zero_grad()
        yield batch_size


def cast(*, make_net: Callable[[], nn.Sequential], dtype: torch.dtype) -> Iterator[int]:
    """Cast all weights to a format, and gradients of their sizes back."""
    weights = [weight.detach() for weight in make_net().parameters()]
    while True:
        copies = [weight.to(dtype) for weight in weights]
        gradients = [copy.float() for copy in copies]
        yield len(gradients)


def count_kept(
    net: nn.Module, compute_loss: Callable[[nn.Module], torch.Tensor]
) -> float:
    """Return how many megabytes autograd keeps for the backward pass, but for weights.

    A hook sees each tensor that is kept. What is kept twice lies at one address, and
    counts once.
    """
    kept = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        compute_loss(net)
    for weight in net.parameters():
        kept.pop(weight.data_ptr(), None)
    return sum(kept.values()) / 1e6
