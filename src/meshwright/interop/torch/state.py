"""A module's parameters and buffers as trees under torch's names: what is tied once, what torch writes to copied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from meshwright.errors import ArgumentError
from meshwright.interop.torch.tensors import as_array


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The part of its storage that a tensor covers, in bytes."""
    first = tensor.storage_offset() * tensor.itemsize
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride())) + 1 if tensor.numel() else 0
    return first, first + reach * tensor.itemsize


def tied(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """For each name that of the first tensor which is the same memory: its own, if it is tied to none before it.

    Storages are compared, not addresses, which are 0 on the meta device.

    Raises:
      ArgumentError: two tensors share a part of their memory only, or see it in different shapes.
    """
    first: dict[int, list[str]] = {}
    tied_to: dict[str, str] = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()._cdata
        for other in first.setdefault(storage, []):
            same, (start, end), (begin, stop) = tensors[other], _span(tensor), _span(tensors[other])
            if (start, tensor.shape, tensor.stride()) == (begin, same.shape, same.stride()):
                tied_to[name] = other
                break
            if start < stop and begin < end:
                raise ArgumentError(
                    f"from_torch: {other!r} and {name!r} share memory, but are not the same tensor; tie the parameters "
                    "themselves, or clone one of them"
                )
        else:
            first[storage].append(name)
            tied_to[name] = name
    return tied_to


def arrays(tensors: Mapping[str, torch.Tensor], names: Iterable[str], copied: Iterable[str]) -> dict[str, Any]:
    """Arrays (types, on the meta device) of the named tensors; those of ``copied`` have memory of their own."""
    own = set(copied)
    return {name: as_array(tensors[name], copy=name in own) for name in names}
