"""What sparse arrays of all formats have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.core.expected import as_integers
from meshwright.errors import ArgumentError


def all_sparse(where: str, n_batch: int | None, n_dense: int | None) -> None:
    """Raise ArgumentError unless every dimension is sparse."""
    if n_batch or n_dense:
        raise ArgumentError(
            f"{where}: every dimension is sparse, got n_batch={n_batch}, n_dense={n_dense}; leave them out, and use "
            "vmap over arrays of one nse"
        )


def left_out(where: str, **options: Any) -> None:
    """Raise ArgumentError for options that are given."""
    for option, value in options.items():
        if value is not None:
            raise ArgumentError(f"{where}: {option} has no meaning for sparse arrays, got {value!r}; leave it out")


class JAXSparse:
    """The base class of sparse arrays; ``shape``, ``dtype`` and ``todense()`` are those of the dense array."""

    __array_ufunc__ = None
    #: the numbers of batch dimensions and of dense dimensions, as in JAX; always 0 here
    n_batch = n_dense = 0
    data: Any
    shape: tuple[int, ...]

    def __init__(self, args: Sequence[Any], *, shape: Sequence[int]) -> None:
        self.shape = as_integers(f"{type(self).__name__}: shape", shape)

    @property
    def nse(self) -> int:
        """The number of stored elements."""
        return int(self.data.shape[-1])

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.data.dtype)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    n_sparse = ndim

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def T(self) -> Any:
        return self.transpose()

    def transpose(self, axes: Any = None) -> Any:
        """Permute the dimensions; by default, reverse them."""
        raise NotImplementedError

    def todense(self) -> Any:
        """The dense array."""
        raise NotImplementedError

    def __repr__(self) -> str:
        counts = "".join(f", {n}={getattr(self, n)}" for n in ("n_batch", "n_dense") if getattr(self, n))
        return f"{type(self).__name__}({self.dtype}{list(self.shape)}, nse={self.nse}{counts})"

    def block_until_ready(self) -> Any:
        self.data.block_until_ready()
        return self
