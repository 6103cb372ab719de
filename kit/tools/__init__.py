"""Other people's tools beside the kit: TensorBoard and Nsight Systems."""

from kit.tools.nsight import (
    NsysReport,
    describe_nsys,
    make_nsys_command,
    read_nsys_report,
)
from kit.tools.tensorboard import prepare_tensorboard

__all__ = [
    "NsysReport",
    "describe_nsys",
    "make_nsys_command",
    "prepare_tensorboard",
    "read_nsys_report",
]
