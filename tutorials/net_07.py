"""Chapter 07's small transformer, and its texts."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """A transformer's block: attention to what came before, then two layers."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> Any:
        """Return what has the shape of `x`: texts, positions, width.

        `mask` is added to the scores of attention; without it, a position sees itself
        and what came before.
        """
        merged = self.query_key_value(self.norm1(x))
        q, k, v = merged.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
        x = x + self.output(seen.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Net(nn.Module):
    """Predict the next byte of each text."""

    def __init__(
        self, width: int, blocks: int = 12, checkpointed: bool = False
    ) -> None:
        super().__init__()
        self.table = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 256)
        self.checkpointed = checkpointed

    def forward(self, texts: torch.Tensor, mask: torch.Tensor | None = None) -> Any:
        """Return a score for each of 256 bytes at each place."""
        x = self.table(texts)
        for block in self.blocks:
            if self.checkpointed:
                x = checkpoint(block, x, mask, use_reentrant=False)
            else:
                x = block(x, mask)
        return self.head(x)


def draw_parts(
    texts: int, length: int, parts: int, device: torch.device, uneven: bool = False
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Draw random texts; return inputs and targets of each part of the batch.

    Uneven texts end early, the first ones earliest: their last targets are -100, which
    `cross_entropy` skips.
    """
    drawn = torch.randint(256, (texts, length + 1), device=device)
    inputs, targets = drawn[:, :-1], drawn[:, 1:].clone()
    if uneven:
        ends = torch.randint(length // 8, length, (texts, 1), device=device)
        ends = ends.sort(dim=0).values
        targets[torch.arange(length, device=device) >= ends] = -100
    pairs = zip(inputs.chunk(parts), targets.chunk(parts), strict=True)
    return list(pairs)


def find_loss(
    net: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean"
) -> torch.Tensor:
    """Return the cross-entropy over all targets that count."""
    scores = net(inputs).flatten(0, 1)
    return F.cross_entropy(scores, targets.flatten(), reduction=reduction)


def join(parts: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, ...]:
    """Make one part of several."""
    inputs, targets = zip(*parts, strict=True)
    return torch.cat(inputs), torch.cat(targets)


def get_gradient(net: nn.Module) -> torch.Tensor:
    """Return the gradients of all parameters, one after the other."""
    return torch.cat([p.grad.flatten() for p in net.parameters()])


# Texts of unequal lengths


def draw_texts(number: int, longest: int) -> list[torch.Tensor]:
    """Draw random texts: most are short, a few are long."""
    lengths = torch.empty(number).log_normal_(math.log(longest / 4), 0.8)
    lengths = lengths.long().clamp(4, longest + 1)
    return [torch.randint(256, (n,)) for n in lengths.tolist()]


def pad(rows: list[torch.Tensor], value: int = 0) -> torch.Tensor:
    """Make a rectangle of rows."""
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)


def make_batch(texts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, None]:
    """Make a padded batch: inputs, targets, no mask."""
    inputs = pad([text[:-1] for text in texts])
    targets = pad([text[1:] for text in texts], -100)
    return inputs, targets, None


def fill_rows(texts: list[torch.Tensor], longest: int) -> list[list[torch.Tensor]]:
    """Put each text, the longest first, into the first row that has room for it."""
    rows: list[list[torch.Tensor]] = []
    room: list[int] = []
    for text in sorted(texts, key=len, reverse=True):
        need = len(text) - 1  # the last byte is a target only
        for number, row in enumerate(rows):
            if room[number] >= need:
                row.append(text)
                room[number] -= need
                break
        else:
            rows.append([text])
            room.append(longest - need)
    return rows


def pack(rows: list[list[torch.Tensor]]) -> tuple[torch.Tensor, ...]:
    """Make a packed batch: inputs, targets, and the mask that keeps texts apart."""
    inputs = pad([torch.cat([text[:-1] for text in row]) for row in rows])
    targets = pad([torch.cat([text[1:] for text in row]) for row in rows], -100)
    numbers = []
    for row in rows:
        places = [torch.full_like(text[1:], i) for i, text in enumerate(row)]
        numbers.append(torch.cat(places))
    which = pad(numbers, -1)  # to which text of its row a place belongs
    length = inputs.shape[1]
    hidden = which[:, None, :] != which[:, :, None]
    hidden |= torch.ones(length, length, dtype=torch.bool).triu(1)
    mask = torch.zeros(hidden.shape).masked_fill(hidden, -math.inf)
    return inputs, targets, mask[:, None]  # the same for all heads
