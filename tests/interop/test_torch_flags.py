"""Forwards of PyTorch's that ask whether a tensor has a gradient."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
nn = torch.nn

import meshwright as mw  # noqa: E402
from meshwright import errors  # noqa: E402


class Rounded(nn.Module):
    """Straight-through where the input has a gradient, as vector quantizers have it."""

    def __init__(self, ask=lambda h: h.requires_grad):
        super().__init__()
        self.layer, self.ask = nn.Linear(3, 3), ask

    def forward(self, x):
        h = x * 2
        q = h.round()
        return self.layer(h + (q - h).detach() if self.ask(h) else q)


def squares(model):
    return lambda p, x: (model(p, x) ** 2).sum()


@pytest.mark.parametrize("ask", [lambda h: h.requires_grad, lambda h: not h.is_leaf, lambda h: h.grad_fn is not None])
@pytest.mark.parametrize("wrap", [lambda f: f, mw.jit])
def test_a_gradient_that_the_forward_was_told_there_is_none_of(ask, wrap):
    module, x = Rounded(ask), torch.randn(2, 3)
    model = mw.from_torch(module, (x,))
    got = wrap(mw.grad(squares(model)))(model.params, x.numpy())  # as in torch, where x has none
    module(x).square().sum().backward()
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(got[name], parameter.grad.numpy(), rtol=1e-5, atol=1e-5)
    for derivative in (
        lambda p, x: mw.grad(squares(model), argnums=1)(p, x),
        lambda p, x: mw.vjp(lambda x: model(p, x), x),
        lambda p, x: mw.jvp(lambda x: model(p, x), (x,), (x,)),
    ):
        with pytest.raises(errors.RuleError, match=r"argument x has a gradient.*requires_grad_\(\)"):
            wrap(derivative)(model.params, x.numpy())


def test_a_gradient_that_the_example_has():
    module, x = Rounded(), torch.randn(2, 3, requires_grad=True)
    model = mw.from_torch(module, (x,))
    got = mw.grad(squares(model), argnums=1)(model.params, x.detach().numpy())
    module(x).square().sum().backward()
    assert abs(x.grad).max() > 0
    np.testing.assert_allclose(got, x.grad.numpy(), rtol=1e-5, atol=1e-5)


def test_tensors_that_have_no_gradient_anyway():
    """Those made without gradients, of integers, and detached: nothing is refused."""

    class Asks(nn.Module):
        def forward(self, x, i):
            with torch.no_grad():
                low = x.amin()
                written = x * 1
                written += x
            kept = torch.zeros(2, 3)
            kept[0] = written[0]
            asked = (low, written, kept, x.detach() * 2, i * 1.0, (x > 0).float())
            return x * 3 if not any(t.requires_grad for t in asked) and torch.is_grad_enabled() else x

    model = mw.from_torch(Asks(), (torch.randn(2, 3), torch.arange(3)))
    got = mw.grad(lambda x: model({}, x, np.arange(3)).sum())(np.ones((2, 3), np.float32))
    np.testing.assert_array_equal(got, np.full((2, 3), 3.0))


def test_what_is_written_to_in_place_has_the_gradient_of_what_is_written():
    class Asks(nn.Module):
        def forward(self, x):
            kept = torch.zeros(2, 3)
            kept[0] = x[0]
            return kept * 2 if kept.requires_grad else kept

    x = torch.randn(2, 3)
    model = mw.from_torch(Asks(), (x,))
    np.testing.assert_allclose(model({}, x.numpy())[0], x[0].numpy())
    with pytest.raises(errors.RuleError, match="argument x has a gradient"):
        mw.grad(lambda x: model({}, x).sum())(x.numpy())


def test_frozen_parameters_that_are_asked_for():
    class Asks(nn.Module):
        def __init__(self):
            super().__init__()
            self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
            self.other = nn.Parameter(torch.ones(3), requires_grad=False)
            self.free = nn.Parameter(torch.ones(3))

        def forward(self, x):
            scale = self.frozen * 2 if self.frozen.requires_grad else self.frozen.exp()
            return x * scale * self.free * self.other * (2 if self.free.requires_grad else 1)

    module, x = Asks(), torch.randn(2, 3)
    model = mw.from_torch(module, (x,))
    module(x).sum().backward()

    def loss(p, x):
        return model({**model.params, **p}, x).sum()

    got = mw.grad(loss)({"free": model.params["free"]}, x.numpy())["free"]
    np.testing.assert_allclose(got, module.free.grad.numpy(), rtol=1e-5)
    mw.grad(loss)({"other": model.params["other"]}, x.numpy())
    with pytest.raises(errors.RuleError, match=r"parameter frozen had none.*frozen.requires_grad_\(\)"):
        mw.grad(loss)({"frozen": model.params["frozen"]}, x.numpy())


def test_the_arguments_that_a_tensor_comes_from():
    """With buffers, keywords and trees before them."""

    class Asks(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(3))
            self.register_buffer("constant", torch.ones(3), persistent=False)
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, pair, *, mask):
            shift = torch.tensor([1.0, 2.0, 3.0])
            h = pair["b"] * self.scale + self.constant + shift
            return pair["a"] * self.weight * mask + (h if h.requires_grad else h * 1)

    a = torch.randn(2, 3)
    model = mw.from_torch(Asks(), ({"a": a, "b": a * 2},), {"mask": a * 3})
    array, f = a.numpy(), lambda a, b, mask: model(model.params, {"a": a, "b": b}, mask=mask).sum()
    mw.grad(f, argnums=(0, 2))(array, array, array)
    with pytest.raises(errors.RuleError, match=r"argument pair.*b"):
        mw.grad(f, argnums=1)(array, array, array)


def test_a_flag_that_is_asked_for_where_torch_maps_over_a_batch():
    class Asks(nn.Module):
        def forward(self, x):
            return torch.vmap(lambda row: row * 2 if (row * row).requires_grad else row)(x)

    x = torch.randn(2, 3)
    model = mw.from_torch(Asks(), (x,))
    np.testing.assert_allclose(model({}, x.numpy()), x.numpy())
    with pytest.raises(errors.RuleError, match="argument x has a gradient"):
        mw.grad(lambda x: model({}, x).sum())(x.numpy())
