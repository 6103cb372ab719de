"""Grey images in memory."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from kit import figures

if TYPE_CHECKING:
    import torch


class GreyImages:
    """Hold labelled grey images in memory, one by one or as whole batches.

    `images` (uint8, N × 1 × height × width) and `labels` (int64, N) are all of them;
    `classes` names the labels. `dataset[i]` is (image, label): a float32 tensor
    1 × height × width between 0 and 1, and an int. `dataset[start:stop]`, or a list or
    tensor of indices, is a batch: float32 images and their int64 labels. A DataLoader
    takes it as it is.

    >>> import torch
    >>> dataset = GreyImages(
    ...     torch.full((3, 1, 28, 28), 255, dtype=torch.uint8),
    ...     torch.tensor([0, 1, 0]),
    ...     ("O", "Q"),
    ... )
    >>> image, label = dataset[1]
    >>> image.shape, image.max(), dataset.classes[label]
    (torch.Size([1, 28, 28]), tensor(1.), 'Q')
    >>> images, labels = dataset[:2]
    >>> images.shape, labels
    (torch.Size([2, 1, 28, 28]), tensor([0, 1]))
    """

    def __init__(
        self, images: torch.Tensor, labels: torch.Tensor, classes: tuple[str, ...]
    ) -> None:
        self.images, self.labels, self.classes = images, labels, classes

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Any) -> tuple[torch.Tensor, Any]:
        label = self.labels[index]
        return self.images[index].float() / 255, label if label.ndim else int(label)

    def to(self, device: str | torch.device) -> GreyImages:
        """Return the same images on a device, where batches are then made.

        >>> import torch
        >>> dataset = GreyImages(torch.zeros(1, 1, 2, 2), torch.zeros(1), ("zero",))
        >>> dataset.to("meta").images.device
        device(type='meta')
        """
        images, labels = self.images.to(device), self.labels.to(device)
        return GreyImages(images, labels, self.classes)

    def __repr__(self) -> str:
        return f"{len(self):,} grey images of {len(self.classes)} classes"

    def _repr_html_(self) -> str:
        """Show the first image of each class."""
        labels = self.labels.tolist()
        first = [(name, i) for i, name in enumerate(self.classes) if i in labels]
        pictures = [(name, self._encode(labels.index(i))) for name, i in first]
        return figures.html_pictures(pictures, caption=repr(self))

    def _encode(self, index: int) -> bytes:
        import PIL.Image

        picture = PIL.Image.fromarray(self.images[index, 0].cpu().numpy())
        larger = picture.resize([4 * side for side in picture.size])
        buffer = io.BytesIO()
        larger.save(buffer, "JPEG", quality=80)
        return buffer.getvalue()
