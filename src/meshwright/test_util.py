"""``jax.test_util``: comparison of derivatives with finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import meshwright.numpy as mnp
from meshwright.core import dtypes
from meshwright.core import pytree as trees
from meshwright.errors import ArgumentError, VerificationError
from meshwright.transforms.autodiff import jvp, vjp

__all__ = ["check_grads", "check_jvp", "check_vjp"]


def _inexact(x: Any) -> Any:
    x = mnp.asarray(x)
    if not dtypes.is_inexact(x.dtype):
        raise ArgumentError(f"check_grads: derivatives need float or complex arguments, got {x.dtype}")
    return x


def _random_like(rng: np.random.Generator, values: Any) -> Any:
    def one(x: Any) -> Any:
        x = _inexact(x)
        value = rng.standard_normal(x.shape)
        if dtypes.is_complex(x.dtype):
            value = value + 1j * rng.standard_normal(x.shape)
        return mnp.asarray(value, x.dtype)

    return trees.map(one, values)


def _moved(values: Any, direction: Any, by: float) -> Any:
    return trees.map(lambda x, d: x + by * d, values, direction)


def _differences(f: Callable[..., Any], args: Any, direction: Any, step: float) -> Any:
    """The central differences of ``f`` at ``args``."""
    above, below = f(*_moved(args, direction, step)), f(*_moved(args, direction, -step))
    return trees.map(lambda a, b: (a - b) / (2 * step), above, below)


def _inner(a: Any, b: Any) -> float:
    """The inner product of two pytrees as real vectors."""
    pairs = zip(trees.leaves(a), trees.leaves(b))
    return float(sum(np.real(np.vdot(np.conj(np.asarray(x)), np.asarray(y))) for x, y in pairs))


def _tolerances(values: Any, atol: float | None, rtol: float | None) -> tuple[float, float]:
    eps = max((float(mnp.finfo(_inexact(x).dtype).eps) for x in trees.leaves(values)), default=1e-6)
    usual = eps ** (1 / 3) * 2
    return (usual if atol is None else atol), (usual if rtol is None else rtol)


def _settings(
    args: Sequence[Any], atol: float | None, rtol: float | None, eps: float | None, err_msg: str
) -> tuple[tuple[Any, ...], str, float, float, tuple[float, ...]]:
    """The arguments, the prefix of messages, the tolerances, and the steps of finite differences to try.

    A long step is exact for functions that are nearly linear, whose differences rounding would hide; a short one for
    those that bend, or have another branch near by.
    """
    args = tuple(args)
    usual = _tolerances(args, None, None)[0]
    atol, rtol = _tolerances(args, atol, rtol)
    steps = (usual / 2, usual / 100) if eps is None else (eps,)
    return args, f"{err_msg}: " if err_msg else "", atol, rtol, steps


def _compare_slopes(
    what: str, got: Any, slope: Callable[[float], Any], steps: Sequence[float], atol: float, rtol: float
) -> None:
    """Compare with the ``slope`` by finite differences, at the first of the ``steps`` that agrees, or else the last."""
    for step in steps[:-1]:
        try:
            return _compare(what, got, slope(step), atol, rtol)
        except VerificationError:
            continue
    _compare(what, got, slope(steps[-1]), atol, rtol)


def _compare(what: str, got: Any, want: Any, atol: float, rtol: float) -> None:
    for number, (a, b) in enumerate(zip(trees.leaves(got), trees.leaves(want))):
        if not np.allclose(a, b, atol=atol, rtol=rtol):
            worst = float(np.max(np.abs(np.asarray(a) - np.asarray(b))))
            raise VerificationError(
                f"{what}: result {number} differs from finite differences by up to {worst:.3g}, more than "
                f"atol={atol:.3g} and rtol={rtol:.3g} allow; got\n{a}\nexpected\n{b}"
            )


def check_jvp(
    f: Callable[..., Any], f_jvp: Callable[..., Any], args: Sequence[Any], atol: float | None = None,
    rtol: float | None = None, eps: float | None = None, err_msg: str = "",
) -> None:  # fmt: skip
    """Check ``f_jvp(args, tangents) -> (results, result tangents)`` in a random direction.

    Raises:
      VerificationError: it differs from central differences of ``f``.

    Example:
      >>> mw.test_util.check_jvp(jnp.sin, lambda x, t: mw.jvp(jnp.sin, x, t), (jnp.array([0.5, 2.0]),))
    """
    args, prefix, atol, rtol, steps = _settings(args, atol, rtol, eps, err_msg)
    tangents = _random_like(np.random.default_rng(0), args)
    out, out_tangents = f_jvp(args, tangents)
    _compare(prefix + "check_jvp: the primal result", out, f(*args), atol, rtol)
    _compare_slopes(prefix + "check_jvp", out_tangents, lambda s: _differences(f, args, tangents, s), steps, atol, rtol)


def check_vjp(
    f: Callable[..., Any], f_vjp: Callable[..., Any], args: Sequence[Any], atol: float | None = None,
    rtol: float | None = None, eps: float | None = None, err_msg: str = "",
) -> None:  # fmt: skip
    """Check ``f_vjp(*args) -> (results, cotangents of args from those of results)`` in random directions.

    Raises:
      VerificationError: it differs from central differences of ``f``.

    Example:
      >>> mw.test_util.check_vjp(jnp.sin, lambda x: mw.vjp(jnp.sin, x), (jnp.array([0.5, 2.0]),))
    """
    args, prefix, atol, rtol, steps = _settings(args, atol, rtol, eps, err_msg)
    rng = np.random.default_rng(1)
    tangents = _random_like(rng, args)
    out, pullback = f_vjp(*args)
    _compare(prefix + "check_vjp: the primal result", out, f(*args), atol, rtol)
    cotangents = _random_like(rng, out)
    got = _inner(tangents, pullback(cotangents))

    def slope(step: float) -> float:
        return _inner(_differences(f, args, tangents, step), cotangents)

    _compare_slopes(prefix + "check_vjp", got, slope, steps, atol, rtol)


def check_grads(
    f: Callable[..., Any], args: Sequence[Any], order: int, modes: Sequence[str] = ("fwd", "rev"),
    atol: float | None = None, rtol: float | None = None, eps: float | None = None,
) -> None:  # fmt: skip
    """Check the derivatives of ``f`` at ``args``, up to ``order``, against finite differences in random directions.

    Args:
      args: the arguments, pytrees of float or complex arrays. With float64 the check is much more precise.
      order: the highest order of derivatives to check.
      modes: ``"fwd"`` (:func:`jvp <meshwright.jvp>`), ``"rev"`` (:func:`vjp <meshwright.vjp>`), or both.
      atol, rtol: tolerances; by default a little over the cube root of the dtype's precision.
      eps: the step of the differences; by default a long one and, where that does not agree, a short one.

    Raises:
      VerificationError: a derivative differs.
      ArgumentError: an argument is not float or complex.

    Example:
      >>> mw.test_util.check_grads(lambda x, y: jnp.sin(x) * y, (jnp.array([0.5, 2.0]), jnp.array(3.0)), order=2)
    """
    args = tuple(args)
    if unknown := set(modes) - {"fwd", "rev"}:
        raise ArgumentError(f"check_grads: modes are 'fwd' and 'rev', got {sorted(unknown)}")
    if "fwd" in modes:
        check_jvp(f, lambda xs, ts: jvp(f, xs, ts), args, atol, rtol, eps)
        if order > 1:
            direction = _random_like(np.random.default_rng(order), args)
            check_grads(lambda *xs: jvp(f, xs, direction)[1], args, order - 1, modes, atol, rtol, eps)
    if "rev" in modes:
        check_vjp(f, lambda *xs: vjp(f, *xs), args, atol, rtol, eps)
        if order > 1:
            out, _ = vjp(f, *args)
            weights = _random_like(np.random.default_rng(10 + order), out)
            check_grads(lambda *xs: vjp(f, *xs)[1](weights), args, order - 1, modes, atol, rtol, eps)
