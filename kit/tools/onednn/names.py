"""What oneDNN's names for its kernels mean, in words."""

from __future__ import annotations

import re

#: PyTorch's names for the types of oneDNN and of PyTorch's own profiler.
TYPES = {
    "f64": "float64",
    "f32": "float32",
    "tf32": "tfloat32",
    "bf16": "bfloat16",
    "f16": "float16",
    "f8_e4m3": "float8_e4m3fn",
    "f8_e5m2": "float8_e5m2",
    "s32": "int32",
    "s8": "int8",
    "u8": "uint8",
    "double": "float64",
    "float": "float32",
    "c10::BFloat16": "bfloat16",
    "c10::Half": "float16",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
    "signed char": "int8",
    "unsigned char": "uint8",
    "int": "int32",
    "long": "int64",
}
#: Families of kernels by how their names begin, the longer ones first.
_FAMILIES = {
    "jit_1x1": "a convolution of 1 × 1, made at run time",
    "jit_dw": "a depthwise convolution, made at run time",
    "jit_wino": "Winograd's way, with fewer multiplications, made at run time",
    "jit": "made at run time",
    "brg": "blocks of matrix products (brgemm), made at run time",
    "gemm": "turned into whole matrix products (gemm)",
    "acl": "from the Arm Compute Library",
    "simple": "plain loops of oneDNN's",
    "ref": "plain loops, written to be right on any processor",
}
#: What kernels are made for, by a part of a name; every one that fits is said.
_UNITS = {
    r"amx": "tile units (AMX)",
    r"avx512|avx10_\d_512": "512-bit vectors",
    r"avx10_\d(?!_512)|avx(?![51]|10)": "256-bit vectors",
    r"sse41|asimd|sve_128": "128-bit vectors",
    r"sve_256": "256-bit vectors (SVE)",
    r"sve_512": "512-bit vectors (SVE)",
    r"_bf16": "bfloat16 instructions",
    r"_fp16|avx10_\d": "float16 instructions",
    r"vnni": "dot products of 8-bit integers",
}


def explain_name(implementation: str, primitive: str = "") -> str:
    """Say in words what an implementation's name tells.

    Source: oneDNN's developer guide, "Inspecting JIT Code", "Verbose Mode" and "CPU
    Dispatcher Control". A name without words here is said to be unknown.

    >>> explain_name("jit:avx2")
    "made at run time for this processor's 256-bit vectors"
    >>> explain_name("ref:any")
    'plain loops, written to be right on any processor'
    """
    parts = [p for p in re.split(r"[:+]", implementation) if p not in ("x64", "any")]
    name, made_for = (parts or [""])[0], parts[-1] if parts else ""
    if "ref" in parts or name.startswith("ref"):
        name = "ref"
    family = next((f for f in _FAMILIES if name.startswith(f)), None)
    if family is None and "acl" in parts:
        family = "acl"
    if family is None:
        return "unknown: there are no words here for this name"
    words = _FAMILIES[family]
    if family == "ref" and primitive == "rnn":
        return "oneDNN's general code for recurrent layers"
    if primitive == "reorder":
        words = f"numbers put into the order that other kernels want, {words}"
    if made_for == "jit" and family == "gemm":
        return f"{words}, made at run time for this processor"
    units = [unit for part, unit in _UNITS.items() if re.search(part, made_for)]
    if units and family not in ("ref", "simple"):
        return f"{words} for this processor's {_join(units)}"
    return words


def _join(words: list[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
