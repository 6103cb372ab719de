"""oneDNN's log: its lines are read, calls are caught, and reasons are said."""

import os
import subprocess
import sys

import pytest
import torch
from helpers import refused
from panels import rows_of
from torch.nn import functional

from kit.experiment import ExperimentError
from kit.tools import explain_kernels, onednn, record_kernels
from kit.tools.onednn import explain_name, parse_log
from kit.tools.onednn.explanation import explain_absence

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="PyTorch without oneDNN"
)

#: A log as oneDNN's documentation describes it, of the processors that this may not be.
LOG = """\
onednn_verbose,v1,info,oneDNN v3.5.0 (commit 0)
onednn_verbose,v1,info,cpu,isa:Intel AVX-512 with float16, Intel DL Boost and bfloat16
onednn_verbose,v1,primitive,info,template:operation,engine,primitive,implementation
something that another library wrote, exec, and more
onednn_verbose,v1,graph,exec,cpu,100002,matmul_post_ops,mm,,in0:bf16,,strict,b,d,0.1
onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,\
src:f32::blocked:abcd::f0 dst:bf16::blocked:aBcd16b::f0,,,2x16x7x7,0.0100
onednn_verbose,v1,primitive,exec,cpu,convolution,brgconv:avx512_core_amx,\
forward_training,src:bf16:a:blocked:acdb::f0 wei:bf16:a:blocked:Acdb::f0 bia:undef::\
undef::: dst:bf16:a:blocked:acdb::f0,attr-scratchpad:user,alg:convolution_direct,\
mb2_ic16oc16_ih7oh5kh3sh1dh0ph0_iw7ow5kw3sw1dw0pw0,0.2500
onednn_verbose,v1,1693533460193.34,primitive,exec,cpu,matmul,brg_matmul:avx512_core_fp16\
,undef,src:f16::blocked:ab::f0 wei:f16::blocked:ab::f0 dst:f32::blocked:ab::f0,,,\
64x64:64x64,1
onednn_verbose,primitive,exec,cpu,inner_product,gemm:jit,forward_inference,\
src_f32::blocked:ab::f0 wei_f32::blocked:ab::f0 dst_f32::blocked:ab::f0,,,mb2ic3oc4,0.5
dnnl_verbose,exec,cpu,matmul,ref:any,undef,src_f8_e4m3::blocked:ab:f0 \
dst_f32::blocked:ab:f0,,,8x8,3
onednn_verbose,v1,primitive,exec,cpu,matmul,jit:avx2,undef,src:f32::blo"""


def convolve(dtype):
    images, weight = torch.randn(2, 16, 8, 8), torch.randn(16, 16, 3, 3)
    images, weight = images.to(dtype), weight.to(dtype)
    return lambda: functional.conv2d(images, weight)


def multiply(dtype, size=64):
    matrix = torch.randn(size, size).to(dtype)
    return lambda: matrix @ matrix


# What is read


def test_a_log_is_read_line_by_line():
    found = [(k.primitive, k.implementation, k.types) for k in parse_log(LOG)]
    assert found == [
        ("reorder", "jit:uni", "src float32, dst bfloat16"),
        ("convolution", "brgconv:avx512_core_amx", "bfloat16"),
        (
            "matmul",
            "brg_matmul:avx512_core_fp16",
            "src float16, wei float16, dst float32",
        ),
        ("inner_product", "gemm:jit", "float32"),
        ("matmul", "ref:any", "src float8_e4m3fn, dst float32"),
    ]


def test_shapes_and_seconds_are_read():
    found = parse_log(LOG)
    assert [k.seconds for k in found] == [1e-5, 2.5e-4, 1e-3, 5e-4, 3e-3]
    assert found[1].shape == "mb2_ic16oc16_ih7oh5kh3sh1dh0ph0_iw7ow5kw3sw1dw0pw0"
    assert [k.shape for k in found[2:]] == ["64x64:64x64", "mb2ic3oc4", "8x8"]


@pytest.mark.parametrize("text", ["", "exec", "onednn_verbose,exec,cpu", "a,exec,b\n"])
def test_what_is_no_log_has_no_kernels(text):
    assert parse_log(text) == []


