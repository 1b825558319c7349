"""Tensors and arrays: of each other's memory where that is safe."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from meshwright.api.jit import ShapeDtypeStruct
from meshwright.core import dtypes, pytree
from meshwright.errors import ArgumentTypeError
from meshwright.interop.torch.dtypes import array_dtype, torch_dtype
from meshwright.ir.tracing import typeof
from meshwright.numpy.creation import asarray
from meshwright.ops.elementwise.table import conj
from meshwright.runtime.array import Array
from meshwright.runtime.dlpack import from_dlpack


def as_array(tensor: torch.Tensor, copy: bool = True) -> Any:
    """An array of a tensor's values; a ``ShapeDtypeStruct`` of one on the meta device.

    Without ``copy`` the array may share the tensor's memory: writing to the tensor then changes the array.

    Raises:
      DTypeError: a dtype that arrays do not have. ArgumentTypeError: a sparse, nested or quantized tensor, or
        one that has its values in other tensors, as a ``DTensor``.
    """
    dtype = array_dtype(tensor.dtype)
    if tensor.is_meta:
        return ShapeDtypeStruct(tuple(tensor.shape), dtype)
    if (other := instead(tensor)) is not None:
        raise ArgumentTypeError(f"a tensor that is {other[0]} has no array; use {other[1]}")
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    owned = plain.data_ptr() != tensor.data_ptr()
    return asarray(from_dlpack(plain, copy=copy and not owned), dtype=dtype)


def instead(tensor: torch.Tensor) -> tuple[str, str] | None:
    """What a tensor is that no array stands for, and what to use in its place; None if one does."""
    if tensor.is_quantized:
        return f"quantized ({tensor.dtype})", "dequantize()"
    if tensor.is_nested:
        return "nested", "to_padded_tensor(0.0), and a mask of what is there"
    if tensor.layout != torch.strided:
        return f"of layout {tensor.layout}", "to_dense()"
    if isinstance(tensor, DTensor):
        whole = "full_tensor() for the values, and interop.torch.from_placements(x.placements, ...) for the sharding"
        return f"a DTensor ({', '.join(map(str, tensor.placements))}), spread over torch's processes", whole
    if is_traceable_wrapper_subclass(tensor):
        return f"a {type(tensor).__name__}, whose values are in other tensors", "a plain tensor of its values"
    return None


def as_tensor(x: Any, copy: bool = False) -> torch.Tensor:
    """A tensor of an array's values; without ``copy`` it has the array's memory, which must not be written to.

    Raises:
      DTypeError: a dtype that torch does not have.
    """
    array = asarray(x)
    torch_dtype(array.dtype)
    return torch.from_dlpack(array.__deepcopy__({}) if copy else array)


def to_torch(tree: Any, *, copy: bool = False) -> Any:
    """``tree`` with torch tensors in place of its arrays, without a copy.

    The tensors have the arrays' memory, and arrays do not change: do not write to the tensors in place, or ask for a
    ``copy``.

    Raises:
      DTypeError: a dtype that torch does not have.

    Example:
      >>> mw.interop.torch.to_torch({"a": mnp.arange(3)})
      {'a': tensor([0, 1, 2], dtype=torch.int32)}
    """
    return pytree.map(lambda x: as_tensor(x, copy), tree)


def from_tensors(tree: Any, *, copy: bool = True) -> Any:
    """``tree`` with arrays in place of its torch tensors; without ``copy`` they may share memory.

    Example:
      >>> mw.interop.torch.from_tensors([torch.ones(2)])
      [Array([1., 1.], dtype=float32)]
    """
    return pytree.map(lambda x: as_array(x, copy) if isinstance(x, torch.Tensor) else x, tree)


def example_tensors(tree: Any) -> Any:
    """What stands for example arguments when a module is exported, each a tensor of its own: a module may ask whether
    two are the same, which later arguments need not be."""
    seen: set[int] = set()

    def apart(x: Any) -> Any:
        x = _example_tensor(x)
        if isinstance(x, torch.Tensor) and id(x) in seen:
            x = x.detach().clone().requires_grad_(x.requires_grad)
        seen.add(id(x))
        return x

    return torch.utils._pytree.tree_map(apart, tree)


def _example_tensor(x: Any) -> Any:
    """Arrays become tensors, types tensors of zeros."""
    if isinstance(x, ShapeDtypeStruct):
        return torch.zeros(x.shape, dtype=torch_dtype(x.dtype))
    if isinstance(x, (Array, np.ndarray, np.generic)):
        return as_tensor(x, copy=True)
    return x


def conjugated(tree: Any) -> Any:
    """The arrays of a tree, complex ones conjugated: what cotangents are here, of torch's, and the other way round.

    Of a real loss L by a complex z = x + iy, torch's gradient is dL/dx + i dL/dy, ours, as JAX's, dL/dx - i dL/dy.
    """
    return pytree.map(lambda x: conj(x) if dtypes.is_complex(typeof(x).dtype) else x, tree)
