"""Chapter 09's numbers of a short format, kept in float32."""

from __future__ import annotations

import torch
from torch import nn


def round_to(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round to a format's nearest number; autograd rounds the gradient as well."""
    return x.to(dtype).float()


def run_rounded(
    net: nn.Sequential, x: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Run a network with each layer's input, weights and output rounded."""
    for layer in net:
        x = round_to(x, dtype)
        if isinstance(layer, nn.Linear):
            weight, bias = round_to(layer.weight, dtype), round_to(layer.bias, dtype)
            x = nn.functional.linear(x, weight, bias)
        else:
            x = layer(x)
    return round_to(x, dtype)
