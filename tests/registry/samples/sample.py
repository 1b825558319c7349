"""A sample: one op with operands, and what kind of checks make sense for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.ir.op import Op
from meshwright.ir.tracing import trace_to_jaxpr, typeof


@dataclass(frozen=True, eq=False)
class Sample:
    """An op and NumPy operands.

    ``smooth`` says that finite differences make sense at these values; ``fixed`` are operands that are not
    differentiated (the order of a polygamma).
    """

    label: str
    op: Op
    args: tuple[np.ndarray, ...]
    smooth: bool = True
    fixed: tuple[int, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.op.name}-{self.label}" if self.label else self.op.name


def sample(op: Op, *args: Any, label: str = "", smooth: bool = True, fixed: tuple[int, ...] = ()) -> Sample:
    """A sample whose label, unless given, is made of the operands' types."""
    arrays = tuple(np.asarray(a) for a in args)
    types = "_".join(str(typeof(a)) for a in arrays) if arrays else "nothing"
    return Sample(f"{types}-{label}" if label else types, op, arrays, smooth, fixed)


def recorded(fun: Callable[..., Any], *args: Any, label: str, **kwargs: Any) -> Sample:
    """A sample of the one op that a public function of arrays binds."""
    arrays = tuple(np.asarray(a) for a in args)

    def flat(*xs: Any) -> list[Any]:
        out = fun(*xs)
        return list(out) if isinstance(out, (list, tuple)) else [out]

    jaxpr = trace_to_jaxpr(flat, [typeof(a) for a in arrays]).jaxpr
    (eqn,) = jaxpr.eqns
    assert list(eqn.invars) == jaxpr.invars, f"{label}: the op's operands are not the function's arguments"
    return sample(eqn.op, *arrays, label=label, **kwargs)


def floats(*shape: int, low: float = -1.93, high: float = 2.11, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    """Distinct values between ``low`` and ``high`` in random order."""
    n = int(np.prod(shape))
    order = np.random.default_rng(seed + n).permutation(n)
    return (low + (high - low) * (order + 0.5) / max(n, 1)).reshape(shape).astype(dtype)


def ints(*shape: int, low: int = -7, seed: int = 0, dtype: Any = np.int32) -> np.ndarray:
    """Distinct integers from ``low`` up, in random order."""
    n = int(np.prod(shape))
    order = np.random.default_rng(seed + n).permutation(n)
    return (order + low).reshape(shape).astype(dtype)


def bools(*shape: int, seed: int = 0) -> np.ndarray:
    """True and false in random order."""
    return ints(*shape, low=0, seed=seed) % 3 != 0


def complexes(*shape: int, low: float = -1.93, high: float = 2.11, seed: int = 0) -> np.ndarray:
    """Distinct complex values."""
    re, im = floats(*shape, low=low, high=high, seed=seed), floats(*shape, low=low, high=high, seed=seed + 5)
    return (re + 1j * im).astype(np.complex64)