@pytest.mark.parametrize(
    ("name", "primitive", "words"),
    [
        ("ref:any", "", "plain loops, written to be right on any processor"),
        ("ref", "rnn", "oneDNN's general code for recurrent layers"),
        ("gemm:ref", "", "plain loops, written to be right on any processor"),
        ("simple:any", "", "plain loops of oneDNN's"),
        ("jit:avx2", "", "made at run time for this processor's 256-bit vectors"),
        (
            "jit:avx512_core_bf16",
            "",
            "made at run time for this processor's 512-bit vectors and bfloat16 "
            "instructions",
        ),
        (
            "jit_1x1:avx512_core",
            "",
            "a convolution of 1 × 1, made at run time for this processor's 512-bit "
            "vectors",
        ),
        (
            "brgconv:avx512_core_amx_fp16",
            "",
            "blocks of matrix products (brgemm), made at run time for this processor's "
            "tile units (AMX), 512-bit vectors and float16 instructions",
        ),
        (
            "brg_matmul:avx10_1_512_amx",
            "",
            "blocks of matrix products (brgemm), made at run time for this processor's "
            "tile units (AMX), 512-bit vectors and float16 instructions",
        ),
        (
            "jit:avx2_vnni_2",
            "",
            "made at run time for this processor's 256-bit vectors and dot products of "
            "8-bit integers",
        ),
        (
            "gemm:jit",
            "",
            "turned into whole matrix products (gemm), made at run time for this "
            "processor",
        ),
        ("x64:gemm:jit", "", explain_name("gemm:jit")),
        ("indirect_gemm:acl", "", "from the Arm Compute Library"),
        ("wino:acl", "", "from the Arm Compute Library"),
        ("jit:sve_256", "", "made at run time for this processor's 256-bit vectors"),
        (
            "jit:uni",
            "reorder",
            "numbers put into the order that other kernels want, made at run time",
        ),
        ("", "", "unknown: there are no words here for this name"),
        ("other:avx9", "", "unknown: there are no words here for this name"),
    ],
)
def test_names_have_words(name, primitive, words):
    assert explain_name(name, primitive).removesuffix(" (SVE)") == words


# What is caught


def test_a_convolution_in_float32_has_a_kernel_of_its_own():
    kernels = record_kernels(convolve(torch.float32))
    (found,) = [k for k in kernels if k.primitive == "convolution"]
    assert found.types == "float32" and found.seconds > 0
    assert found.shape.startswith("mb2_ic16oc16_ih8oh6")
    assert "jit" in found.implementation or "brg" in found.implementation
    assert not found.reason.startswith("unknown")


def test_each_call_starts_anew():
    convolve_once = convolve(torch.float32)
    first, second = (record_kernels(convolve_once) for _ in range(2))
    names = [(k.primitive, k.implementation) for k in first]
    assert names == [(k.primitive, k.implementation) for k in second]
    twice = record_kernels(lambda: (convolve_once(), convolve_once()))
    assert len(twice) == 2 * len(first)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_convolution_in_16_bits_has_a_kernel_or_says_why_not(dtype):
    name = str(dtype).removeprefix("torch.")
    found = explain_kernels(convolve(dtype))
    kinds = [line.primitive for line in found.kernels]
    able = getattr(
        torch.ops.mkldnn,
        f"_is_mkldnn_{'bf16' if dtype is torch.bfloat16 else 'fp16'}_supported",
    )
    if able():
        assert "convolution" in kinds
        return
    assert not found.kernels
    assert found.title == (
        "oneDNN was not called for convolutions: this processor lacks the "
        f"instructions for {name}, so PyTorch falls back to code of its own"
    )
    (line,) = [line for line in found.others if line.primitive == "convolution"]
    assert line.types == name and line.count == 1 and line.seconds > 0


def test_each_distinct_kernel_is_one_line():
    run = convolve(torch.float32)
    found = explain_kernels(lambda: [run().add_(1) for _ in range(3)])
    (line,) = [line for line in found.kernels if line.primitive == "convolution"]
    assert line.count == 3
    assert not [x for x in found.others if x.primitive == "convolution"]
    (rest,) = found.others
    assert (rest.primitive, rest.implementation, rest.count) == ("the rest", "add_", 3)
    assert len(found.lines) == len({(x.implementation, x.types) for x in found.lines})


def test_a_backward_pass_is_explained_too():
    images = torch.randn(2, 16, 8, 8, requires_grad=True)
    weight = torch.randn(16, 16, 3, 3, requires_grad=True)
    found = explain_kernels(lambda: functional.conv2d(images, weight).sum().backward())
    convolutions = [x for x in found.lines if x.primitive == "convolution"]
    assert sum(x.count for x in convolutions) == 3
    assert not [x for x in found.others if x.primitive == "convolution"]


