"""Photos to train on, drawn on this machine: nothing is downloaded.

>>> from kit.data import PhotoDataset, photos
>>> dataset = PhotoDataset(photos(20))
>>> image, label = dataset[0]
>>> image.shape, dataset.classes[label]
(torch.Size([3, 400, 400]), 'circle')
"""

from kit.data.datasets import Distant, PhotoDataset
from kit.data.drawing import CLASSES, SIZE, draw_photo
from kit.data.storage import DataError, cache_folder, photos

__all__ = ["CLASSES", "SIZE", "DataError", "Distant", "PhotoDataset"]
__all__ += ["cache_folder", "draw_photo", "photos"]
