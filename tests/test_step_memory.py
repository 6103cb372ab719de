"""What a training step keeps: predicted bytes against those of real steps."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.profiler import profile
from torch.utils.checkpoint import checkpoint

from kit.costs import predict_step_memory


class Attention(nn.Module):
    """Causal attention of four heads, by PyTorch's fused function."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(64, 192)

    def forward(self, x):
        q, k, v = self.mix(x).unflatten(-1, (3, 4, 16)).transpose(1, 3).unbind(2)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Blocks(nn.Module):
    """Blocks of which only inputs are kept."""

    def __init__(self):
        super().__init__()
        sizes = [(64, 256), (256, 64)]
        layers = [[nn.Linear(*a), nn.GELU(), nn.Linear(*b)] for a, b in [sizes] * 4]
        self.blocks = nn.ModuleList(nn.Sequential(*some) for some in layers)

    def forward(self, x):
        for block in self.blocks:
            options = {"use_reentrant": False, "preserve_rng_state": False}
            x = checkpoint(block, x, **options)
        return x


class Views(nn.Module):
    """Squares and a sine of views of one tensor, which count once."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x):
        y = self.layer(x)
        return y[:, :16].square() + y[:, 16:].square() + y.view(-1, 2, 16)[:, 0].sin()


class Masked(nn.Module):
    """A mask that is no buffer, one made in the forward pass, and a list of inputs."""

    def __init__(self):
        super().__init__()
        self.mask, self.layer = torch.ones(32), nn.Linear(32, 32)

    def forward(self, pair):
        x, y = pair
        scale = torch.arange(32, dtype=torch.float32)
        return self.layer((x + y) * self.mask) * scale.exp()


class Tied(nn.Module):
    """An embedding whose weight also turns vectors into words."""

    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(100, 32), nn.Linear(32, 100, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x):
        return self.out(self.words(x).tanh())


def make_convolutions():
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True)]
    layers += [nn.Dropout(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 15 * 15, 10)]
    return nn.Sequential(*layers)


def make_frozen():
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 32), nn.Tanh())
    net[0].requires_grad_(False)
    return net


def make_encoder():
    return nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)


def make_low_precision():
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)).bfloat16()


MODELS = {
    "convolutions, batch norm, in-place ReLU, dropout": (
        make_convolutions,
        lambda: torch.randn(8, 3, 32, 32),
    ),
    "a transformer layer": (make_encoder, lambda: torch.randn(8, 32, 64)),
    "fused attention": (Attention, lambda: torch.randn(8, 32, 64)),
    "checkpointed blocks": (Blocks, lambda: torch.randn(64, 64)),
    "tied weights": (Tied, lambda: torch.randint(100, (8, 20))),
    "a frozen layer": (make_frozen, lambda: torch.randn(128, 64)),
    "views of one tensor": (Views, lambda: torch.randn(256, 32)),
    "tensors from elsewhere": (Masked, lambda: [torch.randn(256, 32) for _ in "ab"]),
    "numbers of 16 bits": (make_low_precision, lambda: torch.randn(32, 64).bfloat16()),
    "a GRU": (lambda: nn.GRU(32, 64), lambda: torch.randn(8, 16, 32)),
}
each_model = pytest.mark.parametrize(
    ("make", "draw"), MODELS.values(), ids=MODELS.keys()
)


def run(model, batch):
    output = model(batch)
    return (output[0] if isinstance(output, tuple) else output).sum()


def count_bytes(model, batch):
    """Return what the allocator has handed out in a forward pass and not got back.

    The batch was there before; it counts where autograd saves it.
    """
    saved = set()

    def note(tensor):
        saved.add(tensor.untyped_storage().data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        run(model, batch)
    torch.clear_autocast_cache()
    with profile(profile_memory=True) as watched:
        loss = run(model, batch)
    found = sum(event.self_cpu_memory_usage for event in watched.function_events)
    given = [batch] if isinstance(batch, torch.Tensor) else batch
    found += sum(x.nbytes for x in given if x.untyped_storage().data_ptr() in saved)
    return found - loss.nbytes


@each_model
def test_activations_are_those_of_a_real_step(make, draw):
    torch.manual_seed(0)
    model, batch = make(), draw()
    predicted = predict_step_memory(model, batch).activations
    # The allocator hands out no less than asked for; counters and masks are small.
    assert count_bytes(model, batch) == pytest.approx(predicted, rel=0.01, abs=256)
    assert predicted > 10_000


@each_model
def test_parameters_gradients_and_state_are_those_of_a_real_step(make, draw):
    model, batch = make(), draw()
    predicted = predict_step_memory(model, batch)
    adam = torch.optim.Adam(model.parameters())
    run(model, batch).backward()
    adam.step()
    own = {x.data_ptr(): x.nbytes for x in [*model.parameters(), *model.buffers()]}
    assert predicted.parameters == sum(own.values())
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert predicted.gradients == sum(gradient.nbytes for gradient in gradients)
    state = [x for some in adam.state.values() for k, x in some.items() if k != "step"]
    assert predicted.optimizer == sum(x.nbytes for x in state) > 0
    assert predicted.total == sum(predicted)
    assert predicted.peak < predicted.total


def test_an_lstm_is_counted_as_pytorch_computes_it():
    model, batch = nn.LSTM(64, 128, 2, batch_first=True), torch.randn(8, 32, 64)
    predicted = predict_step_memory(model, batch).activations
    settings = dict.fromkeys(("deterministic", "allow_tf32", "fp32_precision"))
    with torch.backends.mkldnn.flags(enabled=False, **settings):
        assert count_bytes(model, batch) == pytest.approx(predicted, rel=0.04)
    assert torch.backends.mkldnn.enabled
    # oneDNN's own form is not less.
    assert count_bytes(model, batch) >= predicted


def test_autocast_around_the_call_counts():
    model, batch = (
        nn.Sequential(*(nn.Linear(256, 256) for _ in "four")),
        torch.randn(512, 256),
    )
    whole = predict_step_memory(model, batch).activations
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        half = predict_step_memory(model, batch).activations
        assert count_bytes(model, batch) == pytest.approx(half, rel=0.01)
    assert half < 0.8 * whole


@each_model
def test_the_model_its_buffers_and_the_random_state_stay_as_they_are(make, draw):
    model, batch = make(), draw()
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    with torch.inference_mode():
        predict_step_memory(model, batch)
    assert torch.equal(random, torch.get_rng_state())
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(type(p) is nn.Parameter for p in model.parameters())
    assert all(p.grad is None for p in model.parameters())


def test_nothing_large_is_allocated():
    with torch.device("meta"):
        layers = [nn.Linear(50_000, 50_000) for _ in range(8)]
    model = nn.Sequential(*layers)  # 80 GB of parameters, if they were there
    found = predict_step_memory(model, torch.empty(10_000, 50_000, device="meta"))
    assert found.activations == 8 * 10_000 * 50_000 * 4
    assert found.parameters == 8 * (50_000**2 + 50_000) * 4
    real = nn.Linear(1000, 10_000)
    with profile(profile_memory=True) as watched:
        predict_step_memory(real, torch.zeros(8, 1000))
    most = max(event.cpu_memory_usage for event in watched.function_events)
    assert most < real.weight.nbytes / 10


def test_state_is_counted_in_tensors_like_the_parameters():
    net, batch = nn.Linear(100, 10, bias=False), torch.zeros(1, 100)
    assert predict_step_memory(net, batch).optimizer == 2 * net.weight.nbytes
    assert predict_step_memory(net, batch, state_tensors=0).optimizer == 0
    assert predict_step_memory(net, batch, state_tensors=0.5).optimizer == 2000


def test_nothing_is_saved_where_nothing_learns():
    net = make_convolutions().requires_grad_(False)
    found = predict_step_memory(net, torch.zeros(8, 3, 32, 32))
    assert found[1:] == (0, 0, 0)
    assert found.parameters > 0


class Looks(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.mean() > 0 else x


class Items(nn.Linear):
    def forward(self, x):
        return super().forward(x) * x.max().item()


@pytest.mark.parametrize("kind", [Looks, Items])
def test_a_model_that_needs_numbers_is_told_to_measure(kind):
    with pytest.raises(ValueError, match=f"{kind.__name__} failed") as caught:
        predict_step_memory(kind(4, 4), torch.zeros(2, 4))
    assert "kit.measure" in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 6


def test_inputs_that_do_not_fit_are_an_error_that_says_so():
    with pytest.raises(ValueError, match=r"Linear failed .*4, 4"):
        predict_step_memory(nn.Linear(4, 4), torch.zeros(2, 5))
    with pytest.raises(ValueError, match="positional argument"):
        predict_step_memory(nn.Linear(4, 4))
