"""Photos and letters to train on, drawn on this machine: nothing is downloaded.

>>> from kit.data import PhotoDataset, photos
>>> dataset = PhotoDataset(photos(20))
>>> image, label = dataset[0]
>>> image.shape, dataset.classes[label]
(torch.Size([3, 400, 400]), 'circle')
>>> from kit.data import glyphs
>>> images, labels = glyphs(train=False)[:256]
>>> images.shape, labels.shape
(torch.Size([256, 1, 28, 28]), torch.Size([256]))
"""

from kit.data.cache import cache_folder
from kit.data.letters import GreyImages, glyphs
from kit.data.photo import Distant, PhotoDataset, photos
from kit.errors import DataError

__all__ = ["DataError", "Distant", "GreyImages", "PhotoDataset"]
__all__ += ["cache_folder", "glyphs", "photos"]
