"""Jaxprs, JAX's and ours, evaluated equation by equation: nothing is compiled twice, and hardly anything at all.

A trace says what a library means by a program: its types, its derivatives, its batches. What primitives compute is then
asked of NumPy (``primitives.py``), and of the library where that does not say, through its cache of one-op programs.
Loops and branches are Python's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from primitives import computed

import meshwright as mw
from meshwright.ir.verify import verify


@dataclass(frozen=True)
class Equation:
    """An equation of either library: what is called, if anything, and what computes it otherwise."""

    name: str
    params: Any
    called: Any
    bind: Callable[..., Any]
    several: bool


#: ops with a function of elements, which they do not call as a whole
_OF_ELEMENTS = {"reduce", "reduce_window"}


def of_jax(eqn: Any) -> Equation:
    primitive, params = eqn.primitive, eqn.params
    found = next((params[key] for key in ("jaxpr", "call_jaxpr") if key in params), None)
    found = None if primitive.name in _OF_ELEMENTS else found
    return Equation(
        primitive.name, SimpleNamespace(**params), found,
        lambda *args: primitive.bind(*map(jnp.asarray, args), **params), primitive.multiple_results,
    )  # fmt: skip


def of_ours(eqn: Any) -> Equation:
    op = eqn.op
    return Equation(op.name, op, op.body() if op.holds_jaxprs else None, op.bind, op.multiple_results)


@dataclass(frozen=True)
class Walk:
    """Evaluates jaxprs of one library."""

    equation: Callable[[Any], Equation]

    def __call__(self, jaxpr: Any, args: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The results of a closed jaxpr."""
        inner = getattr(jaxpr, "jaxpr", jaxpr)
        consts = [np.asarray(c) for c in getattr(jaxpr, "consts", ())]
        env: dict[Any, np.ndarray] = dict(zip((*inner.constvars, *inner.invars), (*consts, *args), strict=True))
        for eqn in inner.eqns:
            values = [self._read(env, a) for a in eqn.invars]
            env.update(zip(eqn.outvars, self._apply(eqn, values), strict=True))
        return [self._read(env, a) for a in inner.outvars]

    def _read(self, env: dict[Any, np.ndarray], atom: Any) -> np.ndarray:
        return np.asarray(atom.val, atom.aval.dtype) if hasattr(atom, "val") else env[atom]

    def _apply(self, eqn: Any, args: list[np.ndarray]) -> Sequence[np.ndarray]:
        said = self.equation(eqn)
        if said.name in _CONTROL:
            return _CONTROL[said.name](self, said.params, args)
        if said.called is not None:
            return self(said.called, args)
        outs = computed(said.name, said.params, args, [v.aval for v in eqn.outvars])
        if outs is None:
            got = said.bind(*args)
            outs = [np.asarray(x) for x in (got if said.several else [got])]
        return outs

    def _cond(self, op: Any, args: list[np.ndarray]) -> list[np.ndarray]:
        return self(op.branches[min(max(int(args[0]), 0), len(op.branches) - 1)], args[1:])

    def _while(self, op: Any, args: list[np.ndarray]) -> list[np.ndarray]:
        m, n = op.cond_nconsts, op.body_nconsts
        known, consts, carry = args[:m], args[m : m + n], args[m + n :]
        while self(op.cond_jaxpr, [*known, *carry])[0]:
            carry = self(op.body_jaxpr, [*consts, *carry])
        return carry

    def _scan(self, op: Any, args: list[np.ndarray]) -> list[np.ndarray]:
        m, n = op.num_consts, op.num_carry
        consts, carry, xs = args[:m], args[m : m + n], args[m + n :]
        avals = op.jaxpr.out_avals[n:]
        rows = [np.empty((op.length, *a.shape), a.dtype) for a in avals]
        for i in reversed(range(op.length)) if op.reverse else range(op.length):
            outs = self(op.jaxpr, [*consts, *carry, *(x[i] for x in xs)])
            carry = outs[:n]
            for row, value in zip(rows, outs[n:]):
                row[i] = value
        return [*carry, *rows]


_CONTROL = {"cond": Walk._cond, "while": Walk._while, "scan": Walk._scan}
_jax, _ours = Walk(of_jax), Walk(of_ours)


@dataclass(frozen=True)
class Typed:
    """A value with the type that a library gives it."""

    value: np.ndarray
    aval: Any

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.value if dtype is None else self.value.astype(dtype)

    @property
    def struct(self) -> jax.ShapeDtypeStruct:
        """Its type as JAX takes it instead of a value."""
        return jax.ShapeDtypeStruct(self.aval.shape, self.aval.dtype, weak_type=self.aval.weak_type)


def typed(x: Any) -> Typed:
    """A value that JAX takes, as JAX types it: of numbers weakly."""
    aval = jax.typeof(x if isinstance(x, np.ndarray) else jnp.asarray(x))
    return Typed(np.asarray(x, aval.dtype), aval)


def by_jax(f: Callable[..., Any], *args: Typed) -> list[Typed]:
    """The leaves of ``f(*args)``, as JAX means them."""
    closed = jax.make_jaxpr(f)(*(x.struct for x in args))
    outs = _jax(closed, [x.value for x in args])
    return [Typed(x, a) for x, a in zip(outs, closed.out_avals, strict=True)]


def by_us(f: Callable[..., Any], *args: Any) -> list[Typed]:
    """The leaves of ``f(*args)``, as we mean them; what is traced is verified."""
    closed = mw.make_jaxpr(f)(*args)
    verify(closed)
    outs = _ours(closed, [np.asarray(x) for x in args])
    return [Typed(x, a) for x, a in zip(outs, closed.out_avals, strict=True)]
