"""Checks of chapter 07's exercises: each calls the reader's code and watches it."""

import copy
import itertools
import random

import torch
from torch import nn
from torch.nn.functional import cross_entropy


class _Scores(nn.Module):
    """A small model of bytes that notes how many texts it gets at once."""

    def __init__(self):
        super().__init__()
        self.table, self.head, self.seen = nn.Embedding(11, 6), nn.Linear(6, 11), []

    def forward(self, inputs):
        self.seen.append(len(inputs))
        return self.head(self.table(inputs).tanh())


def accumulate_tokens(accumulate_tokens):
    """The gradient of the whole batch, whatever counts in which part."""
    torch.manual_seed(0)
    model = _Scores()
    for texts, parts in [(8, 1), (8, 4), (10, 4), (7, 7), (5, 2)]:
        inputs = torch.randint(11, (texts, 9))
        targets = torch.randint(11, (texts, 9))
        for text, length in enumerate(torch.randint(1, 9, (texts,)).tolist()):
            targets[text, length:] = -100
        targets[0] = -100
        model.zero_grad()
        whole = cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        wanted = _flat(torch.autograd.grad(whole, [*model.parameters()]))
        model.seen.clear()
        accumulate_tokens(model, inputs, targets, parts)
        case = f"{texts} texts in {parts} parts"
        sizes = sorted(model.seen)
        assert sum(sizes) == texts, (
            f"{case}: the model saw {sum(sizes)} texts in all, {sizes}"
        )
        assert len(sizes) == parts and sizes[-1] - sizes[0] <= 1, (
            f"{case}: the parts have {sizes} texts; there should be {parts}, of sizes "
            "that differ by one at most"
        )
        found = _gradient(model, case)
        assert torch.isfinite(found).all(), (
            f"{case}: the gradient is not finite. Has a part no target that counts?"
        )
        assert torch.allclose(found, wanted, rtol=1e-3, atol=1e-6), (
            f"{case}: the gradient is {_off(found, wanted):.0%} off. The whole batch "
            f"has {int((targets >= 0).sum())} targets that count: what is a share?"
        )
        accumulate_tokens(model, inputs, targets, parts)
        assert torch.allclose(_gradient(model, case), 2 * wanted, 1e-3, 1e-6), (
            f"{case}: called twice, it should have added the gradient twice"
        )
    return "the gradient of the whole batch, however it is split."


def _flat(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors])


def _gradient(model, case):
    gradients = [p.grad for p in model.parameters()]
    assert all(g is not None for g in gradients), f"{case}: it leaves no gradients"
    return _flat(gradients)


def _off(found, wanted):
    return ((found - wanted).norm() / wanted.norm()).item()


class _Block(nn.Module):
    """A block with dropout that counts how often it runs."""

    def __init__(self):
        super().__init__()
        layers = nn.Linear(8, 64), nn.GELU(), nn.Dropout(0.3), nn.Linear(64, 8)
        self.layers, self.runs = nn.Sequential(*layers), 0

    def forward(self, x):
        self.runs += 1
        return x + self.layers(x)


def run_checkpointed(run_checkpointed):
    """Each block twice, little saved, the plain loop's gradients and dropout."""
    torch.manual_seed(0)
    for needs in (True, False):
        blocks = nn.ModuleList(_Block() for _ in range(5))
        x = torch.randn(16, 8, requires_grad=needs)
        torch.manual_seed(1)
        y = x
        for block in blocks:
            y = block(y)
        y.square().sum().backward()
        wanted = _flat([p.grad for p in blocks.parameters()])
        blocks.zero_grad()
        for block in blocks:
            block.runs = 0
        torch.manual_seed(1)
        found, saved = _run_watched(run_checkpointed, blocks, x)
        asked = "x requires a gradient" if needs else "x requires no gradient"
        assert torch.equal(found, y), f"{asked}: the result is not the plain loop's"
        once = [block.runs for block in blocks]
        assert once == [1] * 5, f"{asked}: going forward, the blocks ran {once} times"
        most = 5 * x.nbytes + x.nbytes
        assert saved <= most, (
            f"{asked}: {saved:,} bytes are saved for the backward pass. The inputs of "
            f"five blocks have {5 * x.nbytes:,}: is each block checkpointed?"
        )
        assert found.requires_grad, (
            f"{asked}: the result has no gradient. use_reentrant=True needs an input "
            "that requires one"
        )
        watch = _Watch(blocks)
        found.square().sum().backward()
        gradients = [p.grad for p in blocks.parameters()]
        assert all(g is not None for g in gradients), (
            f"{asked}: parameters of the blocks get no gradients"
        )
        twice = [block.runs for block in blocks]
        assert twice == [2] * 5, (
            f"{asked}: after the backward pass the blocks have run {twice} times; each "
            "should have run once more"
        )
        assert watch.most <= 1, (
            f"{asked}: {watch.most} blocks run again before the first is through: "
            "checkpoint each by itself"
        )
        assert torch.allclose(_flat(gradients), wanted, rtol=1e-4, atol=1e-6), (
            f"{asked}: the gradients are not the plain loop's"
        )
    return "each block keeps its input only, and runs once more."


