"""What goes to the ranks, as bytes: functions of cells, with what they use."""

from __future__ import annotations

import importlib
import io
import types
from typing import Any

import cloudpickle

from kit.experiment import ExperimentError


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]
    """Sends every module by its name, also PyTorch's that are objects of their own.

    `torch.backends.cudnn` is one: a function of a cell that uses it could not be sent.
    """

    def reducer_override(self, value: Any) -> Any:
        is_module = isinstance(value, types.ModuleType)
        if is_module and type(value) is not types.ModuleType:
            return importlib.import_module, (value.__name__,)
        return super().reducer_override(value)


def pack(name: str, value: object) -> bytes:
    """Return a value as bytes; raise ExperimentError, naming whose it is, if it cannot.

    >>> len(pack("work()", [1, 2])) > 0
    True
    """
    buffer = io.BytesIO()
    try:
        _Packer(buffer).dump(value)
    except Exception as error:
        raise ExperimentError(
            f"{name} cannot be sent to the ranks: {error}.\n"
            "Make in the function itself what cannot be sent, such as open files."
        ) from None
    return buffer.getvalue()
