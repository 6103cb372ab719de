"""Plausible wrong answers to exercises whose checks watch what an answer does."""

import shutil

import three_loops
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook


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
    "10/clip_and_step": clips_scaled_gradients,
    "10/accumulate": keeps_all_graphs,
    "12/epochs_from": asks_an_empty_loader_forever,
    "13/halves": sends_whole_tensors,
    "14/keep_the_rest": keeps_nothing,
    "15/conduct": ["F0 B0 F1 B1 F2 B2 F3 B3", "F1 B1 F0 B0 F2 B2 F3 B3"],
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