def _run_watched(run_checkpointed, blocks, x):
    """Return what it returns, and the bytes that autograd saves meanwhile."""
    own = {p.untyped_storage().data_ptr() for p in blocks.parameters()}
    saved = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        found = run_checkpointed(blocks, x)
    assert isinstance(found, torch.Tensor), f"it returns {found!r:.60}, not a tensor"
    return found, sum(saved.values())


class _Watch:
    """How many blocks have run again and wait for their gradients, at most."""

    def __init__(self, blocks):
        self.open = self.most = 0
        for block in blocks:
            block.register_forward_pre_hook(self._begin)
            last = block.layers[-1].bias
            last.register_post_accumulate_grad_hook(self._end)

    def _begin(self, *_):
        self.open += 1
        self.most = max(self.most, self.open)

    def _end(self, _):
        self.open -= 1


def make_batches(make_batches):
    """Each index once, no rectangle too large, little padding, no sorted order."""
    draw = random.Random(0)
    for count, tokens in [(300, 2048), (500, 4096), (1, 64), (3, 100)]:
        lengths = [
            min(int(draw.lognormvariate(3.5, 0.8)) + 4, 64) for _ in range(count)
        ]
        if count > 10:
            lengths = [min(4 * length, 512) for length in lengths]
        batches = [list(batch) for batch in make_batches(list(lengths), tokens)]
        case = f"{count} texts, tokens={tokens}"
        indices = sorted(itertools.chain(*batches))
        assert indices == list(range(count)), (
            f"{case}: each index should be in one batch; there are {len(indices)}, "
            f"{len(set(indices))} of them different"
        )
        sizes = [len(b) * max(lengths[i] for i in b) for b in batches if b]
        assert max(sizes) <= tokens, (
            f"{case}: a batch of {max(sizes)} places, with padding, is too large"
        )
        if count < 10:
            continue
        share = 1 - sum(lengths) / sum(sizes)
        assert share <= 0.2, f"{case}: {share:.0%} of the places are padding"
        full = sum(lengths) / tokens
        assert len(batches) <= 1.3 * full + 2, (
            f"{case}: {len(batches)} batches, where {full:.1f} full ones would hold "
            "all texts: join small ones"
        )
        longest = [max(lengths[i] for i in batch) for batch in batches]
        assert longest not in (sorted(longest), sorted(longest)[::-1]), (
            f"{case}: the batches come in the order of their lengths, so training sees "
            "short texts first, or long ones: shuffle the batches"
        )
    return "little padding, no batch too large, and no order of lengths."


class _Tied(nn.Module):
    """A weight used twice, a frozen layer, and some more layers."""

    def __init__(self):
        super().__init__()
        self.first, self.frozen = nn.Linear(6, 6), nn.Linear(6, 6)
        self.again, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
        self.again.weight = self.first.weight
        self.frozen.requires_grad_(False)

    def forward(self, x):
        x = self.frozen(self.first(x).tanh()).tanh()
        return self.last(self.again(x).tanh())


def update_in_backward(update_in_backward):
    """Three steps equal to the usual ones, and never two gradients."""
    adam = torch.optim.Adam
    for name, make in [
        ("SGD", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        ("Adam", lambda p: adam(p, lr=0.05)),
    ]:
        torch.manual_seed(0)
        usual = _Tied()
        early = copy.deepcopy(usual)
        optimizer = make([p for p in usual.parameters() if p.requires_grad])
        update_in_backward(early, make)
        learned = [p for p in early.parameters() if p.requires_grad]
        counts = []

        def count(_, learned=learned, counts=counts):
            counts.append(sum(p.grad is not None for p in learned))

        for p in learned:
            p.register_post_accumulate_grad_hook(count)
        for step in range(3):
            x = torch.randn(4, 6)
            usual(x).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            early(x).square().sum().backward()
            for p, q in zip(usual.parameters(), early.parameters(), strict=True):
                assert torch.allclose(p, q, rtol=1e-4, atol=1e-6), (
                    f"{name}: after step {step + 1} a parameter of shape "
                    f"{tuple(p.shape)} is not what the usual update makes it"
                )
        assert max(counts) <= 1, (
            f"{name}: {max(counts)} gradients are there at once: drop each one when "
            "its parameter is updated"
        )
        left = sum(p.grad is not None for p in learned)
        assert left == 0, f"{name}: after backward there are still {left} gradients"
    return "the usual updates, and one gradient at a time."
