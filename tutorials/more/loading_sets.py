"""Two streams of numbers for the appendix on workers, which workers must import."""

from torch.utils.data import IterableDataset, get_worker_info


class Everyone(IterableDataset):
    """The numbers 0 to 7, for every worker that asks."""

    def __iter__(self):
        return iter(range(8))


class Shares(IterableDataset):
    """The numbers 0 to 7, divided among the workers."""

    def __iter__(self):
        worker = get_worker_info()  # None in the main process
        first = worker.id if worker else 0
        step = worker.num_workers if worker else 1
        return iter(range(first, 8, step))
