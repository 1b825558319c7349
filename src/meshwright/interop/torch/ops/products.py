"""Products of matrices, kept whole: ``linear``, ``matmul``, ``einsum``, products of groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshwright import lax
from meshwright import numpy as mnp
from meshwright.core import dtypes
from meshwright.core.avals import Typed
from meshwright.interop.torch.promotion import is_one, scaling
from meshwright.interop.torch.registry import register, rows


@register("aten.linear")
def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """``input @ weight.T + bias``, the weight contracted where it is: nothing is transposed."""
    out = lax.dot_general(input, weight, (((input.ndim - 1,), (weight.ndim - 1,)), ((), ())))
    return out if bias is None else out + bias


@register("aten._weight_int8pack_mm")
def of_bytes(self: Any, mat2: Any, scales: Any) -> Any:
    """``self @ mat2.T``, with integer weights of which each row has a scale."""
    return linear(self, mat2.astype(self.dtype)) * scales


@register("aten._int_mm")
def int_mm(self: Any, mat2: Any) -> Any:
    """A product of bytes, summed in 32 bits."""
    return lax.dot_general(self, mat2, (((1,), (0,)), ((), ())), preferred_element_type=mnp.int32)


rows(
    {
        "matmul linalg_matmul": lambda self, other: mnp.matmul(self, other),
        "mm bmm": lambda self, mat2: mnp.matmul(self, mat2),
        "mv": lambda self, vec: mnp.matmul(self, vec),
        "dot": lambda self, tensor: mnp.sum(self * tensor),
        "vdot": lambda self, other: mnp.vdot(self, other),
        "inner": lambda self, other: mnp.inner(self, other),
        "outer ger": lambda self, vec2: mnp.outer(self, vec2),
        "kron": lambda self, other: mnp.kron(self, other),
        "linalg_cross cross": lambda self, other, dim=-1: mnp.cross(self, other, axis=dim),
        "chain_matmul": lambda matrices: mnp.linalg.multi_dot(list(matrices)),
        "linalg_multi_dot": lambda tensors: mnp.linalg.multi_dot(list(tensors)),
        "trace": lambda self: mnp.trace(self),
    }
)


def _added(product: Any, self: Any, beta: Any, alpha: Any) -> Any:
    """``beta * self + alpha * product``; a ``beta`` of 0 drops what is in ``self``, NaN or not. Factors of integers are
    cut off to integers, those of bools are 0 or not."""
    kind = bool if product.dtype == bool else int
    if not dtypes.is_inexact(product.dtype):
        beta, alpha = (kind(x) if isinstance(x, (int, float)) else x for x in (beta, alpha))
    product = product if is_one(alpha) else scaling(mnp.multiply)(product, alpha)
    if isinstance(beta, (int, float, complex)) and beta == 0:
        return product
    added = product + (self if is_one(beta) else scaling(mnp.multiply)(self, beta))
    return mnp.where(beta == 0, product, added) if isinstance(beta, Typed) else added


_ADDED_PRODUCTS: dict[str, Callable[..., Any]] = {
    "addmm": mnp.matmul,
    "baddbmm": mnp.matmul,
    "addbmm": lambda batch1, batch2, **options: mnp.einsum("bij,bjk->ik", batch1, batch2, **options),
    "addmv": mnp.matmul,
    "addr": lambda vec1, vec2, **_: mnp.outer(vec1, vec2),
}


def _added_product(product: Callable[..., Any]) -> Callable[..., Any]:
    def added(self: Any, *factors: Any, beta: Any = 1, alpha: Any = 1) -> Any:
        narrow = dtypes.is_float(factors[0].dtype) and factors[0].dtype.itemsize < 4
        if not narrow or (is_one(beta) and is_one(alpha)):
            return _added(product(*factors), self, beta, alpha)
        # As torch does, which rounds once: Newton's iterations (torch.optim.Muon) amplify the difference.
        wide = product(*factors, preferred_element_type=mnp.float32).astype(mnp.float32)
        return _added(wide, self.astype(mnp.float32), beta, alpha).astype(factors[0].dtype)

    return added


for _name, _product in _ADDED_PRODUCTS.items():
    register(f"aten.{_name}")(_added_product(_product))


@register("aten.einsum")
def einsum(equation: str, tensors: Sequence[Any], path: Sequence[int] | None = None) -> Any:
    return mnp.einsum(equation.replace(" ", ""), *tensors)


@register("aten.bilinear")
def bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Any:
    out = mnp.einsum("...i,oij,...j->...o", input1, weight, input2)
    return out if bias is None else out + bias


# --- groups -------------------------------------------------------------------------------------------------
@register("transformers.grouped_mm_fallback")
def grouped_product(input: Any, weight: Any, offs: Any) -> Any:
    """Rows up to ``offs[0]`` times ``weight[0]``, and so on."""
    sizes = mnp.diff(offs, prepend=mnp.zeros(1, offs.dtype))
    return lax.ragged_dot(input, weight, sizes)


@register("aten._grouped_mm")
def grouped_mm(self: Any, mat2: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """``offs`` end the groups along the dimension that a matrix without a dimension of groups has more of: rows,
    columns, or, of two such matrices, what is summed, to a product for each group."""
    kind = None if out_dtype is None else mnp.dtype(out_dtype)
    if offs is None:
        out = mnp.matmul(self, mat2, preferred_element_type=kind)
    else:
        sizes = mnp.diff(offs, prepend=mnp.zeros(1, offs.dtype))
        swapped = self.ndim == 3  # whose second factor has the groups, as columns
        x, y, contracted = (mat2, self, (0, 2)) if swapped else (self, mat2, (1, mat2.ndim - 2))
        summed = y.ndim == 2
        numbers = lax.RaggedDotDimensionNumbers(
            (([contracted[0]], [contracted[1]]), ([], [])), [int(summed or swapped)], [] if summed else [0]
        )
        out = lax.ragged_dot_general(x, y, sizes, numbers, preferred_element_type=kind)
        out = out.T if swapped else out
    return out if bias is None else out + bias


@register("aten.tensordot")
def tensordot(self: Any, other: Any, dims_self: Sequence[int], dims_other: Sequence[int]) -> Any:
    """Of two dimensions one may have size 1, which stands for as many equal elements as the other has."""
    for i, j in zip(dims_self, dims_other):
        if self.shape[i] == 1 and other.shape[j] != 1:
            other = other.sum(j, keepdims=True)
        elif other.shape[j] == 1 and self.shape[i] != 1:
            self = self.sum(i, keepdims=True)
    return mnp.tensordot(self, other, (tuple(dims_self), tuple(dims_other)))
