"""``torch.compile(backend="meshwright")``: training steps are torch's, and nothing is shared that may be written to."""

import contextlib
import copy
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
nn, F = torch.nn, torch.nn.functional

import meshwright as mw  # noqa: E402
from meshwright import errors  # noqa: E402

checkpoint = pytest.importorskip("torch.utils.checkpoint").checkpoint


@pytest.fixture(scope="module", autouse=True)
def registered():
    import torch._dynamo as dynamo

    if "meshwright" not in dynamo.list_backends(exclude_tags=()):  # installed before there was an entry point
        dynamo.register_backend(mw.interop.torch.backend, name="meshwright")
    yield
    dynamo.reset()


def compiled(module):
    return torch.compile(module, backend="meshwright")


def trained(module, run, x, labels, steps=3):
    """Losses, and what the module is after some steps with clipped gradients, which are written to in place."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(run(x), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, module.state_dict()


class Net(nn.Module):
    """Convolution, statistics that the forward writes to, a parameter used twice and one whose use has no gradient."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.shift, self.fixed = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        y = F.relu(self.norm(self.conv(x))).mean((2, 3))
        return self.head(y + self.shift + self.fixed.detach()) + self.shift.sum()


def test_training_steps_are_torchs():
    torch.manual_seed(0)
    module = Net().train()
    x, labels = torch.randn(8, 3, 8, 8), torch.randint(0, 4, (8,))
    want, state = trained(theirs := copy.deepcopy(module), theirs, x, labels)
    got, ours = trained(module, compiled(module), x, labels)
    assert got == pytest.approx(want, rel=1e-5)
    for name, value in state.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-5, atol=1e-5)
    assert module.fixed.grad is None and int(ours["norm.num_batches_tracked"]) == 3
    run, theirs = compiled(module.eval()), theirs.eval()
    for batch in (2, 5):  # further sizes are further programs
        with torch.no_grad():
            torch.testing.assert_close(run(x[:batch]), theirs(x[:batch]), rtol=1e-4, atol=1e-5)


class Threes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 3


def test_functions_graph_breaks_and_wide_types():
    def f(x, n):
        y = Threes.apply(x).double() * n
        torch._dynamo.graph_break()
        return y.cumsum(0), y.argmax()

    x = torch.randn(6, requires_grad=True)
    y, at = compiled(f)(x, 3)
    want, index = f(x, 3)
    assert y.dtype == torch.float64 and at.dtype == torch.int64 and at == index
    torch.testing.assert_close(y, want)
    got = torch.autograd.grad(y.sum(), x)[0]
    torch.testing.assert_close(got, torch.autograd.grad(want.sum(), x)[0])


class ComplexProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, w):
        ctx.save_for_backward(z, w)
        return z * z * w

    @staticmethod
    def backward(ctx, g):
        z, w = ctx.saved_tensors
        return g * (2 * z * w).conj(), g * (z * z).conj()


class Spectrum(nn.Module):
    def __init__(self, product):
        super().__init__()
        self.product = product
        self.weight = nn.Parameter(torch.randn(6, dtype=torch.cfloat))

    def forward(self, x):
        y = self.product(torch.fft.rfft(x), self.weight)
        return torch.view_as_real(y).flatten(1).tanh() + y.abs().sum() + torch.angle(y).sum()


