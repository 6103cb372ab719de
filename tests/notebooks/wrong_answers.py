"""A plausible wrong answer to each exercise whose check watches what code does."""

import shutil

import three_loops
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn import functional as F
from torch.profiler import record_function
from torch.utils.checkpoint import checkpoint


def yields_before_the_step(*, batch_size=16):
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    while True:
        yield batch_size
        optimizer.step()


def goes_on_rising(optimizer, k, steps):
    def factor(done):
        return 1 + (k - 1) * done / steps

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


class KeepsTheGraphOfTheBest:
    def __init__(self, network):
        self.network, self.average, self.best = network, 0.0, None

    def step(self, x):
        output = self.network(x)
        loss = output.square().mean()
        loss.backward()
        self.average = 0.9 * self.average + 0.1 * loss.item()
        if self.best is None or loss < self.best[0]:
            self.best = loss.item(), output
        return self.average


def throws_the_gradients_away(generator, discriminator, real, noise):
    loss = F.softplus(-discriminator(real)).mean()
    loss = loss + F.softplus(discriminator(generator(noise))).mean()
    loss.backward()
    generator.zero_grad()
    return loss.item()


def puts_backward_into_forward(model, optimizer, batches):
    while True:
        with record_function("load"):
            inputs, labels = next(batches)
        with record_function("forward"):
            loss = F.cross_entropy(model(inputs), labels)
            with record_function("backward"):
                optimizer.zero_grad()
                loss.backward()
        with record_function("update"):
            optimizer.step()
        yield len(labels)


def calls_the_model_twice(model, optimizer, inputs, labels):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), labels)
    loss.backward()
    with torch.no_grad():
        hits = (model(inputs).argmax(dim=1) == labels).sum()
    norm = nn.utils.get_total_norm([weight.grad for weight in model.parameters()])
    optimizer.step()
    return loss.detach(), hits, norm


def reads_the_stream_to_its_end(items, worker, rank=0, ranks=1):
    place, workers = (worker.id, worker.num_workers) if worker else (0, 1)
    return iter([*items][rank * workers + place :: workers * ranks])


class ReadsAShardForEachSample:
    def __init__(self, read, shards, size):
        self.read, self.shards, self.size = read, shards, size

    def __len__(self):
        return self.shards * self.size

    def __getitem__(self, index):
        return self.read(index // self.size)[index % self.size]

    def __getitems__(self, indices):
        return [self[index] for index in indices]


def takes_all_texts_at_once(model, inputs, targets, parts):
    F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()


def checkpoints_all_blocks_as_one(blocks, x):
    return checkpoint(nn.Sequential(*blocks), x, use_reentrant=False)


def waits_for_all_gradients(model, make_optimizer):
    learned = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(learned)

    def update(_):
        if all(p.grad is not None for p in learned):
            optimizer.step()
            optimizer.zero_grad()

    for p in learned:
        p.register_post_accumulate_grad_hook(update)


def still_branches(x, limit):
    mean = x.mean()
    x = x - mean if mean > limit else x * 2
    return x / x.norm()


class StillCounts(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps, self.average = 0, torch.zeros(())

    def forward(self, x):
        self.steps += 1
        self.average = 0.9 * self.average + 0.1 * x.mean()
        return x - self.average / (1 - 0.9**self.steps)


def adds_in_float32(weight, lost, update):
    exact = weight.float() + lost.float() + update.float()
    weight.copy_(exact)
    lost.copy_(exact - weight.float())


#: "chapter/exercise": an answer that its check must refuse. `list` keeps every name.


def clips_scaled_gradients(scaler, optimizer, loss, max_norm):
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], max_norm)
    scaler.step(optimizer)
    scaler.update()


def keeps_all_graphs(scaler, optimizer, losses):
    optimizer.zero_grad()
    scaler.scale(sum(losses)).backward()
    scaler.step(optimizer)
    scaler.update()


def asks_an_empty_loader_forever(loader, start):
    batches = iter(loader)
    while True:
        batch = next(batches, None)
        if batch is not None:
            yield batch


def sends_whole_tensors(n):
    to_root = [(rank, 0, 0, 1, True) for rank in range(1, n)]
    from_root = [(0, rank, 0, 1, False) for rank in range(1, n)]
    return [to_root], [from_root]


def keeps_nothing(hook):
    return hook


def asks_after_each_gradient(server, compute, steps):
    weights = server.get()
    for _ in range(steps):
        server.put(compute(weights))
        weights = server.get()


class KeepsAllFilms:
    def __init__(self, remote):
        self.remote = remote
        self.films = []

    def play(self, number):
        self.films.append(self.remote(number))
        scores = [film.rpc_sync().score() for film in self.films]
        self.best = self.films[scores.index(max(scores))]
        return sum(scores) / len(scores)


class WritesInPlace:
    def __init__(self, folder):
        self.folder = folder

    def save(self, step, write):
        path = self.folder / f"step-{step:08}"
        shutil.rmtree(path, ignore_errors=True)
        write(path)

    def newest(self):
        return max(self.folder.glob("step-*"), default=None)


def times_the_launch(device, n):
    begun = device.now()
    device.multiply(n)
    return 2 * n**3 / (device.now() - begun)


WRONG = {
    "00/one_yield": yields_before_the_step,
    "01/no_leak": KeepsTheGraphOfTheBest,
    "01/detached": throws_the_gradients_away,
    "02/labelled": puts_backward_into_forward,
    "02/lean": calls_the_model_twice,
    "04/my_share": reads_the_stream_to_its_end,
    "04/shards": ReadsAShardForEachSample,
    "04/packed": list,
    "06/follow": goes_on_rising,
    "07/accumulate_tokens": takes_all_texts_at_once,
    "07/run_checkpointed": checkpoints_all_blocks_as_one,
    "07/update_in_backward": waits_for_all_gradients,
    "08/one_graph": still_branches,
    "08/at_rest": StillCounts,
    "09/add_compensated": adds_in_float32,
    "10/clip_and_step": clips_scaled_gradients,
    "10/accumulate": keeps_all_graphs,
    "12/epochs_from": asks_an_empty_loader_forever,
    "13/halves": sends_whole_tensors,
    "14/keep_the_rest": keeps_nothing,
    "15/conduct": [
        "F0 B0 F1 B1 F2 B2 F3 B3",
        "F1 B1 F0 B0 F2 B2 F3 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ],
    "16/messages": asks_after_each_gradient,
    "16/leak": KeepsAllFilms,
    "17/keeper": WritesInPlace,
    "18/boast": times_the_launch,
    "19/lines": three_loops.learn_lines,
    "19/pairs": three_loops.learn_pairs,
    "19/places": three_loops.learn_places,
}


# These are checked on ranks


def adds_up_on_one_rank(tensors, dist):
    for tensor in tensors:
        dist.reduce(tensor, dst=0)
        dist.broadcast(tensor, src=0)


def averages_the_accuracies(predict, images, labels, dist):
    n, me = dist.get_world_size(), dist.get_rank()
    images, labels = images.tensor_split(n)[me], labels.tensor_split(n)[me]
    right = (predict(images).argmax(1) == labels).sum()
    share = right / max(len(labels), 1)
    dist.all_reduce(share)
    return share.item() / n


def forgets_that_ddp_divides(losses, add_up, ranks):
    return losses.sum() / add_up(len(losses))


def sends_32_bits(group):
    return group, allreduce_hook


WRONG_ON_RANKS = {
    "11/spread": adds_up_on_one_rank,
    "11/accuracy_of_all": averages_the_accuracies,
    "12/local_loss": forgets_that_ddp_divides,
    "14/half": sends_32_bits,
}
