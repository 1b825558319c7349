"""What the forward of a compiled step keeps for the backward: as little as it takes, and enough."""

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

import meshwright as mw  # noqa: E402
import meshwright.numpy as mnp  # noqa: E402
from meshwright import nn  # noqa: E402
from meshwright.core import pytree  # noqa: E402
from meshwright.interop.torch.compiled import _Compiled  # noqa: E402
from meshwright.interop.torch.kept import compiled_pair, least_kept  # noqa: E402
from meshwright.ir.jaxpr import Literal, Var  # noqa: E402
from meshwright.ir.tracing import eval_jaxpr  # noqa: E402
from meshwright.spmd.steptime.traffic import LOOP, fuses  # noqa: E402

CONSTANT = np.linspace(1, 2, 7, dtype=np.float32)


def chain(x, w):
    """The product, of halves, is less than anything that is made of it."""
    y = (x @ w).astype("bfloat16").astype("float32")
    z = mnp.tanh(y) * 2
    return z.sum(), [mnp.cos(z), z * z, mnp.broadcast_to(z.sum(0), z.shape), x]


def sums(x, w):
    """What is summed is more than the sum, and a constant is there anyway."""
    y = mnp.exp(x) * CONSTANT
    total = y.sum(1, keepdims=True)
    return y / total, [mnp.log(total) + y, mnp.broadcast_to(total, y.shape), CONSTANT, mnp.arange(5.0)[:, None] * total]


def nothing(x, w):
    return x @ w, []


def drawn(x, w):
    """Random numbers are drawn once."""
    mask = mw.random.uniform(mw.random.key(3), x.shape) < 0.5
    y = mnp.where(mask, x, 0) @ w
    return y, [mask, mnp.where(mask, 2.0, 0.0), w.T]


def ends(x, w):
    """A result, an argument and a number are kept as they are."""
    y = x @ w
    return y, [y, x, 3.0, y + 1, nn.relu(y), x]


PROGRAMS = [chain, sums, nothing, drawn, ends]


def traced(f):
    rng = np.random.default_rng(0)
    args = rng.normal(size=(5, 7)).astype(np.float32), rng.normal(size=(7, 3)).astype(np.float32)
    return mw.make_jaxpr(f)(*args), args


def enough(jaxpr, kept):
    """Whether all results behind the first can be made of values by cheap equations."""
    there = {*kept, *jaxpr.constvars}
    for eqn in jaxpr.eqns:
        if fuses(eqn) == LOOP and all(isinstance(a, Literal) or a in there for a in eqn.invars):
            there.update(eqn.outvars)
    return all(isinstance(a, Literal) or a in there for a in jaxpr.outvars[1:])


@pytest.mark.parametrize("f", PROGRAMS)
def test_no_choice_keeps_fewer_bytes_and_all_is_made_of_them(f):
    closed, args = traced(f)
    first, places, again = least_kept(closed, 1)
    outs = eval_jaxpr(first, first.consts, *args)
    made = eval_jaxpr(again, again.consts, *(outs[i] for i in places))
    for got, want in zip([outs[0], *made], eval_jaxpr(closed, closed.consts, *args), strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))

    jaxpr = closed.jaxpr
    there = {*jaxpr.invars, jaxpr.outvars[0]}
    price = lambda values: sum(0 if v in there else v.aval.nbytes for v in values)  # noqa: E731
    values = [v for v in (*jaxpr.invars, *(v for e in jaxpr.eqns for v in e.outvars)) if isinstance(v, Var)]
    ours = price([first.jaxpr.outvars[i] for i in places])
    few = (c for n in range(4) for c in itertools.combinations(values, n))
    assert ours == min(price(c) for c in few if enough(jaxpr, c))


def test_a_pair_keeps_what_the_cut_says():
    def forward(x, w):
        y, pulled = mw.vjp(lambda w: nn.gelu(x @ w).sum(), w)
        return y, pulled

    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=s).astype(np.float32) for s in [(5, 7), (7, 3)])
    first, second = compiled_pair(forward, lambda pulled, ct: pulled(ct), x, w)
    y, kept = first(x, w)
    assert sorted(k.shape for k in kept) == [(5, 3), (5, 7)]  # x, and the product
    (got,) = second(kept, np.float32(2))
    np.testing.assert_allclose(got, 2 * mw.grad(lambda w: nn.gelu(x @ w).sum())(w), rtol=1e-6)
    assert pytree.leaves(y)[0].shape == ()


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)

    def forward(self, x):
        return self.down(torch.nn.functional.gelu(self.up(x), approximate="tanh")).square().mean()


def test_a_step_keeps_products_and_what_it_was_given(monkeypatch):
    """The derivative of the activation is made again of the product before it."""
    shapes, run = [], _Compiled.run

    def noted(self, inputs):
        outs, kept = run(self, inputs)
        shapes.extend(k.shape for k in kept)
        return outs, kept

    monkeypatch.setattr(_Compiled, "run", noted)
    torch.manual_seed(0)
    block, x = Block(), torch.randn(16, 8)
    block(x).backward()
    want = [p.grad.clone() for p in block.parameters()]
    block.zero_grad()
    torch.compile(block, backend=mw.interop.torch.backend)(x).backward()
    for p, w in zip(block.parameters(), want):
        torch.testing.assert_close(p.grad, w, rtol=1e-5, atol=1e-7)
    given = {tuple(p.shape) for p in block.parameters()} | {x.shape}
    assert sorted(s for s in shapes if s not in given) == [(16, 32)] and len(shapes) <= 5


def test_what_is_kept_may_not_be_written_to():
    """An argument that is kept, in place of what is computed of it, is one that autograd watches."""
    run = torch.compile(lambda x, y: torch.exp(x).sin() * y, backend=mw.interop.torch.backend)
    x, y = (torch.randn(5, 3).requires_grad_() for _ in range(2))
    out = run(x, y)
    with torch.no_grad():
        x += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
