"""Calls of kernels on column-major matrices, as LAPACK, cuSOLVER and similar libraries need them.

Operands, results and attributes follow the LAPACK Users' Guide and the text of programs lowered by ``jax``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.core.avals import ShapedArray
from meshwright.ir.op import Builder


class Word(str):
    """A string attribute; other one-letter strings are a byte."""


#: a letter (an unsigned byte for the kernel), a :class:`Word`, a bool or an integer
Flag = str | bool | int
#: the operands that kernels overwrite with their first results, if it is not only the first operand
OVERWRITTEN = {"gtsv": (0, 1, 2, 3), "trsm": (1,), "ormqr": (2,), "geqp3": (0, 1), "geev": ()}


def kernel_call(
    b: Builder, target: str, operands: Sequence[Any], avals: Sequence[ShapedArray], results: Sequence[ShapedArray], *,
    lead: int, flags: Mapping[str, Flag], over: Sequence[int] = (0,), rows_first: bool = False,
) -> list[Any]:  # fmt: skip
    """The results of the kernel ``target`` of the typed FFI, for operands of types ``avals`` with ``lead`` leading
    dimensions.

    Result ``i`` aliases operand ``over[i]``; otherwise, kernels copy the operand there. With ``rows_first``, matrices
    are row-major, which is the layout of their transposes.
    """
    config = ", ".join(f"{name} = {_flag_text(value)}" for name, value in flags.items())
    return b.op(
        "stablehlo.custom_call", operands, results,
        call_target_name=f'"{target}"', api_version="4 : i32", backend_config=f"{{{config}}}",
        operand_layouts=_layouts(avals, lead, rows_first), result_layouts=_layouts(results, lead, rows_first),
        output_operand_aliases=_aliases(over, len(results)),
    )  # fmt: skip


def _flag_text(value: Flag) -> str:
    if isinstance(value, Word):
        return f'"{value}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value} : i32" if isinstance(value, int) else f"{ord(value)} : ui8"


def _layouts(avals: Sequence[ShapedArray], lead: int, rows_first: bool) -> str:
    orders = (column_major(a.ndim, lead, rows_first) for a in avals)
    return f"[{', '.join(f'dense<{o if o else str()}> : tensor<{len(o)}xindex>' for o in orders)}]"


def column_major(ndim: int, lead: int, rows_first: bool = False) -> list[int]:
    """Dimensions from the fastest to the slowest, with the two of a matrix swapped."""
    order = list(range(ndim))[::-1]
    if ndim - lead == 2 and not rows_first:
        order[:2] = order[1::-1]
    return order


def _aliases(overwritten: Sequence[int], results: int) -> str:
    entries = (
        f"#stablehlo.output_operand_alias<output_tuple_indices = [{i if results > 1 else ''}], operand_index = {o}, "
        "operand_tuple_indices = []>"
        for i, o in enumerate(overwritten)
    )
    return f"[{', '.join(entries)}]"
