"""Calls that are refused: the error is of our tree, and of a type that JAX raises for the call."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback as jax_io_callback

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.errors import MeshwrightError

X = np.ones((2, 3), np.float32)
F, I = np.ones(2, np.float32), np.ones(2, np.int32)


def identity(x: Any) -> Any:
    return x


def leaked(lib: Any) -> Any:
    kept: list[Any] = []
    lib.jit(lambda x: kept.append(x) or x)(1.0)
    return kept[0] + 1


def io_callback_of(lib: Any) -> Any:
    return jax_io_callback if lib is jax else lib.io_callback


def compute_on_of(lib: Any) -> Any:
    return importlib.import_module(f"{lib.__name__}.experimental.compute_on").compute_on


def with_rule(lib: Any, backward: Any) -> Any:
    f = lib.custom_vjp(identity)
    f.defvjp(lambda x: (x, None), backward)
    return f


def with_tangent(lib: Any, rule: Any) -> Any:
    f = lib.custom_jvp(identity)
    f.defjvp(rule)
    return f


#: of a library and its NumPy
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "branch": lambda l, n: l.jit(lambda x: 1 if x else 2)(1.0),
    "float": lambda l, n: l.jit(lambda x: float(x))(1.0),
    "NumPy": lambda l, n: l.jit(lambda x: np.sin(x))(1.0),
    "list index": lambda l, n: l.jit(lambda x: [1, 2][x])(1),
    "mask": lambda l, n: l.jit(lambda x: x[x > 0])(X),
    "while backwards": lambda l, n: l.grad(lambda x: l.lax.while_loop(lambda c: c < 9, lambda c: 2 * c, x))(1.0),
    "in_axes in a dict": lambda l, n: l.vmap(lambda d: d["a"], in_axes={"a": 0})({"a": F}),
    "leak": lambda l, n: leaked(l),
    "grad of integers": lambda l, n: l.grad(identity)(1),
    "grad of a vector": lambda l, n: l.grad(identity)(X),
    "grad of a pair": lambda l, n: l.grad(lambda x: (x, x))(1.0),
    "jvp trees": lambda l, n: l.jvp(identity, (1.0,), (1.0, 1.0)),
    "jvp types": lambda l, n: l.jvp(identity, (1.0,), (1,)),
    "reshape": lambda l, n: n.reshape(X, (4,)),
    "add": lambda l, n: n.add(X, np.ones(4)),
    "dot": lambda l, n: n.dot(X, X),
    "lax.dot": lambda l, n: l.lax.dot(X, X),
    "lax.add types": lambda l, n: l.lax.add(F, I),
    "lax.add shapes": lambda l, n: l.lax.add(F, np.ones(3, np.float32)),
    "index by text": lambda l, n: n.asarray(X)["a"],
    "index by a float": lambda l, n: n.asarray(X)[1.5],
    "too many indices": lambda l, n: n.asarray(X)[0, 0, 0],
    "assignment": lambda l, n: n.asarray(X).__setitem__(0, 1),
    "hash": lambda l, n: hash(n.asarray(X)),
    "vmap sizes": lambda l, n: l.vmap(lambda a, b: a)(F, np.ones(3)),
    "vmap axis": lambda l, n: l.vmap(identity, in_axes=5)(X),
    "vmap axes": lambda l, n: l.vmap(identity, in_axes=(0, 1))(X),
    "vmap of a scalar": lambda l, n: l.vmap(identity)(1.0),
    "axis name": lambda l, n: l.vmap(lambda x: l.lax.psum(x, "z"))(F),
    "scan carry": lambda l, n: l.lax.scan(lambda c, x: (c.astype("int32"), x), 1.0, X),
    "scan lengths": lambda l, n: l.lax.scan(lambda c, x: (c, x), 1.0, (F, np.ones(3))),
    "cond types": lambda l, n: l.lax.cond(True, identity, lambda x: 1, 1.0),
    "cond of text": lambda l, n: l.lax.cond("a", identity, identity, 1.0),
    "while of a float": lambda l, n: l.lax.while_loop(identity, identity, 1.0),
    "switch of a float": lambda l, n: l.lax.switch(1.0, [identity], 1.0),
    "text": lambda l, n: l.jit(identity)("a"),
    "jit of a number": lambda l, n: l.jit(3),
    "trees": lambda l, n: l.tree.map(lambda a, b: a, [1], [1, 2]),
    "unflatten": lambda l, n: l.tree.unflatten(l.tree.structure([1, 2]), [1]),
    "dtype": lambda l, n: n.zeros(3, "foo"),
    "shape": lambda l, n: n.zeros((1.5,)),
    "concatenate": lambda l, n: n.concatenate([]),
    "stack": lambda l, n: n.stack([F, np.ones(3)]),
    "axis": lambda l, n: n.sum(X, axis=5),
    "axes": lambda l, n: n.sum(X, axis=(0, 0)),
    "einsum": lambda l, n: n.einsum("ij,jk", X, X),
    "broadcast_to": lambda l, n: n.broadcast_to(X, (2, 2)),
    "squeeze": lambda l, n: n.squeeze(X, 0),
    "key": lambda l, n: l.random.normal(3),
    "arithmetic of keys": lambda l, n: l.random.key(0) + 1,
    "list": lambda l, n: n.sin([1.0]) if l is jax else n.sin("a"),
    "None": lambda l, n: n.sin(None),
    "array of text": lambda l, n: n.asarray("a"),
    "len": lambda l, n: len(n.asarray(1.0)),
    "iteration": lambda l, n: list(n.asarray(1.0)),
    "float of a vector": lambda l, n: float(n.asarray(X)),
    "truth of a vector": lambda l, n: bool(n.asarray(X)),
    "option": lambda l, n: l.config.update("no_such_option", 1),
    "solve": lambda l, n: n.linalg.solve(X, X),
    "inv": lambda l, n: n.linalg.inv(X),
    "dynamic_slice": lambda l, n: l.lax.dynamic_slice(n.asarray(X), (0,), (1, 1)),
    "roll": lambda l, n: n.roll(X, 1, axis=7),
    "equal to a list": lambda l, n: n.asarray(F) == [1.0, 1.0],
    "unequal to a tuple": lambda l, n: l.jit(lambda x: x != (1.0, 1.0))(F),
    "equal to a set": lambda l, n: n.asarray(F) == {1.0},
    "a list and an array": lambda l, n: [1.0, 1.0] - n.asarray(F),
    "power of a list": lambda l, n: n.asarray(F) ** [1, 2],
    "mask of floats": lambda l, n: l.nn.dot_product_attention(*[np.ones((1, 2, 1, 3), np.float32)] * 3, mask=X[0, :2]),
    "initial of sum": lambda l, n: n.sum(X, axis=0, initial=X[0]),
    "initial of max": lambda l, n: n.max(X, axis=0, initial=X[0]),
    "initial of nanprod": lambda l, n: n.nanprod(X, initial=F),
    "64 bits of an array": lambda l, n: l.pure_callback(identity, np.float64(1), 1.0),
    "64 bits of an effect": lambda l, n: io_callback_of(l)(identity, np.int64(1), 1),
    "bool axis of vmap": lambda l, n: l.vmap(identity, in_axes=True)(X),
    "bool axes of vmap": lambda l, n: l.vmap(identity, in_axes=(False,))(X),
    "bool result axis of vmap": lambda l, n: l.vmap(identity, out_axes=True)(X),
    "scope": lambda l, n: l.named_scope(3),
    "bits of nothing": lambda l, n: l.lax.reduce_precision(F, 0, 3),
    "negative bits": lambda l, n: l.lax.reduce_precision(F, 3, -1),
    "half a bit": lambda l, n: l.lax.reduce_precision(F, 5.0, 3),
    "bits of bools": lambda l, n: l.lax.bitcast_convert_type(F > 0, np.int8),
    "bits as bools": lambda l, n: l.lax.bitcast_convert_type(np.ones(2, np.int8), bool),
    "bits of complex numbers": lambda l, n: l.lax.bitcast_convert_type(np.ones(2, np.complex64), np.float32),
    "stride 0": lambda l, n: l.lax.conv(X[None, None], X[None, None], (0, 1), "SAME"),
    "stride 0 of a window": lambda l, n: l.lax.reduce_window(F, 0.0, l.lax.add, (2,), (0,), "SAME"),
    "places of rounding": lambda l, n: n.round(F, 1.5),
    "half an element": lambda l, n: n.partition(F, 0.5),
    "no such element": lambda l, n: n.partition(F, 2),
    "half a bin": lambda l, n: n.histogram(F, bins=1.5),
    "half an axis": lambda l, n: n.tensordot(X, X.T, 1.0),
    "ragged index": lambda l, n: n.asarray(X)[[0, [1, 2]], 0],
    "float in an index": lambda l, n: n.asarray(X)[(0, 1.5), 0],
    "no such mode": lambda l, n: n.asarray(F).at[0].get(mode="wrap"),
    "cotangent tree": lambda l, n: l.vjp(lambda x: (x, x), 1.0)[1](1.0),
    "cotangent list": lambda l, n: l.vjp(lambda x: (x, x), 1.0)[1]([1.0, 1.0]),
    "cotangent shape": lambda l, n: l.vjp(identity, F)[1](np.ones(3, np.float32)),
    "cotangent dtype": lambda l, n: l.vjp(identity, F)[1](I),
    "cotangent count": lambda l, n: l.vjp(identity, F)[1](F, F),
    "transposed tree": lambda l, n: l.linear_transpose(lambda x: (x, x), 1.0)(1.0),
    "transposed shape": lambda l, n: l.linear_transpose(identity, F)(np.ones(3, np.float32)),
    "pushed shape": lambda l, n: l.linearize(identity, F)[1](np.ones(3, np.float32)),
    "pushed tree": lambda l, n: l.linearize(identity, (1.0, 2.0))[1]([1.0, 2.0]),
    "jvp shape": lambda l, n: l.jvp(identity, (F,), (np.ones(3, np.float32),)),
    "rule's cotangent": lambda l, n: l.grad(with_rule(l, lambda r, g: (np.ones(3, np.float32),)))(1.0),
    "rule's cotangents": lambda l, n: l.grad(with_rule(l, lambda r, g: (g, g)))(1.0),
    "rule's integer tangent": lambda l, n: l.grad(with_tangent(l, lambda p, t: (p[0], 1)))(1.0),
    "scales that do not fit": lambda l, n: l.lax.scaled_dot(n.asarray(X), n.asarray(X.T), lhs_scale=np.ones((2, 2))),
    "scales of a vector": lambda l, n: l.lax.scaled_dot(n.asarray(F), n.asarray(F)),
    "matrices without batch": lambda l, n: l.nn.scaled_matmul(X, X, X, X),
    "smap along text": lambda l, n: l.smap(identity, in_axes="x", out_axes=0, axis_name="x"),
    "smap to text": lambda l, n: l.smap(identity, in_axes=0, out_axes="x", axis_name="x"),
    "smap along two axes": lambda l, n: l.smap(identity, in_axes=0, out_axes=0, axis_name=("x", "y")),
    "results of a signature": lambda l, n: n.vectorize(lambda x: (x, x), signature="()->()")(F),
    "several results": lambda l, n: n.vectorize(identity, signature="()->(),()")(F),
    "core dimensions": lambda l, n: n.vectorize(identity, signature="(n)->()")(X),
    "sizes of core dimensions": lambda l, n: n.vectorize(lambda x: x[:2], signature="(n)->(n)")(X),
    "sizes of two results": lambda l, n: n.vectorize(lambda x: (x[:2], x), signature="(n)->(k),(k)")(X),
    "one size for sizes": lambda l, n: l.lax.broadcast(F, 3),
    "one stride for strides": lambda l, n: l.lax.conv(X[None], X[None], 1, "SAME"),
    "one axis for axes": lambda l, n: l.lax.reduce(F, np.float32(0), l.lax.add, 0),
    "bins of floats": lambda l, n: n.bincount(n.asarray(F)),
    "half a diagonal": lambda l, n: n.tril(X, 0.5),
    "no step": lambda l, n: n.asarray(F)[::0],
    "another place": lambda l, n: compute_on_of(l)("nowhere").__enter__(),
    "no place": lambda l, n: compute_on_of(l)(3).__enter__(),
    "argnums twice": lambda l, n: l.grad(lambda x, y: x, argnums=(0, 0))(1.0, 2.0),
    "argnums by name": lambda l, n: l.grad(identity)(x=1.0),
    "a seed of 70 bits": lambda l, n: l.random.key(2**70),
    "a window of one": lambda l, n: l.nn.dot_product_attention(
        *[np.ones((1, 2, 1, 3), np.float32)] * 3, local_window_size=(1,)
    ),
    **{
        f"{draw} of {dtype}": lambda l, n, draw=draw, dtype=dtype: getattr(l.random, draw)(
            l.random.key(0), *([1.0] if draw in ("poisson", "geometric") else []), shape=(2,), dtype=dtype
        )
        for draw, dtype in {
            "uniform": "int32",
            "normal": "int32",
            "laplace": "complex64",
            "bits": "int32",
            "poisson": "float32",
            "geometric": "float32",
        }.items()
    },
    "no jvp": lambda l, n: l.custom_jvp(identity)(1.0),
    "no vjp": lambda l, n: l.grad(l.custom_vjp(identity))(1.0),
    "no batching rule": lambda l, n: l.vmap(l.custom_batching.custom_vmap(identity))(F),
    "an array of nothing": lambda l, n: n.array(None),
    "an array of nothings": lambda l, n: n.array([1, None]),
    "a wide integer": lambda l, n: n.array(2**31),
    "a wider integer": lambda l, n: l.jit(identity)(2**70),
    "arrays of two shapes": lambda l, n: n.array([n.ones(2), n.ones(3)]),
    "a dimension twice": lambda l, n: n.asarray(X).transpose(0, 0),
    "an axis twice": lambda l, n: n.sum(n.asarray(X), axis=(0, 0)),
    "two of one argument": lambda l, n: n.vectorize(lambda x: x, signature="(n)->()")(X, X),
    "two sizes of a window": lambda l, n: l.lax.reduce_window(F, 0.0, l.lax.add, (2, 2), (1,), "VALID"),
    "text to a callback": lambda l, n: l.pure_callback(lambda x: np.float32(1), np.float32(0), "a"),
    "a size below 0": lambda l, n: n.zeros((2, -1)),
    "an axis that is not there": lambda l, n: n.diagonal(n.asarray(X), axis1=0, axis2=5),
    "a diagonal of one axis": lambda l, n: n.diagonal(n.asarray(X), axis1=1, axis2=1),
    "a half": lambda l, n: n.repeat(n.asarray(F), 1.5),
    "three widths": lambda l, n: n.pad(n.asarray(X), (1, 2, 3)),
    "a long condition": lambda l, n: n.compress(n.ones(4, bool), n.asarray(F)),
    "weights as a mask": lambda l, n: n.sum(n.asarray(F), where=n.asarray(F)),
    "weights as a mask of max": lambda l, n: n.max(n.asarray(F), where=n.asarray(F), initial=0),
    "a matrix as a polynomial": lambda l, n: n.polydiv(n.asarray(F), n.asarray(X)),
    "halves as coordinates": lambda l, n: n.ravel_multi_index((n.asarray(F), n.asarray(F)), (9, 9)),
    "inserted at a half": lambda l, n: n.insert(n.asarray(F), 0.5, 1),
    "deleted at a half": lambda l, n: n.delete(n.asarray(F), 1.5),
    "a transform of size -1": lambda l, n: n.fft.fft(n.asarray(F), n=-1),
    "the last argument excluded": lambda l, n: n.vectorize(n.add, excluded={-1})(F, F),
    "half an argument excluded": lambda l, n: n.vectorize(n.add, excluded={0.5}),
    "starts of two dimensions": lambda l, n: l.lax.slice(F, (0, 0), (2,)),
    "half of the largest": lambda l, n: l.lax.top_k(F, 1.5),
    "contracted twice": lambda l, n: l.lax.dot_general(X, X, (((0, 0), (0, 0)), ((), ()))),
    "contracted and in a batch": lambda l, n: l.lax.dot_general(X, X, (((0,), (0,)), ((0,), (0,)))),
    "more scales than columns": lambda l, n: l.lax.linalg.householder_product(n.ones((3, 2)), n.ones(3)),
    "a key and a number": lambda l, n: l.random.key(0) == n.zeros(2, "uint32"),
    "a real function called holomorphic": lambda l, n: l.jacfwd(lambda x: x.real, holomorphic=True)(1j),
    "a real cotangent": lambda l, n: l.vjp(lambda x: x * 1j, 1.0)[1](1.0),
    "mesh axes": lambda l, n: l.sharding.Mesh(np.array(l.devices()[:1]), ("x", "y")),
}


def raised(call: Callable[[Any, Any], Any], lib: Any, numpy: Any) -> Exception:
    with pytest.raises(Exception) as caught:
        call(lib, numpy)
    return caught.value


@pytest.mark.parametrize("name", CALLS)
def test_errors_are_of_jax_types(name: str) -> None:
    ours, theirs = raised(CALLS[name], mw, mnp), raised(CALLS[name], jax, jnp)
    assert isinstance(ours, MeshwrightError), repr(ours)
    assert type(theirs).__name__ in [kind.__name__ for kind in type(ours).__mro__], f"{ours!r}, JAX {theirs!r}"
