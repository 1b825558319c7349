"""``torch.autocast`` around what is exported in a way of its own: layers, Functions and transformations."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
nn, func = torch.nn, torch.func

import meshwright as mw  # noqa: E402


def doubled(cast):
    class Product(torch.autograd.Function):
        """A product whose derivative by its first operand is doubled."""

        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=cast)
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx, given):
            x, w = ctx.saved_tensors
            return 2 * given @ w.t(), x.t() @ given

    return Product.apply


class WithoutHelp(torch.autograd.Function):
    """Whose backward torch runs behind the region that casts."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, given):
        x, w = ctx.saved_tensors
        return 2 * given.float() @ w.t(), x.t() @ given.float()


def mapped_gradient(self, x):
    return func.vmap(func.grad(lambda row: (row @ self.w).float().square().sum()))(x)


def gradient_of_a_region(self, x):
    def loss(x):
        with torch.autocast("cpu", enabled=False):
            return (x @ self.w).sin().sum()

    return func.grad(loss)(x) + x @ self.w @ self.w.t()


CASES = {
    "Function in float32": lambda self, x: doubled(torch.float32)(x, self.w),
    "Function that casts": lambda self, x: doubled(None)(x, self.w),
    "Function by itself": lambda self, x: WithoutHelp.apply(x, self.w),
    "gradients of rows": mapped_gradient,
    "gradient of a region": gradient_of_a_region,
    "LSTM": lambda self, x: self.lstm(x)[0],
}


class Casting(nn.Module):
    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Parameter(torch.randn(5, 3))
        self.lstm = nn.LSTM(5, 4, num_layers=2, bidirectional=True)
        self.function = function

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.function(self, x)


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_have_torchs_types(name):
    module, x = Casting(CASES[name]), torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    model = mw.from_torch(module, (x,))
    weights = np.linspace(0.5, 1.5, 5 * 4 * 8, dtype="f")

    def loss(params, x):
        out = model(params, x)
        return (out.astype("float32").reshape(-1) * weights[: out.size]).sum(), out

    (_, got), grads = mw.jit(mw.value_and_grad(loss, has_aux=True))(model.params, x.numpy())
    want = module(x)
    (want.float().flatten() * torch.from_numpy(weights)[: want.numel()]).sum().backward()
    assert str(got.dtype) == str(want.dtype).removeprefix("torch.")
    # What is computed in float32 is as exact as that.
    tolerance = 1e-5 if name == "Function in float32" else 0.03
    np.testing.assert_allclose(got.astype("float32"), want.detach().float(), rtol=tolerance, atol=tolerance)
    for key, parameter in module.named_parameters():
        if parameter.grad is not None:
            scale = tolerance * float(parameter.grad.abs().max())
            np.testing.assert_allclose(grads[key], parameter.grad, rtol=tolerance, atol=scale)


_STATE = torch.linspace(-1, 1, 18).reshape(1, 3, 6)
LAYERS = {
    "gru": (lambda: nn.GRU(4, 6, 2, bidirectional=True), ()),
    "gru of a state of 16 bits": (lambda: nn.GRU(4, 6, batch_first=True), (_STATE.bfloat16(),)),
    "tanh": (lambda: nn.RNN(4, 6, 2, bias=False), ()),
    "relu": (lambda: nn.RNN(4, 6, nonlinearity="relu"), (_STATE,)),
}


class Recurrent(nn.Module):
    def __init__(self, layer, packs):
        super().__init__()
        self.layer, self.packs = layer, packs

    def forward(self, x, *state):
        x = nn.utils.rnn.pack_padded_sequence(x, [x.shape[0], 4, 2]) if self.packs else x
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y, last = self.layer(x, *state)
        return (y.data if self.packs else y), last


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_recurrent_layers_that_are_cast_are_one_op(name, packs):
    torch.manual_seed(0)
    make, state = LAYERS[name]
    layer = make()
    if packs and layer.batch_first:
        layer.batch_first = False
    batch = (3, 60, 4) if layer.batch_first else (60, 3, 4)
    module, x = Recurrent(layer, packs), torch.randn(batch)
    model = mw.from_torch(module, (x, *state))
    assert len(model.program.graph.nodes) < 60  # which is the number of steps
    given = [mw.interop.torch.from_tensors(s) for s in (x, *state)]
    y = x.clone().requires_grad_()
    want = module(y, *state)
    for got, expected in zip(model(model.params, *given), want, strict=True):
        assert str(got.dtype) == str(expected.dtype).removeprefix("torch.")
        np.testing.assert_allclose(np.asarray(got, "f"), expected.detach().float(), atol=0.02)
    want[0].float().square().sum().backward()

    def loss(p, x):
        return (model(p, x, *given[1:])[0].astype("float32") ** 2).sum()

    of_params, of_x = mw.jit(mw.grad(loss, (0, 1)))(model.params, given[0])
    for got, expected in [(of_x, y.grad), *((of_params[n], p.grad) for n, p in module.named_parameters())]:
        np.testing.assert_allclose(got, expected, atol=0.05 * float(expected.abs().max()))
