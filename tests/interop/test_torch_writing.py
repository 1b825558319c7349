"""Ops of users that write to what they are given: rules return what that becomes."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
nn = torch.nn

import meshwright as mw  # noqa: E402
from meshwright import errors  # noqa: E402


@torch.library.custom_op("writing::add_to", mutates_args=("x",))
def add_to(x: torch.Tensor, y: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    x.add_(y * factor)
    return x.sum()


@add_to.register_fake
def _(x, y, factor=2.0):
    return x.new_empty(())


@torch.library.custom_op("writing::swap", mutates_args=("x", "z"))
def swap(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> None:
    old = x.clone()
    x.copy_(z * y)
    z.copy_(old)


@torch.library.custom_op("writing::unknown", mutates_args=("x",))
def unknown(x: torch.Tensor) -> None:
    x.zero_()


@torch.library.custom_op("writing::spread", mutates_args=("to", "all"))
def spread(x: torch.Tensor, to: torch.Tensor | None, all: list[torch.Tensor]) -> list[torch.Tensor]:
    for i, y in enumerate([*all, *([] if to is None else [to])]):
        y.mul_(i + 2).add_(x)
    return [x * 3, x - 1]


@spread.register_fake
def _(x, to, all):
    return [torch.empty_like(x), torch.empty_like(x)]


@mw.interop.torch.register("writing::spread")
def _(x, to, all):
    own = [[x * 3, x - 1], [(i + 2) * y + x for i, y in enumerate(all)]]
    return own if to is None else [*own[:1], (len(all) + 2) * to + x, own[1]]


@mw.interop.torch.register("writing::add_to")
def _(x, y, factor):
    return (x + factor * y).sum(), x + factor * y


@mw.interop.torch.register("writing::swap")
def _(x, y, z):
    return z * y, x


class Writing(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-1, 1, 3))
        self.register_buffer("total", torch.arange(3.0))

    def forward(self, x, y):
        x = x * self.w
        s = add_to(x[1:], y[1:], factor=3.0)
        add_to(self.total, y[0])
        z = x.sin()
        swap(z[:, 0], y[:, 1], x[:, 2])
        return x * s + self.total, z


def test_writes_through_views_and_to_buffers():
    module, (x, y) = Writing(), torch.linspace(-2, 3, 30).reshape(2, 5, 3)
    model = mw.from_torch(module, (x, y))
    got, buffers = model.apply(model.params, model.buffers, x.numpy(), y.numpy())
    with torch.no_grad():
        want = module(x.clone(), y)
    for a, b in zip((*got, buffers["total"]), (*want, module.total), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)

    def as_torch(w):
        x1 = x * w
        x1 = torch.cat([x1[:1], x1[1:] + 3 * y[1:]])
        s, z = x1[1:].sum(), x1.sin()
        z, x1 = torch.cat([(x1[:, 2] * y[:, 1])[:, None], z[:, 1:]], 1), torch.cat([x1[:, :2], z[:, :1]], 1)
        return (x1 * s).sum() + z.square().sum()

    def ours(params):
        a, b = model(params, x.numpy(), y.numpy())
        return a.sum() + (b * b).sum()

    want = torch.autograd.functional.jacobian(as_torch, module.w.detach())
    np.testing.assert_allclose(mw.grad(ours)(model.params)["w"], want, rtol=1e-4)


def test_ops_without_a_rule_are_named(refuses):
    class Module(nn.Module):
        def forward(self, x):
            x = x + 1
            unknown(x)
            return x

    with refuses(errors.RuleError, "writing.unknown.default", "What they write to is returned by their rules"):
        mw.from_torch(Module(), (torch.ones(3),))


def test_lists_and_what_may_be_none_are_written():
    class Module(nn.Module):
        def forward(self, x):
            a, b = x.sin(), x[1:] * 2
            outs = spread(x[:2], None, [a[1:3], b[:2]]) + spread(x[0], a[0], [b[2]])
            return outs, a, b

    module, x = Module(), torch.linspace(-2, 3, 12).reshape(4, 3)
    with torch.no_grad():
        outs, *rest = module(x)
    model = mw.from_torch(module, (x,))
    got, *others = model(model.params, x.numpy())
    for a, b in zip((*got, *others), (*outs, *rest), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_writes_where_torch_casts():
    class Module(nn.Module):
        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = x.sin()
                return add_to(y, x) * x @ x.T + y.sum()

    module, x = Module(), torch.linspace(-2, 3, 12).reshape(4, 3)
    model = mw.from_torch(module, (x,))
    with torch.no_grad():
        np.testing.assert_allclose(model(model.params, x.numpy()).astype("f4"), module(x).float(), rtol=2e-2)


SHARED = {
    "twice": lambda x: swap(x, x.cos(), x),
    "read": lambda x: add_to(x[:, 1:], x[:, :2]),
    "listed": lambda x: spread(x.cos(), None, [x, x]),
}


@pytest.mark.parametrize("name", SHARED)
def test_memory_that_is_written_to_is_given_once(name, refuses):
    class Module(nn.Module):
        def forward(self, x):
            x = x + 1
            SHARED[name](x)
            return x

    with refuses(errors.RuleError, "writing.", "twice", "clone"):
        mw.from_torch(Module(), (torch.ones(3, 3),))


@pytest.mark.parametrize("rule", [lambda x: x, lambda x: (x, x.sum())], ids=["few", "shape"])
def test_results_of_rules_that_are_not_the_ops(rule, refuses):
    @torch.library.custom_op("writing::doubled", mutates_args=("x",))
    def doubled(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + 1

    doubled.register_fake(torch.empty_like)
    mw.interop.torch.register("writing::doubled")(rule)

    class Module(nn.Module):
        def forward(self, x):
            x = x + 1
            return doubled(x) + x

    with refuses(errors.RuleError, "writing.doubled", "the rule returns", "expected"):
        model = mw.from_torch(Module(), (torch.ones(3),))
        model(model.params, np.ones(3, np.float32))
