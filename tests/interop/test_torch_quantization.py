"""Values rounded to integers of a scale (``torch.ao``): results and gradients are PyTorch's."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
nn = torch.nn

import meshwright as mw  # noqa: E402


class Of(nn.Module):
    """A function of the argument and of parameters and buffers."""

    def __init__(self, function, **tensors):
        super().__init__()
        self.function, self.names = function, list(tensors)
        for name, tensor in tensors.items():
            if name in ("scale", "zero") and tensor.is_floating_point():
                setattr(self, name, nn.Parameter(tensor))
            else:
                self.register_buffer(name, tensor)

    def forward(self, x):
        return self.function(x, *(getattr(self, name) for name in self.names))


CHANNELS = {"scale": torch.tensor([0.1, 0.03, 0.2, 0.07]), "zero": torch.tensor([0, 3, -5, 1], dtype=torch.int32)}
ONE, FLOAT = {"scale": torch.tensor([0.1]), "zero": torch.tensor([3.0])}, torch.tensor([0.4, 2.5, -5.0, 9.3])
CASES = {
    "tensor": (lambda x: torch.fake_quantize_per_tensor_affine(x, 0.05, 3, -8, 7), {}),
    "tensor, scale": (
        lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s.detach(), z, 0, 15),
        {"scale": torch.tensor([0.1]), "zero": torch.tensor([3], dtype=torch.int32)},
    ),
    "channel": (lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s.detach(), z, 1, -8, 7), CHANNELS),
    "channel, float": (
        lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s.detach(), z.detach(), 1, -8, 7),
        {**CHANNELS, "zero": FLOAT},
    ),
    "learned": (lambda x, s, z: torch._fake_quantize_learnable_per_tensor_affine(x, s, z, -8, 7, 0.3), ONE),
    "learned, channel": (
        lambda x, s, z: torch._fake_quantize_learnable_per_channel_affine(x, s, z, 1, -8, 7, 0.3),
        {**CHANNELS, "zero": FLOAT},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name):
    function, tensors = CASES[name]
    module = Of(function, **{n: t.clone() for n, t in tensors.items()})
    x = (torch.randn(5, 4) * 0.7).requires_grad_()
    want = module(x)
    (want**2).sum().backward()
    model = mw.from_torch(module, (x.detach(),))
    run = lambda p, x: model(p, x)  # noqa: E731
    np.testing.assert_allclose(run(model.params, x.detach().numpy()), want.detach(), rtol=1e-6)
    grads, by_x = mw.grad(lambda p, x: (run(p, x) ** 2).sum(), argnums=(0, 1))(model.params, x.detach().numpy())
    np.testing.assert_allclose(by_x, x.grad, rtol=1e-6)
    for n, p in module.named_parameters():
        if p.grad is not None:
            np.testing.assert_allclose(grads[n], p.grad, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("is_on", [True, False])
def test_modules_whose_flags_are_buffers(is_on):
    module = torch.ao.quantization.FakeQuantize()
    module.scale.fill_(0.02), module.zero_point.fill_(30)
    module.disable_observer()
    module.enable_fake_quant(is_on)
    x = torch.randn(4, 3)
    model = mw.from_torch(module, (x,))
    np.testing.assert_array_equal(model(model.params, x.numpy()), module(x))