def test_a_matrix_product_in_float32_is_the_blas_librarys():
    found = explain_kernels(multiply(torch.float32))
    if found.kernels:  # as on ARM, where oneDNN has it
        assert "matmul" in {x.primitive for x in found.kernels}
        return
    (line,) = found.others
    whose = "Intel's MKL" if torch.backends.mkl.is_available() else "the BLAS library"
    assert (line.primitive, line.implementation) == ("matrix product", "mm")
    assert whose in line.reason and whose in found.title


def test_the_report_is_a_sentence_and_a_table():
    found = explain_kernels(convolve(torch.float32))
    text, page = repr(found), found._repr_html_()
    assert text.splitlines()[0] == found.title
    rows = rows_of(page)
    assert len(rows) == len(found.lines) == len(text.splitlines()) - 2
    shares = [int(row[4].removesuffix(" %")) for row in rows]
    assert all(0 <= share <= 100 for share in shares) and 97 <= sum(shares) <= 103
    assert [row[5] for row in rows] == [line.reason for line in found.lines]


def test_a_first_run_warms_up_and_is_not_told():
    calls = []
    run = convolve(torch.float32)
    found = explain_kernels(lambda: calls.append(run()))
    assert len(calls) == 2
    (line,) = [line for line in found.kernels if line.primitive == "convolution"]
    assert line.count == 1


def test_what_computes_nothing_is_said():
    found = explain_kernels(lambda: None)
    assert found.lines == ()
    said = "oneDNN was not called, and PyTorch computed nothing on the CPU"
    assert repr(found) == found.title == said
    assert said in found._repr_html_()


# Why not


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_a_switch_is_a_reason():
    with torch.backends.mkldnn.flags(enabled=False):
        found = explain_kernels(convolve(torch.float32))
    assert not found.kernels
    assert "oneDNN is switched off (torch.backends.mkldnn.enabled)" in found.title


def test_what_cannot_be_known_stays_unknown(monkeypatch):
    unknown = "PyTorch took code of its own, and why is unknown"
    assert explain_absence("matrix product", "float8_e4m3fn") == unknown
    missing = type("Operations", (), {})()
    monkeypatch.setattr(torch.ops, "mkldnn", missing, raising=False)
    assert explain_absence("convolution", "bfloat16") == unknown


def test_without_onednn_there_is_nothing_to_tell(monkeypatch):
    monkeypatch.setattr(torch._C, "_has_mkldnn", False)
    for function in (record_kernels, explain_kernels):
        refused(
            lambda function=function: function(lambda: None),
            f"{function.__name__}()",
            "without oneDNN",
            "torch.__config__.show()",
        )


def test_a_profiler_that_is_at_work_is_named():
    with torch.profiler.profile(), pytest.raises(ExperimentError) as caught:
        explain_kernels(lambda: None)
    assert "explain_kernels()" in str(caught.value)


# Other people's output

WRITES = """
import os, sys
import torch
from torch.nn import functional
from kit.tools import explain_kernels, record_kernels
images, weight = torch.randn(2, 16, 8, 8), torch.randn(16, 16, 3, 3)
def run():
    print("printed inside")
    os.system("echo by a child")
    functional.conv2d(images, weight)
    sys.stdout.write("written inside, without an end")
    if fails:
        raise KeyError("mine")
print("before", end=" ")
for fails in (False, True):
    try:
        print(len(CALL) > 0)
    except KeyError as error:
        print("raised", error)
functional.conv2d(images, weight)
print("after")
"""


@pytest.mark.parametrize(
    ("call", "times"), [("record_kernels(run)", 2), ("explain_kernels(run).kernels", 3)]
)
def test_nothing_that_others_write_is_lost(call, times):
    code = WRITES.replace("CALL", call)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for text in ("printed inside", "by a child", "written inside, without an end"):
        assert done.stdout.count(text) == times
    assert done.stdout.startswith("before")
    assert done.stdout.count("True") == 1 and "onednn_verbose" not in done.stdout
    assert done.stdout.endswith("raised 'mine'\nafter\n")


def test_descriptors_are_given_back():
    def count():
        return len(os.listdir("/proc/self/fd"))

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("no list of descriptors")
    record_kernels(convolve(torch.float32))
    before = count()
    for _ in range(3):
        record_kernels(convolve(torch.float32))
    with pytest.raises(ZeroDivisionError):
        record_kernels(lambda: 1 / 0)
    assert count() == before


def test_a_reader_imports_the_module():
    assert onednn.explain_kernels is explain_kernels
