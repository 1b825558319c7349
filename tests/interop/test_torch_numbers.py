# ruff: noqa: E501
"""Python's floats that change from call to call, and what ``item()`` reads: numbers that only a run knows."""

import math

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
nn, F = torch.nn, torch.nn.functional

import meshwright as mw  # noqa: E402
from meshwright import errors  # noqa: E402

G = torch.Generator().manual_seed(0)
X = torch.randn(3, 4, generator=G)
Y = torch.rand(3, 4, generator=G) + 0.1
SQUARE = torch.randn(4, 4, generator=G)
WHOLE = torch.arange(12).reshape(3, 4)


def compiled(f):
    return torch.compile(f, backend="meshwright")


@pytest.fixture(autouse=True)
def forgotten(recwarn):
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


FUNCTIONS = {
    "product": lambda x, s: x * s, "left": lambda x, s: s / (x + 4) - s, "alpha": lambda x, s: x.add(Y, alpha=s), "rsub": lambda x, s: torch.rsub(x, s, alpha=s),
    "integers": lambda x, s: (WHOLE * s, WHOLE + s, WHOLE / s, x), "bools": lambda x, s: ((WHOLE > 3) * s, x), "doubles": lambda x, s: x.double() * s,
    "halves": lambda x, s: x.half() * s, "bfloat16": lambda x, s: x.bfloat16() + s, "complex": lambda x, s: torch.view_as_real(torch.complex(x, Y) * s),
    "no dimension": lambda x, s: (x[0, 0] * s, WHOLE[0, 1] * s), "compared": lambda x, s: ((x > s) * x, x), "power": lambda x, s: Y**s + s**x, "float_power": lambda x, s: torch.float_power(Y, s) * x,
    "clamp": lambda x, s: x.clamp(-s, s), "clamped below": lambda x, s: x.clamp_min(s), "full": lambda x, s: x + torch.full((3, 1), s) + torch.full_like(x, s) + x.new_full((4,), s),
    "new": lambda x, s: x * torch.tensor(s), "lerp": lambda x, s: torch.lerp(x, Y, s), "addcmul": lambda x, s: torch.addcmul(x, x, Y, value=s), "addcdiv": lambda x, s: torch.addcdiv(x, x, Y, value=s),
    "addmm": lambda x, s: torch.addmm(x, x, SQUARE, beta=s, alpha=s), "baddbmm": lambda x, s: torch.baddbmm(x[None], x[None], SQUARE[None], beta=s), "masked": lambda x, s: x.masked_fill(x > 0, s),
    "where": lambda x, s: torch.where(x > 0, x, s), "filled": lambda x, s: x.clone().fill_(s) + x, "written": lambda x, s: x.sin().mul_(s).add_(Y, alpha=s), "assigned": lambda x, s: x.index_fill(0, torch.tensor([1]), s),
    "scatter": lambda x, s: x.scatter(0, WHOLE[:1] % 3, s), "index_add": lambda x, s: x.index_add(0, torch.tensor([0, 2]), Y[:2], alpha=s), "pad": lambda x, s: F.pad(x, (1, 2), value=s), "leaky": lambda x, s: F.leaky_relu(x, s),
    "elu": lambda x, s: F.elu(x, s), "celu": lambda x, s: F.celu(x, s), "softplus": lambda x, s: F.softplus(x, s, 20.0), "threshold": lambda x, s: F.threshold(x, s, 0.5), "hardtanh": lambda x, s: F.hardtanh(x, -s, s),
    "softshrink": lambda x, s: F.softshrink(x, s), "hardshrink": lambda x, s: F.hardshrink(x, s), "layer norm": lambda x, s: F.layer_norm(x, (4,), eps=s), "batch norm": lambda x, s: F.batch_norm(x, Y[0], Y[1], eps=s),
    "normalize": lambda x, s: F.normalize(x, dim=1, eps=s), "attention": lambda x, s: F.scaled_dot_product_attention(x[None], Y[None], x[None], scale=s), "softmax": lambda x, s: F.softmax(x / s, -1), "norm": lambda x, s: (x * s).norm(),
    "huber": lambda x, s: F.huber_loss(x, Y, delta=s), "margin": lambda x, s: F.margin_ranking_loss(x, Y, torch.sign(x), margin=s), "label smoothing": lambda x, s: F.cross_entropy(x, WHOLE[:, 0] % 4, label_smoothing=s / 4),
    "arithmetic": lambda x, s: x * (2 * s - s / 3 + s**2 - (-s) + abs(s)), "functions": lambda x, s: x * (math.sqrt(s) + math.cos(s) + max(s, 0.6) + min(0.6, s)), "read": lambda x, s: x * torch.tensor(s).exp().item(), "nan_to_num": lambda x, s: torch.nan_to_num(x.detach() / 0, s, s, s) * x,
    "isclose": lambda x, s: (torch.isclose(x, Y, atol=s) * x, x), "quantile": lambda x, s: x.quantile(s / 3), "cumulated": lambda x, s: sum(x * s**i for i in range(3)), "logit": lambda x, s: torch.logit(Y, s / 9) * x,
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_torchs(name):
    f = FUNCTIONS[name]
    run = compiled(f)
    for s in (0.5, 0.7, 1.3):
        found = []
        for g in (f, run):
            x = X.clone().requires_grad_()
            outs = g(x, s)
            outs = outs if isinstance(outs, tuple) else (outs,)
            sum(o.float().sum() for o in outs if o.requires_grad).backward()
            found.append(([o.detach() for o in outs], x.grad))
        for a, b in zip(*(f[0] for f in found)):
            torch.testing.assert_close(b, a, rtol=2e-5, atol=2e-5)
        torch.testing.assert_close(found[1][1], found[0][1], rtol=2e-4, atol=2e-5)


def test_few_programs_are_made(monkeypatch):
    from meshwright.interop.torch import compiled as module

    made = []
    first = module._Compiled.__init__
    monkeypatch.setattr(module._Compiled, "__init__", lambda *args: made.append(1) or first(*args))
    run = compiled(lambda x, s: x * s)
    for i in range(9):
        torch.testing.assert_close(run(X, 0.1 + i), X * (0.1 + i))
    assert len(made) == 2  # the first number as it is


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_a_step_with_a_schedule(kind):
    def losses(wrap):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)

        def step():
            optimizer.zero_grad()
            loss = model(X).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step, found = wrap(step), []
        for _ in range(5):
            found.append(step())
            schedule.step()
        return torch.stack([*found, *(p.detach().sum() for p in model.parameters())])

    torch.testing.assert_close(losses(compiled), losses(lambda f: f), rtol=2e-5, atol=2e-6)


