"""``debug_key_reuse``: what uses a key twice raises, as in JAX; what does not, does not."""

from __future__ import annotations

import inspect
from functools import partial

import jax
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.errors import KeyReuseError


def both(p, k):
    return p.random.normal(k) + p.random.uniform(k)


def next_key(p):
    def step(k, _):
        k, new = p.random.split(k)
        return k, p.random.normal(new)

    return step


def parts(p, k, first, second):
    ks = p.random.split(k)
    return p.random.normal(ks[first]) + p.random.normal(ks[second])


def unpacked(p, k):
    a, b = p.random.split(k)
    return p.random.normal(a) + p.random.normal(b)


REUSED = {
    "two draws": both,
    "split and draw": lambda p, k: p.random.normal(p.random.split(k)[0]) + p.random.normal(k),
    "a part twice": lambda p, k: parts(p, k, 1, 1),
    "in each step": lambda p, k: p.lax.scan(lambda c, _: (c, p.random.normal(k)), 0, None, length=3)[1],
    "carried": lambda p, k: p.lax.scan(lambda c, _: (c, p.random.normal(c)), k, None, length=3)[1],
    "while": lambda p, k: p.lax.while_loop(lambda c: c < 0.5, lambda c: c + abs(p.random.normal(k)), 0.0),
    "after a loop": lambda p, k: p.lax.scan(next_key(p), k, None, length=3)[1] + p.random.normal(k),
    "after a branch": lambda p, k: (
        p.lax.cond(True, p.random.normal, lambda k: 0.0, k) + p.random.normal(k)
    ),
    "in a branch": lambda p, k: p.lax.cond(True, lambda k: both(p, k), lambda k: 0.0, k),
    "mapped": lambda p, k: p.vmap(lambda k: both(p, k))(p.random.split(k, 3)),
    "mapped and a part": lambda p, k: (
        lambda ks: p.vmap(p.random.normal)(ks) + p.random.normal(ks[0])
    )(p.random.split(k, 3)),
    "jitted": lambda p, k: (lambda f: f(k) + f(k))(p.jit(p.random.normal)),
    "given back": lambda p, k: p.random.normal(p.jit(lambda k: (p.random.normal(k), k))(k)[1]),
}  # fmt: skip
ONCE = {
    "parts": lambda p, k: parts(p, k, 0, 1),
    "unpacked": unpacked,
    "folded": lambda p, k: p.random.normal(k) + p.random.normal(p.random.fold_in(k, 1)),
    "folded in a loop": lambda p, k: p.lax.fori_loop(
        0, 3, lambda i, c: c + p.random.normal(p.random.fold_in(k, i)), 0.0
    ),
    "cloned": lambda p, k: p.random.normal(k) + p.random.normal(p.random.clone(k)),
    "carried": lambda p, k: p.lax.scan(next_key(p), k, None, length=3)[1],
    "scanned": lambda p, k: p.lax.scan(lambda c, k: (c, p.random.normal(k)), 0, p.random.split(k, 3))[1],
    "branches": lambda p, k: p.lax.cond(True, p.random.normal, p.random.uniform, k),
    "words": lambda p, k: both(p, p.random.key_data(k)),
    "gradient": lambda p, k: p.grad(lambda x: x * p.random.normal(k))(1.0),
}  # fmt: skip


@pytest.mark.parametrize("whole", [False, True], ids=["", "jit"])
@pytest.mark.parametrize("name", REUSED)
def test_what_uses_a_key_twice(name, whole):
    for p, error in ((jax, jax.errors.KeyReuseError), (mw, KeyReuseError)):
        run = partial(REUSED[name], p)
        with p.debug_key_reuse(True), pytest.raises(error):
            (p.jit(run) if whole else run)(p.random.key(0))
    mw.jit(lambda k: REUSED[name](mw, k))(mw.random.key(0))  # the traces are apart


@pytest.mark.parametrize("whole", [False, True], ids=["", "jit"])
@pytest.mark.parametrize("name", ONCE)
def test_what_uses_a_key_once(name, whole):
    drawn = []
    for p in (jax, mw):
        run = partial(ONCE[name], p)
        with p.debug_key_reuse(True):
            drawn.append((p.jit(run) if whole else run)(p.random.key(0)))
    np.testing.assert_allclose(drawn[1], drawn[0], rtol=1e-5)


GIVEN = {
    "a": 2.0, "alpha": mnp.ones(3), "b": 2.0, "concentration": 2.0, "cov": mnp.eye(2), "d": 3, "df": 3.0, "dfden": 3.0,
    "dfnum": 3.0, "lam": 2.0, "left": 0.0, "loc": 0.0, "logits": mnp.ones(3), "lower": -1.0, "maxval": 3, "minval": 0,
    "mean": mnp.zeros(2), "mode": 1.0, "n": 3, "p": 0.5, "right": 2.0, "scale": 1.0, "upper": 1.0, "x": mnp.arange(3.0),
}  # fmt: skip
DRAWS = [
    name
    for name in mw.random.__all__
    if "key" in inspect.signature(f := getattr(mw.random, name)).parameters
    and callable(f) and name not in ("clone", "fold_in", "key_data", "key_impl")
]  # fmt: skip


@pytest.mark.parametrize("name", DRAWS)
def test_draws_use_their_key_once(name):
    needed = [p for p in inspect.signature(getattr(mw.random, name)).parameters.values() if p.default is p.empty][1:]
    args = [(3,) if p.name == "shape" else GIVEN[p.name] for p in needed]
    if name == "multinomial":
        args[-1] = mnp.array([0.5, 0.5])
    if name == "choice":
        args = [5]
    key = mw.random.key(0)
    with mw.debug_key_reuse(True):
        getattr(mw.random, name)(key, *args)
        with pytest.raises(KeyReuseError, match=r"random.split"):
            mw.random.uniform(key)
