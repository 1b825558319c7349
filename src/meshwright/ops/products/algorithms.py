"""Algorithms of matrix products: parsing users' arguments, emission and reading."""

from __future__ import annotations

import re
from typing import Any

from meshwright.core.avals import ShapedArray
from meshwright.core.dot_algorithms import PRESETS, Algorithm, DotAlgorithm, algorithm_of, stablehlo_float
from meshwright.core.precision import DotAlgorithmPreset
from meshwright.errors import DTypeError
from meshwright.ir.contract import Emitted
from meshwright.ir.op import Builder
from meshwright.ir.reading import Reader


def as_algorithm(precision: Any) -> Algorithm | None:
    """The algorithm given by a user's ``precision``; None if it is not an algorithm."""
    if isinstance(precision, DotAlgorithm):
        return precision.algorithm
    name = precision.name if isinstance(precision, DotAlgorithmPreset) else precision
    return PRESETS.get(name) if isinstance(name, str) else None


def check_operands(algorithm: Algorithm, lhs: ShapedArray, rhs: ShapedArray) -> None:
    """Raise unless an algorithm supports the operands' dtypes.

    Raises:
      DTypeError: it does not.
    """
    if not algorithm.takes(lhs.dtype, rhs.dtype):
        what = "floats of 8 bits" if algorithm.of_bytes else "real floats"
        raise DTypeError(
            f"dot_general: the algorithm {algorithm} is for {what}, got {lhs.dtype} and {rhs.dtype}; convert the "
            "operands, or leave precision out"
        )


def emit_by_algorithm(b: Builder, algorithm: Algorithm, x: Emitted, y: Emitted, numbers: str) -> Emitted:
    """The product, with operands and result converted to the types that the algorithm stores."""
    (out,), given = b.out_avals, b.in_avals
    kept = [a.update(dtype=algorithm.in_memory(a.dtype, i)) for i, a in enumerate(given)]
    x, y = (converted(b, v, a, k) for v, a, k in zip((x, y), given, kept))
    made = out.update(dtype=algorithm.as_made(out.dtype))
    lhs, rhs = (stablehlo_float(a.dtype) if t == "f8" else t for a, t in zip(kept, (algorithm.lhs, algorithm.rhs)))
    left, right = algorithm.components
    text = (
        f"lhs_precision_type = {lhs}, rhs_precision_type = {rhs}, accumulation_type = {algorithm.accumulation}, "
        f"lhs_component_count = {left}, rhs_component_count = {right}, "
        f"num_primitive_operations = {algorithm.products}, "
        f"allow_imprecise_accumulation = {str(algorithm.imprecise).lower()}"
    )
    default = "#stablehlo<precision DEFAULT>"
    (product,) = b.op(
        "stablehlo.dot_general", [x, y], [made], dot_dimension_numbers=numbers,
        precision_config=f"[{default}, {default}]", algorithm=f"#stablehlo.dot_algorithm<{text}>",
    )  # fmt: skip
    return converted(b, product, made, out)


def converted(b: Builder, x: Emitted, before: ShapedArray, after: ShapedArray) -> Emitted:
    """The value converted to another type."""
    return x if before.dtype == after.dtype else b.op("stablehlo.convert", [x], [after])[0]


_FIELD = re.compile(r"(\w+) = (\w+)")


def read_algorithm(r: Reader) -> Algorithm | None:
    """The algorithm of a product in an imported program; None if there is none."""
    text = r.attr("algorithm", None)
    if text is None:
        return None
    given = dict(_FIELD.findall(text))
    types = (given[f"{name}_type"] for name in ("lhs_precision", "rhs_precision", "accumulation"))
    left, right, products = (
        int(given[name]) for name in ("lhs_component_count", "rhs_component_count", "num_primitive_operations")
    )
    return algorithm_of(*types, (left, right), products, given["allow_imprecise_accumulation"] == "true")