def test_modules_that_read_numbers():
    class Scaled(nn.Module):
        def forward(self, x, scale):
            return x * scale.item() + x.max().item()

    model = mw.from_torch(Scaled(), (X, torch.tensor(0.5)))
    for scale in (0.5, 2.0):
        want = Scaled()(X, torch.tensor(scale))
        torch.testing.assert_close(mw.interop.torch.to_torch(model(model.params, X, torch.tensor(scale))), want)


def test_where_the_number_has_to_be_known(refuses):
    run = compiled(lambda x, s: F.dropout(x, s))
    x = torch.ones(64)
    run(x, 0.5)
    with pytest.warns(errors.RecompilationWarning, match="test_torch_numbers.py.*each value"):
        run(x, 0.25)
    for p in (0.1, 0.25, 0.5, 0.9):
        assert set(run(x, p).unique().tolist()) == {0.0, float(torch.tensor(1 / (1 - p)))}
    with refuses(errors.ImportProgramError, "depend on values", "test_torch_numbers.py"):
        mw.from_torch(_Repeated(), (X, torch.tensor(2)))


class _Repeated(nn.Module):
    def forward(self, x, n):
        return x.repeat(n.item(), 1)


HALVES = {
    "mul": lambda x, y: x * 0.7, "div": lambda x, y: x / 0.7, "add": lambda x, y: x + 0.7, "scalar": lambda x, y: x * torch.tensor(0.7), "alpha": lambda x, y: x.add(y, alpha=0.7),
    "lerp": lambda x, y: torch.lerp(x, y, 0.7), "addcmul": lambda x, y: torch.addcmul(x, y, y, value=0.7), "leaky": lambda x, y: F.leaky_relu(x, 0.7), "elu": lambda x, y: F.elu(x, 0.7),
    "compared": lambda x, y: (x > 0.7) * x, "softplus": lambda x, y: F.softplus(x),
}  # fmt: skip


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_are_not_rounded_to_half_width_where_torch_does_not(name, dtype):
    class Module(nn.Module):
        def forward(self, x, y):
            return HALVES[name](x, y)

    x, y = torch.randn(2, 500, generator=G).to(dtype)
    model = mw.from_torch(Module(), (x, y))
    got = mw.interop.torch.to_torch(model(model.params, x, y))
    assert (got == Module()(x, y)).float().mean() > 0.97  # but for an ulp; rounded numbers give at most .85


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_attention_of_half_width_is_as_exact_as_torchs(dtype):
    """Also where logits are so large that half width does not tell them apart; and of matrices without heads."""

    class Attention(nn.Module):
        def forward(self, q, k, v):
            return F.scaled_dot_product_attention(q, k, v)

    q, k, v = (torch.randn(3, 4, 6, 8, generator=G) * scale for scale in (6, 6, 1))
    for given in ((q, k, v), (q[0, 0], k[0, 0], v[0, 0])):
        wide = Attention()(*(x.to(dtype).double() for x in given))
        given = tuple(x.to(dtype) for x in given)
        got = mw.interop.torch.to_torch(mw.from_torch(Attention(), given)({}, *given))
        off, torchs = ((y.double() - wide).abs().max() for y in (got, Attention()(*given)))
        assert off <= 2 * torchs


def test_statistics_have_the_dtype_of_parameters():
    class Norms(nn.Module):
        def forward(self, x, w):
            image = x.reshape(2, 8, 1)
            return [
                *torch.native_layer_norm(x, (8,), w, None, 1e-5),
                *torch.native_group_norm(image, w, None, 2, 8, 1, 2, 1e-5),
                *torch.native_batch_norm(image, w, None, None, None, True, 0.1, 1e-5),
            ]

    x = torch.randn(2, 8, generator=G).bfloat16()
    for w in (torch.ones(8), torch.ones(8).bfloat16(), None):
        got = mw.interop.torch.to_torch(mw.from_torch(Norms(), (x, w))({}, x, w))
        torch.testing.assert_close(got, Norms()(x, w), rtol=0.1, atol=0.1)


def test_what_a_division_leaves_and_the_sign_of_nan_are_torchs_to_the_sign_of_zero():
    class Module(nn.Module):
        def forward(self, x, y):
            return x.remainder(y), x.fmod(y), x.sgn()

    values = torch.tensor([0.0, -0.0, 2.0, -3.0, 0.7, float("inf"), -float("inf"), float("nan")])
    x, y = torch.meshgrid(values, values, indexing="ij")
    model = mw.from_torch(Module(), (x, y))
    for got, want in zip(mw.interop.torch.to_torch(model(model.params, x, y)), Module()(x, y), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        zero = want == 0
        assert torch.equal(got[zero].signbit(), want[zero].signbit())
