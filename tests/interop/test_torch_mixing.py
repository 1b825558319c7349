# ruff: noqa: E501
"""Operands of different dtypes: converted where torch converts them, refused where its kernels do."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
F = torch.nn.functional

import meshwright as mw  # noqa: E402
from meshwright import errors  # noqa: E402
from meshwright.interop.torch.dtypes import torch_dtype  # noqa: E402

AT, LABELS = torch.tensor([0, 2]), torch.tensor([1, 0, 2, 3])
#: of a float32 matrix of 4 rows and columns and one of float64
REFUSED = [
    torch.mm, torch.matmul, F.linear, lambda x, y: F.linear(x, x, y[0]), lambda x, y: torch.mv(x, y[0]), lambda x, y: torch.addmm(y, x, x),
    lambda x, y: torch.addbmm(x, x[None], y[None]), lambda x, y: torch.linalg.cross(x[:, :3], y[:, :3]),
    lambda x, y: x.index_add(0, AT, y[:2]), lambda x, y: x.index_copy(0, AT, y[:2]), lambda x, y: x.index_reduce(0, AT, y[:2], "amax"),
    lambda x, y: x.index_put((AT,), y[:2]), lambda x, y: x.clone().index_put_((AT,), y[0, 0]), lambda x, y: x.put(AT, y[0, :2]), torch.complex,
    torch.polar, torch.heaviside, torch.cdist, lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    lambda x, y: F.cross_entropy(x, LABELS, y[0]), lambda x, y: F.multi_margin_loss(x, LABELS, weight=y[0]), lambda x, y: torch.gru_cell(x, x[:, :1], *(y[:3, :n] for n in (4, 1))),
    lambda x, y: F.grid_sample(x[None, None], y[None, None, :, :2], align_corners=False), lambda x, y: F.layer_norm(x, (4,), y[0]),
    lambda x, y: F.batch_norm(x, x[0], x[1], y[0], y[1]), lambda x, y: F.group_norm(x, 2, y[0]), lambda x, y: F.embedding_bag(LABELS[None], x, per_sample_weights=y[:1], mode="sum"),
]  # fmt: skip


class Of(torch.nn.Module):
    def __init__(self, functions):
        super().__init__()
        self.functions = functions

    def forward(self, *args):
        return [f(*args) for f in self.functions]


def test_what_torch_does_not_mix_is_refused(refuses):
    x, y = torch.rand(4, 4), torch.rand(4, 4, dtype=torch.float64)
    for f in REFUSED:
        with pytest.raises(RuntimeError):
            f(x, y)
    with refuses(errors.ImportProgramError, f"{len(REFUSED)} ops", "aten.mm.default", "float64", "Convert one"):
        mw.from_torch(Of(REFUSED), (x, y))


#: of floats of 16 bits, of 32 and of 64, and integers of 64
MIXED = [
    lambda h, x, y, n: torch.addcmul(h, x, h), lambda h, x, y, n: torch.addcdiv(h, h, x), lambda h, x, y, n: F.huber_loss(x, y),
    lambda h, x, y, n: F.binary_cross_entropy_with_logits(y, x), lambda h, x, y, n: F.binary_cross_entropy(x, x, y),
    lambda h, x, y, n: F.cross_entropy(x, y), lambda h, x, y, n: F.soft_margin_loss(x, y), lambda h, x, y, n: n / (n + 1), lambda h, x, y, n: torch.atan2(n, n + 1),
    lambda h, x, y, n: torch.float_power(x, n), lambda h, x, y, n: F.layer_norm(h, (4,), x[0], x[1]), lambda h, x, y, n: x.masked_fill(x > 0.5, y[0, 0]),
    lambda h, x, y, n: x.index_put((x > 0.5,), y[0, 0]), lambda h, x, y, n: torch.cat([h, x, n]), lambda h, x, y, n: x + y,
]  # fmt: skip


def test_what_torch_mixes_has_its_dtype():
    x = torch.rand(4, 4) / 2 + 0.25
    args = x.bfloat16(), x, x.mT.double(), torch.arange(16).reshape(4, 4)
    with mw.enable_x64(True):
        outs = mw.from_torch(Of(MIXED), args)({}, *args)
    for i, (got, want) in enumerate(zip(outs, Of(MIXED)(*args), strict=True)):
        assert torch_dtype(got.dtype) == want.dtype, i
        exact = 2e-2 if want.dtype == torch.bfloat16 else 1e-5
        np.testing.assert_allclose(np.asarray(got, "f8"), want.double(), rtol=exact, err_msg=str(i))
