"""``autograd.Function``: its own backward, also differentiated, or a refusal; never a wrong gradient."""

import threading
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
nn, F = torch.nn, torch.nn.functional

from test_torch_rows import Of  # noqa: E402

import meshwright as mw  # noqa: E402
from meshwright import errors  # noqa: E402


class Sines(torch.autograd.Function):
    """Saves an argument, an intermediate value and a number; a result has no derivative; no sine in its backward."""

    @staticmethod
    def forward(ctx, x, w, n):
        y = x.sin()
        ctx.save_for_backward(x, y, w)
        ctx.doubled, ctx.n = x * 2, n
        positive = x > 0
        ctx.mark_non_differentiable(positive)
        return y * w * n, positive

    @staticmethod
    def backward(ctx, g, positive):
        x, y, _ = ctx.saved_tensors
        return g * 7 * y * x + ctx.doubled, torch.tanh(g * y) * ctx.n, None


class Exp(torch.autograd.Function):
    """Saves its result."""

    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        return 3 * g * ctx.saved_tensors[0].clamp(max=2.0)


class Both(nn.Module):
    sines = Sines.apply  # bound early: the class is found all the same

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        y, positive = self.sines(self.linear(x), self.linear.weight.sum(0), 3.0)
        return torch.where(positive, Exp.apply(y), y)


def same(got, want, tolerance=1e-6):
    want = want.detach().numpy()
    assert np.abs(np.asarray(got) - want).max() <= tolerance * max(np.abs(want).max(), 1)


@pytest.mark.parametrize("dynamic", [None, ({0: "batch"},)])
def test_gradients_are_those_of_the_backward(dynamic):
    torch.manual_seed(0)
    module = Both()
    model = mw.from_torch(module, (torch.randn(5, 3),), dynamic=dynamic)
    x = torch.randn(7 if dynamic else 5, 3, requires_grad=True)
    loss = lambda p, x: (model(p, x) ** 2).sum()  # noqa: E731
    of_params, of_x = mw.jit(mw.grad(loss, argnums=(0, 1)))(model.params, x.detach().numpy())
    (module(x) ** 2).sum().backward()
    same(of_x, x.grad)
    for name, p in module.named_parameters():
        same(of_params[name], p.grad)
    lines = {str(e.source) for e in mw.make_jaxpr(mw.grad(loss))(model.params, x.detach().numpy()).jaxpr.eqns}
    assert all("test_torch_functions.py" in line for line in lines)


class Chosen(nn.Module):
    def __init__(self, function, *more):
        super().__init__()
        self.function, self.more = function, more

    def forward(self, x):
        out = self.function.apply(x, *self.more)
        return out[0] if isinstance(out, tuple) else out


class Saved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return 3 * g * ctx.saved_tensors[0] ** 2


def test_derivatives_of_a_backward_are_torchs():
    x = torch.tensor([-1.5, 0.3, 1.1])
    for function, more in ((Exp, ()), (Saved, ()), (Sines, (torch.ones(3), 2.0))):
        module = Chosen(function, *more)
        model = mw.from_torch(module, (x,))
        t = x.clone().requires_grad_()
        first = torch.autograd.grad((module(t) ** 2).sum(), t, create_graph=True)[0]
        (want,) = torch.autograd.grad((first**2).sum(), t)
        inner = mw.grad(lambda x, model=model: (model({}, x) ** 2).sum())
        same(mw.grad(lambda x, inner=inner: (inner(x) ** 2).sum())(x.numpy()), want)


def test_functions_in_checkpoints_split_over_devices_and_batched():
    class Batched(nn.Module):
        def forward(self, x):
            y = torch.utils.checkpoint.checkpoint(Saved.apply, x, use_reentrant=False)
            return Exp.apply(y)

    module, x = Batched(), torch.randn(8, 3, requires_grad=True)
    model = mw.from_torch(module, (x,))
    module(x).sum().backward()
    array = x.detach().numpy()
    split = mw.NamedSharding(mw.make_mesh((4,), ("data",)), mw.P("data"))
    gradient = mw.jit(mw.grad(lambda x: model({}, x).sum()), in_shardings=split)
    same(gradient(array), x.grad)
    part = gradient.lower(array).partition()
    part.verify()
    assert part.collectives == []
    each = mw.vmap(mw.grad(lambda x: mw.from_torch(Chosen(Exp), (torch.ones(3),))({}, x).sum()))(array)
    x.grad = None
    Exp.apply(x).sum().backward()
    same(each, x.grad)


class Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.kept = (torch.rand_like(x) > 0.5).float()
        return x * ctx.kept

    @staticmethod
    def backward(ctx, g):
        return 5 * g * ctx.kept


def test_the_backward_sees_the_numbers_that_the_forward_drew():
    model = mw.from_torch(Chosen(Dropped), (torch.ones(64),))
    x = np.arange(1.0, 65, dtype="f4")
    y, back = mw.vjp(lambda x: model({}, x, key=mw.random.key(3)), x)
    (g,) = back(np.ones(64, "f4"))
    np.testing.assert_array_equal(np.asarray(g), 5 * (np.asarray(y) != 0))
    assert 10 < (np.asarray(y) != 0).sum() < 54


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return 2 * g


class OfNumpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(x.detach().numpy() * 2)

    @staticmethod
    def backward(ctx, g):
        return 2 * g


class Captures(torch.autograd.Function):
    table = None

    @staticmethod
    def forward(ctx, x):
        return x * Captures.table

    @staticmethod
    def backward(ctx, g):
        return g * Captures.table


class Capturing(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        Captures.table = self.scale * 2
        return Captures.apply(x)


@pytest.mark.parametrize("module", [Chosen(InPlace), Chosen(OfNumpy), Capturing()])
def test_what_cannot_be_known_is_refused(module, refuses):
    with refuses(errors.RuleError, "autograd.Function", "test_torch_functions"):
        mw.from_torch(module, (torch.ones(3),))


class Checkpointed(nn.Module):
    """A checkpoint that is an op of torch's autograd, as all were once."""

    def __init__(self, whole):
        super().__init__()
        self.linear, self.whole = nn.Linear(3, 3), whole

    def forward(self, x):
        given = x if self.whole else self.linear(x)
        y = torch.utils.checkpoint.checkpoint(lambda z: self.linear(z).sin(), given, use_reentrant=True)
        return self.linear(y.tanh())


def test_reentrant_checkpoints_have_the_derivative_of_their_function(refuses):
    module, x = Checkpointed(whole=False), torch.randn(5, 3)
    model = mw.from_torch(module, (x,))
    gradients = mw.grad(lambda p: (model(p, x.numpy()) ** 2).sum())(model.params)
    (module(x) ** 2).sum().backward()
    for name, p in module.named_parameters():
        same(gradients[name], p.grad, 1e-5)
    with refuses(errors.RuleError, "use_reentrant=False", "test_torch_functions"):
        mw.from_torch(Checkpointed(whole=True), (x,))
    model = mw.from_torch(Checkpointed(whole=True), (x.clone().requires_grad_(),))
    assert np.abs(mw.grad(lambda p: model(p, x.numpy()).sum())(model.params)["linear.weight"]).max() > 0


class NestedCheckpoints(nn.Module):
    """Checkpoints in one another, whose hooks note what is saved for the backward, without gradients."""

    def __init__(self, depth):
        super().__init__()
        self.linear, self.depth = nn.Linear(3, 3), depth

    def forward(self, x):
        def layers(y, depth):
            inner = partial(torch.utils.checkpoint.checkpoint, layers, depth=depth - 1, use_reentrant=False)
            return self.linear(y).sin() + (inner(2 * y) if depth else 0)

        return self.linear(layers(x, self.depth))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_checkpoints_in_checkpoints_have_gradients(depth):
    module, x = NestedCheckpoints(depth), torch.randn(5, 3)
    model = mw.from_torch(module, (x,))
    gradients = mw.grad(lambda p: (model(p, x.numpy()) ** 2).sum())(model.params)
    (module(x) ** 2).sum().backward()
    for name, p in module.named_parameters():
        same(gradients[name], p.grad, 1e-5)


class Packed(nn.Module):
    """Saves what its Function does in a form of its own."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        def pack(saved):
            with torch.no_grad():
                return saved.clone()

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
            y = torch.utils.checkpoint.checkpoint(self.linear, self.linear(x).sin(), use_reentrant=False)
        return self.linear(y.tanh())


def test_hooks_of_what_is_saved_leave_gradients():
    module, x = Packed(), torch.randn(5, 3)
    model = mw.from_torch(module, (x,))
    gradients = mw.grad(lambda p: (model(p, x.numpy()) ** 2).sum())(model.params)
    (module(x) ** 2).sum().backward()
    for name, p in module.named_parameters():
        same(gradients[name], p.grad, 1e-5)


class Views(torch.autograd.Function):
    """Writes to parts of copies, forward and backward, of which torch takes the results anew in the end."""

    @staticmethod
    def forward(ctx, x, a):
        y, b = x.clone(), a.clone()
        y[:, 1].add_(b[:, 1] * y[:, 0])
        ctx.save_for_backward(b, y)
        return y.view(2, -1)[:, :4]

    @staticmethod
    def backward(ctx, g):
        b, y = ctx.saved_tensors
        g = F.pad(g, (0, 2)).view(2, 3, 2).clone()
        g[:, 0].add_(b[:, 1] * g[:, 1])
        return g, g * y


def test_views_of_what_a_forward_wrote_to_are_results():
    module, x, a = Of(Views.apply), *torch.randn(2, 2, 3, 2).requires_grad_().unbind()
    x, a = x.detach().requires_grad_(), a.detach().requires_grad_()
    model = mw.from_torch(module, (x, a))
    got = mw.grad(lambda x, a: (model({}, x, a) ** 2).sum(), argnums=(0, 1))(x.detach().numpy(), a.detach().numpy())
    (module(x, a) ** 2).sum().backward()
    for ours, t in zip(got, (x, a)):
        same(ours, t.grad, 1e-5)


def test_other_threads_go_on_as_they_are():
    """While a module is exported, another thread saves tensors, checkpoints, and applies a Function."""
    other, seen = nn.Linear(3, 3), []

    def work():
        x = torch.ones(2, 3, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append("saved") or t, lambda t: t):
            other(x).exp()
        seen.append(torch.utils.checkpoint.checkpoint(other, x, use_reentrant=True).grad_fn.name())

    class Beside(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            return torch.utils.checkpoint.checkpoint(self.linear, x, use_reentrant=False)

    module, x = Beside(), torch.randn(2, 3)
    model = mw.from_torch(module, (x,))
    assert "saved" in seen and "CheckpointFunctionBackward" in seen
    same(model(model.params, x.numpy()), module.linear(x).detach(), 1e-5)


class OfWeights(torch.autograd.Function):
    """Has a derivative by its weights only, and says so in its forward, as gpytorch's kernels do."""

    @staticmethod
    def forward(ctx, x, w):
        if ctx.needs_input_grad[0]:
            raise RuntimeError("no gradients by x")
        ctx.save_for_backward(x)
        return x * w

    @staticmethod
    def backward(ctx, given):
        (x,) = ctx.saved_tensors
        return None, (given * x).sum(0)


class Weighted(nn.Module):
    def __init__(self, asks):
        super().__init__()
        self.w, self.asks = nn.Parameter(torch.full((3,), 2.0)), asks

    def forward(self, x):
        return x * self.w if self.asks and x.requires_grad else OfWeights.apply(x, self.w)


@pytest.mark.parametrize(
    ("asks", "message"),
    [
        (False, r"OfWeights has no derivative .*no gradients by x\n.*requires_grad_"),
        (True, r"Weighted asks, .* argument x has a gradient.*requires_grad_"),
    ],
)
def test_functions_have_the_gradients_that_they_were_exported_for(asks, message):
    module, x = Weighted(asks), torch.rand(5, 3)
    model = mw.from_torch(module, (x,))
    loss = lambda p, x: (model(p, x) ** 2).sum()  # noqa: E731
    module(x).square().sum().backward()
    np.testing.assert_allclose(mw.jit(mw.grad(loss))(model.params, x.numpy())["w"], module.w.grad, rtol=1e-5)
    with pytest.raises(errors.RuleError, match=message):
        mw.grad(loss, argnums=1)(model.params, x.numpy())
    if not asks:
        return
    model = mw.from_torch(module, (x.requires_grad_(),))
    module(x).square().sum().backward()
    got = mw.grad(lambda p, x: (model(p, x) ** 2).sum(), argnums=1)(model.params, x.detach().numpy())
    np.testing.assert_allclose(got, x.grad, rtol=1e-5)
