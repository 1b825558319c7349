"""Floating-point operations of a compiled program: those of matrix products and convolutions, two per multiply-add.

Backends represent products differently. TPUs use convolutions in which batch dimensions are spatial ones, dilated so
that each position meets one kernel element. GPUs use library calls, or fusions around a ``dot``. Only multiplications
of actual elements are counted, not those with padding or with the holes of a dilation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from meshwright.targets.hlo import HloProgram, Instruction

_WINDOW = re.compile(r"(\w+)=([\w\-]+)")
_LABELS = re.compile(r"(\w+)_(\w+)->(\w+)")
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_LIBRARY = re.compile(r'custom_call_target="__(cublas|cudnn)\$(\w+)')
#: which of input, kernel and output the operands and the result of a library's convolution are; -1 is the result
_ROLES = {"convBackwardInput": (-1, 1, 0), "convBackwardFilter": (0, -1, 1)}

Shape = tuple[int, ...]


def product_operations(program: HloProgram) -> int:
    """The operations of one run of a program on one device.

    Loops count by their trip count where it is known; a conditional counts as its most expensive branch.
    """
    return _of_computation(program, program.entry)


def _of_computation(program: HloProgram, name: str) -> int:
    body = program.computations.get(name, [])
    shapes = {i.name: i.types[0].shape for i in body if i.types}
    return sum(_operations(i, shapes) or _of_called(program, i) for i in body)


def _of_called(program: HloProgram, i: Instruction) -> int:
    counts = [_of_computation(program, name) for name in i.called]
    if i.opcode == "conditional":
        return max(counts, default=0)
    return sum(counts) * ((i.trips or 1) if i.opcode == "while" else 1)


def _operations(i: Instruction, shapes: Mapping[str, Shape]) -> int:
    """The operations of a product; 0 for other instructions."""
    if i.opcode == "custom-call":
        library = _LIBRARY.search(i.rest)
        return _of_library(i, library[1], library[2], shapes) if library else 0
    if i.opcode == "dot":
        match = _CONTRACTED.search(i.rest)
        return _of_dot(i, match[1].split(",") if match else (), shapes)
    if i.opcode == "convolution":
        return _of_convolution(i, [shapes[o] for o in i.operands[:2]] + [i.types[0].shape])
    return 0


def _of_dot(i: Instruction, contracted: Sequence[str], shapes: Mapping[str, Shape]) -> int:
    left = shapes[i.operands[0]]
    return 2 * i.types[0].size * math.prod(left[int(d)] for d in contracted if d)


def _of_library(i: Instruction, library: str, what: str, shapes: Mapping[str, Shape]) -> int:
    if library == "cublas":
        numbers = i.config["gemm_backend_config"]["dot_dimension_numbers"]
        return _of_dot(i, numbers.get("lhs_contracting_dimensions", ()), shapes)
    if not what.startswith("conv"):
        return 0
    given = [*(shapes[o] for o in i.operands[:2]), i.types[0].shape]
    return _of_convolution(i, [given[role] for role in _ROLES.get(what, (0, 1, -1))])


def _of_convolution(i: Instruction, given: Sequence[Shape]) -> int:
    """Of a convolution's input, kernel and output."""
    labels = _LABELS.match(i.attribute("dim_labels"))
    assert labels is not None
    sides = [dict(zip(text, shape)) for text, shape in zip(labels.groups(), given)]
    data, kernel, out = sides
    window = {key: text.split("x") for key, text in _WINDOW.findall(i.attribute("window"))}
    positions = 1
    for n, d in enumerate(sorted(c for c in out if c.isdigit())):
        options = {key: values[n] for key, values in window.items()}
        positions *= _positions(data[d], kernel[d], out[d], options)
    batch = min(data["b"], out["b"]) if "batch_group_count" in i.rest else out["b"]
    return 2 * batch * out["f"] * kernel["i"] * positions


def _positions(data: int, kernel: int, out: int, options: Mapping[str, str]) -> int:
    """Pairs of an output position and an element of the kernel that meet an element of the input."""
    stride, holes, apart = (int(options.get(key, "1")) for key in ("stride", "lhs_dilate", "rhs_dilate"))
    before = int(options.get("pad", "0_0").split("_")[0])
    places = (o * stride + k * apart - before for o in range(out) for k in range(kernel))
    return sum(place % holes == 0 and 0 <= place // holes < data for place in places)
