"""Other people's tools beside the kit: TensorBoard, Nsight Systems, oneDNN's log."""

from kit.tools.nsight import (
    NsysReport,
    describe_nsys,
    make_nsys_command,
    read_nsys_report,
)
from kit.tools.onednn import explain_kernels, record_kernels
from kit.tools.tensorboard import prepare_tensorboard

__all__ = [
    "NsysReport",
    "describe_nsys",
    "explain_kernels",
    "make_nsys_command",
    "prepare_tensorboard",
    "read_nsys_report",
    "record_kernels",
]