@pytest.mark.parametrize("product", [torch.mul, ComplexProduct.apply], ids=["ops", "Function"])
def test_gradients_of_complex_numbers_are_torchs(product):
    torch.manual_seed(0)
    module, x = Spectrum(product), torch.randn(3, 10)
    module(x).square().sum().backward()
    want, module.weight.grad = module.weight.grad, None
    compiled(module)(x).square().sum().backward()
    torch.testing.assert_close(module.weight.grad, want, rtol=1e-4, atol=1e-4)
    model = mw.from_torch(module, (x,))
    array = mw.numpy.asarray(x.numpy())
    got = mw.grad(lambda params: (model(params, array) ** 2).sum())(model.params)["weight"]
    np.testing.assert_allclose(np.conj(got), want.numpy(), rtol=1e-4, atol=1e-4)  # as JAX has them


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.InstanceNorm1d])
def test_norms_write_to_their_statistics(norm):
    torch.manual_seed(0)
    module = norm(5, affine=True, track_running_stats=True, momentum=0.3).train()
    theirs, x = copy.deepcopy(module), torch.randn(3, 5, 7) + torch.arange(5)[:, None]
    model = mw.from_torch(module, (x,))
    _, after = model.apply(model.params, model.buffers, mw.numpy.asarray(x.numpy()))
    run = compiled(module)
    torch.testing.assert_close(run(x), theirs(x), rtol=1e-5, atol=1e-5)
    for name, buffer in theirs.named_buffers():
        torch.testing.assert_close(module.get_buffer(name), buffer, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(after[name], buffer.numpy(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(compiled(module.eval())(x), theirs.eval()(x), rtol=1e-5, atol=1e-5)


class Modes(nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.mode, self.linear = mode, nn.Linear(6, 6)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        if self.mode == "checkpoint":
            return checkpoint(lambda y: self.linear(y).tanh(), x, use_reentrant=False) + x
        if self.mode == "no_grad":
            return self.moved(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.moved(x)
            with torch.autocast("cpu", enabled=False):
                return y, self.linear(x)

    def moved(self, x):
        y = self.linear(x)
        with torch.no_grad():
            self.mean.copy_(y[0, 0])  # of which nothing is differentiated, though it is written to what is used below
            double = 2 * y
        return y * self.mean.sum() + double


@pytest.mark.parametrize("mode", ["checkpoint", "no_grad", "autocast"])
def test_modes(mode):
    torch.manual_seed(0)
    module, x = Modes(mode), torch.randn(3, 5, 6)
    theirs = copy.deepcopy(module)
    got, want = compiled(module)(x), theirs(x)
    rtol = 0.03 if mode == "autocast" else 1e-5
    torch.testing.assert_close(got, want, rtol=rtol, atol=rtol)  # types, too
    for outs in (got, want):
        sum(o.float().square().mean() for o in (outs if isinstance(outs, tuple) else (outs,))).backward()
    for p, q in zip(module.parameters(), theirs.parameters()):
        torch.testing.assert_close(p.grad, q.grad, rtol=rtol, atol=rtol * float(q.grad.abs().max()))
    torch.testing.assert_close(module.mean, theirs.mean, rtol=rtol, atol=rtol)


def test_values_in_autocast_have_the_types_that_dynamo_saw():
    def f(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
            with torch.autocast("cpu", enabled=False):
                z = y.float()  # another tensor, as y has 16 bits
                return y, z.mul_(2), y + 0

    x, w = torch.randn(2, 4), torch.randn(4, 3)
    torch.testing.assert_close(compiled(f)(x, w), f(x, w), rtol=0.02, atol=0.02)


OPTIMIZERS = {
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_whole_steps_of_optimizers(name):
    """Forward, backward, clipping and update in one compiled function, ten times, with a schedule and frozen parts."""

    def trained(compiles):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 3))
        module[0].bias.requires_grad_(False)
        optimizer = OPTIMIZERS[name]([p for p in module.parameters() if p.requires_grad])
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)

        def step(x, labels):
            loss = F.cross_entropy(module(x), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        run = compiled(step) if compiles else step
        losses = []
        for _ in range(10):
            losses.append(run(torch.randn(8, 6), torch.randint(0, 3, (8,))))
            schedule.step()
        return torch.stack(losses), module.state_dict()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(trained(True), trained(False), rtol=2e-4, atol=2e-5)


def test_a_caller_may_cast():
    """Each way of casting is a program of its own, values have torch's types, and parameters keep theirs."""
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3)), torch.randn(5, 6)
    theirs = copy.deepcopy(module)
    ours = compiled(module)
    for dtype in (None, torch.bfloat16, torch.float16, None):
        rtol = 0.03 if dtype else 1e-5
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            got, want = ours(x), theirs(x)
        torch.testing.assert_close(got, want, rtol=rtol, atol=rtol)
        got.float().square().mean().backward()
        want.float().square().mean().backward()
        for p, q in zip(module.parameters(), theirs.parameters()):
            torch.testing.assert_close(p.grad, q.grad, rtol=0.03, atol=0.03 * float(q.grad.abs().max()))


def test_checkpoints_may_write_to_statistics():
    x, ours, theirs = torch.randn(5, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    got = compiled(lambda x: checkpoint(ours, x, use_reentrant=False))(x)
    torch.testing.assert_close(got, theirs(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-5, atol=1e-5)


def test_sums_of_three_factors_take_any_path():
    p, x, w = torch.randn(7, 4), torch.randn(7, 6), torch.randn(4, 6, 5)
    got = compiled(lambda p, x, w: torch.einsum("be, bd, edf -> bf", p, x, w))(p, x, w)
    torch.testing.assert_close(got, torch.einsum("be,bd,edf->bf", p, x, w), rtol=1e-4, atol=1e-5)


def test_what_is_written_to_is_noticed_or_no_ones_else():
    w = torch.ones(64, requires_grad=True)
    y = compiled(lambda w: w.exp() * 2)(w)
    y.detach().add_(1)  # which is no one's but the result's
    with torch.no_grad():
        w.mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    a, b = torch.zeros(64, requires_grad=True), torch.zeros(64, requires_grad=True)
    compiled(lambda a, b: a + b)(a, b).sum().backward()
    a.grad.mul_(5)
    assert float(a.grad[0]) == 5 and float(b.grad[0]) == 1


def test_dropout_draws_from_torchs_seed():
    run = compiled(nn.Dropout(0.5).train())
    outs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs.append(run(torch.ones(256)))
    assert torch.equal(outs[0], outs[1]) and not torch.equal(outs[0], outs[2])
    assert set(outs[0].tolist()) == {0.0, 2.0} and 90 < int((outs[0] == 0).sum()) < 166


def test_what_is_not_supported_says_so(refuses):
    torch.library.define("mwtest::unknown", "(Tensor x) -> Tensor")
    torch.library.impl("mwtest::unknown", "CompositeExplicitAutograd")(lambda x: 2 * x)
    torch.library.register_fake("mwtest::unknown")(lambda x: torch.empty_like(x))
    with refuses(errors.RuleError, "mwtest.unknown", "interop.torch.register"):
        compiled(lambda x: torch.ops.mwtest.unknown(x))(torch.ones(3))


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_a_step_is_compiled_whole(name):
    """Backward and optimizer in the compiled function: its graph holds the parameters, and writes to them."""
    options = {"momentum": 0.9} if name == "SGD" else {}
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    after = []
    for how in (lambda f: f, compiled):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
        optimizer = getattr(torch.optim, name)(module.parameters(), lr=0.1, **options)

        def step(x, module=module, optimizer=optimizer):
            optimizer.zero_grad()
            loss = (module(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = how(step)
        after.append([*(run(x) for _ in range(3)), *(p.detach() for p in module.parameters())])
    for got, want in zip(after[1], after[0]):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_numbers_are_drawn_with_torchs_default_types():
    f = compiled(lambda: (torch.randint(2, 5, (1000,)), torch.randperm(7), torch.normal(3.0, 0.1, (1000,))))
    drawn, order, normal = f()
    assert drawn.dtype == order.dtype == torch.int64 and set(drawn.tolist()) == {2, 3, 4}
    assert sorted(order.tolist()) == list(range(7)) and abs(float(normal.mean()) - 3) < 0.05


def test_what_stops_in_a_transformation_leaves_no_trace():
    linear, x = nn.Linear(6, 2), torch.randn(4, 6)
    params = {k: v.detach() for k, v in linear.named_parameters()}
    grad = torch.func.grad(lambda p, x: torch.func.functional_call(linear, p, (x,)).sum())
    with contextlib.suppress(errors.MeshwrightError):
        compiled(lambda x: torch.func.vmap(grad, (None, 0))(params, x)["weight"])(x)
    x.requires_grad_()
    checkpoint(torch.sin, x, use_reentrant=False).sum().backward()
    torch.testing.assert_close(x.grad, torch.cos(x.detach()))


def clamped(x, w):
    with torch.no_grad():
        w.clamp_(-0.5, 0.5)
    y = (x.detach() * w).sum()
    with torch.no_grad():
        w.mul_(2)
    return y + (w * x).cos().sum()


def scaled(x, w):
    y = x.sin() * w
    with torch.no_grad():
        y.mul_(2)
    return y * y


def masked(x, w):
    y = x * w
    with torch.no_grad():
        y[y < 0] = float("-inf")
    return y.exp()


def through_views(x, w):
    y = x.sin() * w
    row, turned = y[0], y.t()
    with torch.no_grad():
        row.mul_(5)
        y.view(-1)[1:3] = 0
        total = turned.sum()
    return y * y + total, row.cos(), turned * turned


def through_detached(x, w):
    y = x.sin() * w
    y.detach()[0] = 7.0
    return y * y


@pytest.mark.parametrize("f", [clamped, scaled, masked, through_views, through_detached])
def test_what_is_written_without_gradients_keeps_those_that_it_had(f):
    torch.manual_seed(0)
    x, w = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    results = []
    for run in (f, compiled(f)):
        given = [x.clone().requires_grad_(), w.clone().requires_grad_()]
        outs = run(*given)
        sum(o.sin().sum() for o in (outs if isinstance(outs, tuple) else [outs])).backward()
        results.append([outs, given, [g.grad for g in given]])
    torch.testing.assert_close(results[1], results[0])


def test_statistics_that_are_written_without_gradients_and_read_again():
    class Running(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x):
            y = self.linear(x)
            with torch.no_grad():
                self.mean.mul_(0.9).add_(0.1 * y.mean(0))
            return y - self.mean

    module, x = Running(), torch.randn(4, 3)
    want, theirs = copy.deepcopy(module)(x), compiled(copy.deepcopy(module))(x)
    torch.testing.assert_close(theirs, want)
    model = mw.from_torch(module, (x,))
    ours, buffers = model.apply(model.params, model.buffers, x.numpy())
    np.testing.assert_allclose(ours, want.detach().numpy(), rtol=1e-5, atol=1e-6)
    assert np.abs(buffers["mean"]).max() > 0
    grads = mw.grad(lambda p: (model(p, x.numpy()) ** 2).sum())(model.params)
    want.square().sum().backward()
    by_torch = copy.deepcopy(module)
    by_torch(x).square().sum().backward()
    np.testing.assert_allclose(grads["linear.weight"], by_torch.linear.weight.grad.numpy(), rtol=1e-4, atol=1e-5)


def _added(total, x):
    total.add_(x * 2)
    return total.sum()


def _tripled(y, _):
    y.mul_(3)
    return y.sum()


def _tripled_row(y, _):
    y[0].mul_(3)
    return y.sum()


def _tripled_unseen(y, _):
    with torch.no_grad():
        y.mul_(3)
    return y.sum()


@pytest.mark.parametrize("f", [_added, _tripled, _tripled_row, _tripled_unseen])
def test_arguments_that_are_written_to_have_the_gradients_of_that(f):
    results = []
    for run in (f, compiled(f)):
        x = torch.arange(6.0).reshape(3, 2).requires_grad_()
        y = torch.zeros(2, 3) if f is _added else (x * 2).t()
        out = run(y, x.t())
        (out + (y * y).sum()).backward()
        results.append((x.grad, y.detach(), y.requires_grad))
    torch.testing.assert_close(results[1], results[0])


def test_derivatives_of_derivatives_are_refused_not_forgotten(refuses):
    x = torch.ones(3, requires_grad=True)
    y = compiled(lambda x: x.sin().sum())(x)
    with refuses(errors.RuleError, "create_graph=True", "meshwright.grad"):
        torch.autograd.grad(y, x, create_graph=True)


def _hooked(x):
    y = x.sin()
    y.register_hook(lambda g: g * 5)
    return y * y


def test_hooks_on_gradients_that_a_forward_registers_are_refused(refuses):
    class Hooked(nn.Linear):
        def forward(self, x):
            return _hooked(super().forward(x))

    with refuses(errors.RuleError, "register_hook", "autograd.Function", "test_torch_compile.py", "_hooked"):
        compiled(_hooked)(torch.ones(3, requires_grad=True))
    with refuses(errors.RuleError, "register_hook", "autograd.Function", "test_torch_compile.py", "forward"):
        mw.from_torch(Hooked(3, 3), (torch.ones(2, 3),))


@pytest.mark.parametrize(
    ("register", "named"),
    [
        (lambda m: m[0].register_full_backward_pre_hook(lambda m, g: None), "module 0"),
        (lambda m: m[1].register_full_backward_hook(lambda m, given, g: None), "module 1"),
        (lambda m: m[1].weight.register_hook(lambda g: g * 2), "parameter 1.weight"),
        (lambda m: m[1].bias.register_post_accumulate_grad_hook(lambda p: None), "parameter 1.bias"),
        (lambda m: nn.modules.module.register_module_full_backward_pre_hook(lambda m, g: None), "all modules"),
    ],
)
def test_hooks_on_gradients_that_a_module_has_are_told_of(register, named):
    module, x = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), torch.ones(2, 3)
    hook = register(module)
    with pytest.warns(errors.DerivativeWarning, match=named):
        mw.from_torch(module, (x,))
    hook.remove()
    with warnings.catch_warnings():
        warnings.simplefilter("error", errors.DerivativeWarning)
        mw.from_torch(module, (x,))


@pytest.mark.parametrize("given", [{"mode": "max-autotune"}, {"options": {"max_autotune": True}}])
def test_what_is_inductors_is_refused(given):
    step = torch.compile(torch.nn.Linear(3, 2), backend="meshwright", **given)
    with pytest.raises(
        Exception, match=rf"expected no mode and no options, which are inductor's, got {next(iter(given))}="
    ):
        step(torch.ones(4, 3))


def _without_gradients(x, w):
    y = x @ w
    with torch.no_grad():
        norm, large = y.norm(), (y * 2)[0]
        with torch.enable_grad():
            z = y * norm
    return y / norm, norm, large, z


def test_results_of_no_grad_have_no_gradients():
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    found, wanted = compiled(_without_gradients)(x, w), _without_gradients(x, w)
    assert [o.requires_grad for o in found] == [o.requires_grad for o in wanted] == [True, False, False, True]
    found[1].numpy()
    grads, expected = (torch.autograd.grad(o[0].sum() + o[3].sum(), (x, w)) for o in (found, wanted))
    for got, want in zip((*found, *grads), (*wanted, *expected)):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, foreach=True),
        lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, foreach=True),
        lambda p: torch.optim.NAdam(p, foreach=True),
    ],
)
def test_steps_of_optimizers_over_lists_of_tensors(make):
    def trained(wrapped):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = make(module.parameters())

        def update():
            nn.utils.clip_grad_norm_(module.parameters(), 0.5, foreach=True)
            optimizer.step()

        update = wrapped(update)
        for _ in range(3):
            optimizer.zero_grad()
            module(torch.randn(4, 5)).pow(2).mean().backward()
            update()
        return [*module.parameters(), *(v for state in optimizer.state.values() for v in state.values())]

    for got, want in zip(trained(compiled), trained(lambda f: f), strict=True):
        torch.testing.assert_close(got, want)


def test_operations_on_lists_of_tensors():
    def run(xs, ys):
        a = torch._foreach_add(xs, ys, alpha=2)
        b = torch._foreach_mul(a, 3.0)
        torch._foreach_mul_(b, [2.0, 3.0])
        s = torch._foreach_addcdiv(a, b, torch._foreach_exp(ys), [1.0, 2.0])
        bounded = torch._foreach_maximum(s, 0.5), torch._foreach_minimum(s, [0.1, 0.2])
        torch._foreach_copy_(ys, s)
        torch._foreach_zero_(xs)
        others = torch._foreach_norm(b, 1), torch._foreach_lerp(a, b, 0.3), torch._foreach_pow(2.0, s)
        return xs, ys, b, *bounded, *others

    args = [torch.randn(3), torch.randn(2, 2)], [torch.randn(3), torch.randn(2, 2)]
    again = copy.deepcopy(args)
    for got, want in zip(compiled(run)(*args), run(*again), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}])
def test_layers_of_encoders_outside_of_training(options):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options).eval()
    x, padding = torch.randn(3, 5, 8), torch.zeros(3, 5, dtype=torch.bool)
    padding[1:, 4] = True
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    run = compiled(layer)
    with torch.no_grad():
        for masks in ({}, {"src_mask": causal}, {"src_key_padding_mask": padding},
                      {"src_mask": causal.isinf(), "src_key_padding_mask": padding}):  # fmt: skip
            torch.testing.assert_close(run(x, **masks), layer(x, **masks), rtol=1e-5, atol=1e-5)


def test_what_the_backward_does_not_need_may_be_written_to():
    base = torch.randn(80)
    x, moved, factor = torch.randn(64, requires_grad=True), torch.randn(64), base[16:]  # aligned, so not copied
    run = compiled(lambda x, moved, factor: (x * factor + moved).sum())
    loss = run(x, moved, factor)
    moved.mul_(2)
    loss.backward()
    torch.testing.assert_close(x.grad, factor)
    loss = run(x, moved, factor)
    base[20] = 7  # in the memory of the factor, which the derivative is
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
