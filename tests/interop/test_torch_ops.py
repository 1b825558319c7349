# ruff: noqa: E501
"""Rows of the table of torch's ops: values and gradients are torch's, many ops in each program."""

from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
F = torch.nn.functional

import meshwright as mw  # noqa: E402
from meshwright import errors  # noqa: E402
from meshwright.interop.torch import registry  # noqa: E402
from meshwright.interop.torch.ops import nibbles  # noqa: E402

G = torch.Generator().manual_seed(0)


def r(*shape, scale=1.0):
    return torch.randn(*shape, generator=G) * scale


X, Y, Z = r(3, 4, 5), r(3, 4, 5), r(5)
POSITIVE = torch.rand(3, 4, 5, generator=G) + 0.1
IDS = torch.tensor([[0, 2, 1, 1], [3, 3, 0, 2]])
IMAGE = r(2, 4, 9, 8)
TABLE = r(6, 3)
SQUARE = r(4, 4) + 4 * torch.eye(4)

ELEMENTWISE = [
    lambda x, y, p: x + y, lambda x, y, p: torch.add(x, y, alpha=2), lambda x, y, p: torch.rsub(x, 3, alpha=2),
    lambda x, y, p: x / p, lambda x, y, p: torch.div(x, p, rounding_mode="floor"), lambda x, y, p: x**2,
    lambda x, y, p: p**y, lambda x, y, p: 2**x, lambda x, y, p: p**-0.5, lambda x, y, p: torch.exp(x),
    lambda x, y, p: torch.log(p), lambda x, y, p: torch.log1p(p), lambda x, y, p: torch.expm1(x),
    lambda x, y, p: torch.sqrt(p), lambda x, y, p: torch.rsqrt(p), lambda x, y, p: torch.sin(x) * torch.cos(y),
    lambda x, y, p: torch.tan(x), lambda x, y, p: torch.atan2(x, y), lambda x, y, p: torch.tanh(x),
    lambda x, y, p: torch.sigmoid(x), lambda x, y, p: torch.erf(x), lambda x, y, p: torch.lgamma(p),
    lambda x, y, p: torch.abs(x), lambda x, y, p: torch.clamp(x, -0.5, 0.5), lambda x, y, p: torch.clamp(x, min=y),
    lambda x, y, p: torch.where(x > 0, x, y), lambda x, y, p: torch.lerp(x, y, 0.3), lambda x, y, p: torch.maximum(x, y),
    lambda x, y, p: torch.addcmul(x, y, p, value=0.5), lambda x, y, p: torch.addcdiv(x, y, p, value=0.5),
    lambda x, y, p: torch.remainder(x, p), lambda x, y, p: torch.fmod(x, p), lambda x, y, p: torch.hypot(x, y),
    lambda x, y, p: torch.logaddexp(x, y), lambda x, y, p: x.masked_fill(y > 0, 1.5), lambda x, y, p: torch.frac(x),
    lambda x, y, p: torch.logit(torch.sigmoid(x)), lambda x, y, p: torch.xlogy(x, p), lambda x, y, p: torch.asinh(x),
    lambda x, y, p: torch.complex(x, y).abs(), lambda x, y, p: torch.polar(p, y).real, lambda x, y, p: (x > y).float(),
    lambda x, y, p: torch.view_as_real(torch.complex(x, y) * 2j), lambda x, y, p: torch.nan_to_num(x), lambda x, y, p: torch.sign(x),
]  # fmt: skip
ACTIVATIONS = [
    F.relu, F.relu6, F.gelu, lambda x: F.gelu(x, approximate="tanh"), F.silu, F.mish, F.elu, F.celu, F.selu, F.softplus,
    F.leaky_relu, F.hardtanh, F.hardswish, F.hardsigmoid, F.softsign, F.tanhshrink, F.softshrink, F.hardshrink, F.logsigmoid,
    lambda x: F.threshold(x, 0.1, 2.0), lambda x: F.glu(torch.cat([x, x * 2], -1)), lambda x: F.softmax(x, 1),
    lambda x: F.log_softmax(x, -1), lambda x: F.softmin(x, 0), lambda x: F.normalize(x, dim=1), lambda x: F.rrelu(x),
    lambda x: F.celu(x, 0.7), lambda x: F.elu(x, 0.3),
]  # fmt: skip
SHAPES = [
    lambda x: x.view(12, 5), lambda x: x.reshape(4, -1), lambda x: x.permute(2, 0, 1), lambda x: x.transpose(0, 2),
    lambda x: x.flatten(1), lambda x: x.unflatten(2, (5, 1)), lambda x: x[:, 1:3, ::2], lambda x: x[..., -1],
    lambda x: x.expand(2, 3, 4, 5), lambda x: torch.cat([x, x[:1]], 0), lambda x: torch.stack([x, x], 1),
    lambda x: x.split(2, 2)[-1], lambda x: x.chunk(3, 1)[1], lambda x: torch.split(x, [1, 3], 1)[1], lambda x: x.unbind(1)[2],
    lambda x: x.roll((1, 2), (0, 2)), lambda x: x.flip(0, 2), lambda x: x.repeat(2, 1, 3), lambda x: x.tile(2),
    lambda x: x.repeat_interleave(2, 1), lambda x: x.tril(-1), lambda x: x.triu(1), lambda x: x.diagonal(1, 0, 2),
    lambda x: x.unfold(2, 3, 2), lambda x: F.pad(x, (1, 2, 0, 1), value=3.0), lambda x: F.pad(x, (2, 1), mode="reflect"),
    lambda x: F.pad(x, (2, 1), mode="replicate"), lambda x: F.pad(x, (2, 1), mode="circular"), lambda x: x.movedim(0, -1),
    lambda x: x.squeeze().unsqueeze(1), lambda x: x.select(1, -1), lambda x: x.narrow(2, 1, 3), lambda x: torch.rot90(x, 1, (0, 1)),
    lambda x: torch.einsum("abc,dbc->ad", x, x), lambda x: torch.atleast_3d(x), lambda x: x.T if x.ndim == 2 else x.mT,
    lambda x: x[0][torch.tril_indices(4, 4)[0], torch.triu_indices(4, 4)[1]], lambda x: torch.tensor_split(x, 3, 2)[1], lambda x: torch.meshgrid(x[0, 0], x[0, 1], indexing="ij")[1],
]  # fmt: skip


def _spectra(z):
    """Real numbers of a complex array, that differ from part to part."""
    return torch.view_as_real(z) * torch.linspace(0.5, 1.5, z.numel()).view(*z.shape, 1)


FOURIER = [
    lambda x: _spectra(torch.fft.fft(x)), lambda x: _spectra(torch.fft.rfft(x, dim=1, norm="ortho")),
    lambda x: _spectra(torch.fft.ifft(torch.complex(x, 2 * x), dim=0)), lambda x: torch.fft.irfft(torch.complex(x, x * x), n=7),
    lambda x: torch.fft.irfft(torch.fft.rfft(x, norm="forward"), n=5, norm="forward"), lambda x: _spectra(torch.fft.fft2(x)),
    lambda x: _spectra(torch.fft.rfftn(x, dim=(0, 2))), lambda x: torch.fft.irfftn(torch.complex(x, x), s=(3, 4), dim=(0, 1)),
    lambda x: _spectra(torch.fft.ifftn(x, norm="forward")), lambda x: torch.fft.fftshift(x * x), lambda x: torch.fft.hfft(x, n=6), lambda x: torch.fft.fftfreq(5, 0.5) * x, lambda x: torch.fft.rfftfreq(8) * x,
]  # fmt: skip
REDUCTIONS = [
    lambda x: x.sum(), lambda x: x.sum((0, 2)), lambda x: x.mean(-1, keepdim=True), lambda x: x.prod(1), lambda x: x.amax((1, 2)),
    lambda x: x.max(1)[0], lambda x: x.min(2, keepdim=True).values, lambda x: x.max(), lambda x: x.var(1), lambda x: x.std((0, 1)),
    lambda x: x.std(unbiased=False), lambda x: torch.var_mean(x, 2)[0], lambda x: x.logsumexp(1), lambda x: x.norm(),
    lambda x: torch.linalg.vector_norm(x, 3, 1), lambda x: torch.linalg.vector_norm(x, 1, (0, 2)), lambda x: x.cumsum(1),
    lambda x: x.cumprod(2), lambda x: x.logcumsumexp(1), lambda x: x.cummax(1)[0], lambda x: x.diff(dim=1), lambda x: x.sort(2)[0],
    lambda x: x.sort(1, descending=True)[0], lambda x: x.topk(2, 2)[0], lambda x: x.topk(2, 1, largest=False)[0],
    lambda x: x.kthvalue(2, 1)[0], lambda x: x.median(2)[0], lambda x: x.median(), lambda x: (x > 0).any(1).float(),
    lambda x: x.argmax(1).float(), lambda x: x.argmin().float(), lambda x: x.argsort(1).float(), lambda x: (x * 0).norm(dim=1),
    lambda x: torch.histc(x, 4, -2, 2), lambda x: torch.cdist(x, x + 1), lambda x: torch.count_nonzero(x > 0, 1).float(),
    lambda x: torch.trapezoid(x, dim=1), lambda x: F.cosine_similarity(x, x + 1, 1), lambda x: torch.aminmax(x)[1],
    lambda x: x.nanmedian(1)[0], lambda x: x.nanmedian(0, keepdim=True).values, lambda x: x[0, 0].repeat(3).median(), lambda x: F.pdist(x[0]),
    lambda x: F.pdist(torch.cat([x[0], x[0]]).sign(), torch.inf), lambda x: torch.cdist(x[0].round(), x[1].round(), torch.inf), lambda x: F.pdist(x[1], 1.5),
    lambda x: torch.cdist(torch.cat([x.flatten(0, 1)] * 3), x[0] + 2), lambda x: x.sign().cummax(1)[0], lambda x: x.sign().cummin(2)[0],
]  # fmt: skip
INDEXING = [
    lambda t, x: t[IDS], lambda t, x: t[:, [2, 0]], lambda t, x: t[IDS[0], IDS[1] % 3], lambda t, x: t.index_select(1, IDS[0] % 3),
    lambda t, x: t.gather(0, IDS[:, :3]), lambda t, x: t.scatter(0, IDS[:1, :3], x[0, :1, :3]), lambda t, x: t.scatter(0, IDS[:1, :3], 2.0),
    lambda t, x: t.scatter_add(0, IDS[:, :3], x[0, :2, :3]), lambda t, x: t.index_add(0, IDS[0], x[0, :4, :3], alpha=2),
    lambda t, x: t.index_put((IDS[0],), x[0, :4, :3], accumulate=True), lambda t, x: t.index_fill(0, IDS[0], 3.0),
    lambda t, x: t.index_copy(0, IDS[0][1:3], x[0, :2, :3]), lambda t, x: F.embedding(IDS, t), lambda t, x: t.take(IDS),
    lambda t, x: t.scatter_reduce(0, IDS[:, :3], x[0, :2, :3], "amax"), lambda t, x: torch.take_along_dim(t, IDS[:, :3], 0),
    lambda t, x: t.scatter_reduce(0, IDS[:, :3], x[0, :2, :3], "mean", include_self=False), lambda t, x: F.one_hot(IDS, 5) * t[0, 0],
    lambda t, x: F.embedding_bag(IDS, t, mode="mean"), lambda t, x: F.embedding_bag(IDS, t, mode="sum", padding_idx=3),
    lambda t, x: F.embedding_bag(IDS, t, mode="max"), lambda t, x: torch.bucketize(t, torch.tensor([-1.0, 0.0, 1.0])) * t,
    lambda t, x: t.masked_scatter(t > 0, x), lambda t, x: torch.searchsorted(torch.tensor([-1.0, 0.5]), t) * t,
    lambda t, x: t.put(IDS[:, :3], x[0, :2, :3], accumulate=True), lambda t, x: t.put(torch.tensor([0, -1, 7]), x[0, 0, :3]),
]  # fmt: skip
PRODUCTS = [
    lambda x, s: x @ x.mT, lambda x, s: F.linear(x, x[0]), lambda x, s: torch.bmm(x, x.mT), lambda x, s: torch.addmm(x[0], s, x[1], beta=2, alpha=3),
    lambda x, s: torch.baddbmm(x, x @ x.mT, x, beta=0.5), lambda x, s: torch.outer(x[0, 0], x[0, 1]), lambda x, s: torch.mv(x[0], x[0, 0]),
    lambda x, s: torch.einsum("abc,abd->cd", x, x), lambda x, s: torch.tensordot(x, x, ([1], [1])), lambda x, s: torch.linalg.solve(s, x[0]),
    lambda x, s: torch.linalg.inv(s), lambda x, s: torch.linalg.det(s), lambda x, s: torch.kron(s, s[:2]), lambda x, s: torch.dot(x[0, 0], x[0, 1]),
    lambda x, s: F.bilinear(x[0, :, :4], x[1], x[:, :, :4].mT[:, :4].contiguous().mT.reshape(3, 4, 4) @ x), lambda x, s: torch.cross(x[0, :, :3], x[1, :, :3], dim=-1), lambda x, s: torch.trace(s),
    lambda x, s: F.scaled_dot_product_attention(x, x, x), lambda x, s: F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True),
    lambda x, s: F.scaled_dot_product_attention(x, x, x, attn_mask=torch.ones(4, 4).tril().bool(), scale=0.3),
    lambda x, s: F.scaled_dot_product_attention(torch.cat([x, x])[None], x[None], x[None], enable_gqa=True),
]  # fmt: skip
W, W1, W3 = r(6, 2, 3, 3, scale=0.3), r(4, 4, 3, scale=0.3), r(5, 3, 2, 2, 2, scale=0.3)
CONVOLUTIONS = [
    lambda i: F.conv2d(i, W, r0(6), stride=2, padding=1, groups=2), lambda i: F.conv2d(i, W, padding="same", dilation=2, groups=2),
    lambda i: F.conv1d(i[:, :, 0], W1, padding=1), lambda i: F.conv3d(i[:, :3, None].expand(2, 3, 4, 9, 8), W3),
    lambda i: F.conv_transpose2d(i, r0(4, 3, 3, 3), r0(6), stride=2, padding=1, output_padding=1, groups=2),
    lambda i: F.conv_transpose1d(i[:, :, 0], r0(4, 2, 3), stride=2, dilation=2), lambda i: F.conv2d(i[0], W, groups=2),
    lambda i: F.max_pool2d(i, 3, 2, 1), lambda i: F.max_pool2d(i, 2, ceil_mode=True), lambda i: F.avg_pool2d(i, 3, 2, 1),
    lambda i: F.avg_pool2d(i, 3, 2, 1, ceil_mode=True, count_include_pad=False), lambda i: F.adaptive_avg_pool2d(i, (3, 5)),
    lambda i: F.adaptive_avg_pool2d(i, 1), lambda i: F.adaptive_max_pool2d(i, (3, 4)), lambda i: F.avg_pool1d(i[:, :, 0], 2),
    lambda i: F.max_pool2d(i, 2, return_indices=True)[1] * i[0, 0, 0, 0], lambda i: F.interpolate(i, scale_factor=2),
    lambda i: F.interpolate(i, size=(5, 11)), lambda i: F.interpolate(i, size=(12, 12), mode="bilinear", align_corners=False),
    lambda i: F.interpolate(i, scale_factor=2, mode="bicubic"), lambda i: F.interpolate(i[0], scale_factor=1.3, mode="linear"), lambda i: F.interpolate(i[None], (3, 5, 17), mode="trilinear", align_corners=True),
    lambda i: F.interpolate(i, (1, 5), mode="bicubic", align_corners=True), lambda i: F.pixel_shuffle(i, 2), lambda i: F.unfold(i, 3, padding=1, stride=2),
    lambda i: F.max_unpool2d(*F.max_pool2d(i, 3, 2, 1, return_indices=True), 3, 2, 1, output_size=(9, 8)), lambda i: F.max_unpool3d(*F.max_pool3d(i[:, :, 1:], 2, return_indices=True), 2),
    lambda i: F.pad(i, (-2, 1, 3, -1), mode="reflect"), lambda i: F.pad(i, (4, -3, 0, 1), mode="circular"), lambda i: F.pad(i, (-2, -1, 1, 0), mode="replicate"),
    lambda i: F.affine_grid(i[:, 0, :2, :3], (2, 3, 1, 1), align_corners=False), lambda i: F.affine_grid(i[:, 0, :3, :4], (2, 3, 4, 5, 2), align_corners=True),
    lambda i: F.adaptive_max_pool2d(i, (4, 5)), lambda i: F.adaptive_max_pool2d(i, (10, 3), return_indices=True)[1] * i[0, 0, 0, 0],
    lambda i: F.interpolate(i, size=(4, 5), mode="bilinear", antialias=True), lambda i: F.interpolate(i, size=(14, 5), mode="bilinear", antialias=True, align_corners=True),
    lambda i: F.interpolate(i, scale_factor=(1.7, 0.4), mode="bicubic", antialias=True), lambda i: i.round().mode(2).values, lambda i: i.mode(0, True)[0],
    lambda i: F.channel_shuffle(i, 2), lambda i: F.pixel_unshuffle(i[:, :, :8], 2), lambda i: F.lp_pool2d(i.abs(), 2, 2),
    lambda i: F.grid_sample(i, i[:, :2, :4, :4].permute(0, 2, 3, 1).tanh(), align_corners=False),
    lambda i: F.local_response_norm(i, 3), lambda i: F.group_norm(i, 2, r0(4), r0(4)), lambda i: F.layer_norm(i, (9, 8)),
    lambda i: F.instance_norm(i), lambda i: F.batch_norm(i, None, None, r0(4), r0(4), True), lambda i: F.rms_norm(i, (8,), r0(8)),
]  # fmt: skip


AT = 1.5 * r(2, 3, 2, 5, 3)
AT[0, 0, 0, :3] = torch.tensor([[-1.0, 0, 1], [1, 1, 1], [-1, -1, 0]])


def _sampled(i, **options):
    """Images and volumes at positions inside, outside, and at the ends."""
    at = AT * (1 + 0 * i[:, :1, :1, :1, None])
    volume = F.grid_sample(i[:, :, None] * r0(3, 9, 8), at, **options)
    return volume.sum(), F.grid_sample(i, at[:, :, 0, :, 1:], **options)


SAMPLES = [
    lambda i, m=mode, p=padding, a=align, n=n: _sampled(i, mode=m, padding_mode=p, align_corners=a)[n]
    for mode in ("bilinear", "nearest")
    for padding in ("zeros", "border", "reflection")
    for align in (True, False)
    for n in (0, 1)
] + [
    lambda i, p=padding: F.grid_sample(
        i, 2 * i[:, :2, :4, :4].permute(0, 2, 3, 1), mode="bicubic", padding_mode=p, align_corners=True
    )
    for padding in ("zeros", "border", "reflection")
]


def r0(*shape):
    return torch.linspace(-1, 1, int(np.prod(shape))).reshape(shape)


T = torch.tensor([1, 0, 4, 2])
LABELS = torch.tensor([[3, 0, -1, 1, 4], [-1, 2, 1, 0, 3], [4, 1, 0, 2, 3], [2, -1, -1, -1, -1]])
SATURATED = torch.tensor([0.0, 1.0, 1.0, 0.0, 0.5])
LOSSES = [
    lambda x, y, p: F.cross_entropy(x[0], T), lambda x, y, p: F.cross_entropy(x[0], T, r0(5) + 2, label_smoothing=0.1),
    lambda x, y, p: F.cross_entropy(x[0], T, ignore_index=0, reduction="sum"), lambda x, y, p: F.cross_entropy(x[0], y[0].softmax(-1)),
    lambda x, y, p: F.nll_loss(x[0].log_softmax(-1), T, reduction="none"), lambda x, y, p: F.mse_loss(x, y),
    lambda x, y, p: F.l1_loss(x, y, reduction="sum"), lambda x, y, p: F.smooth_l1_loss(x, y, beta=0.5), lambda x, y, p: F.huber_loss(x, y, delta=0.7),
    lambda x, y, p: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()), lambda x, y, p: F.binary_cross_entropy_with_logits(x, y.sigmoid(), pos_weight=Z.abs()),
    lambda x, y, p: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"), lambda x, y, p: F.kl_div(x, y, log_target=True),
    lambda x, y, p: F.cosine_embedding_loss(x[0], y[0], torch.tensor([1, -1, 1, 1])), lambda x, y, p: F.hinge_embedding_loss(x[0], (y[0] > 0) * 2 - 1),
    lambda x, y, p: F.margin_ranking_loss(x, y, torch.sign(p)), lambda x, y, p: F.triplet_margin_loss(x[0], y[0], p[0]),
    lambda x, y, p: F.poisson_nll_loss(x, p), lambda x, y, p: F.multilabel_margin_loss(x[0], LABELS, reduction="none"),
    lambda x, y, p: F.multilabel_margin_loss(x[0, 0], LABELS[0]), lambda x, y, p: F.binary_cross_entropy(SATURATED + 0 * x[0, 0], SATURATED),
    lambda x, y, p: F.multi_margin_loss(x[0], T), lambda x, y, p: F.cross_entropy(x, IDS[:, :1].expand(2, 5).new_zeros(3, 5) + 1),
]  # fmt: skip
L = torch.linalg


def _product(values, vectors):
    return (vectors * values.unsqueeze(-2) ** 2) @ vectors.mH


LINEAR_ALGEBRA = [
    lambda x, s: L.solve(s, x[0].mT.mT), lambda x, s: L.solve(s, x[0].mT, left=False), lambda x, s: L.solve(torch.stack([s, 2 * s]), x[:2, :, 0]),
    lambda x, s: L.solve_ex(s, x[0])[0], lambda x, s: L.inv_ex(s)[0], lambda x, s: s.inverse(), lambda x, s: torch.logdet(s @ s.mT),
    lambda x, s: L.slogdet(s)[1], lambda x, s: L.tensorinv(s.reshape(2, 2, 4)), lambda x, s: L.tensorsolve(s.reshape(2, 2, 2, 2), x[0, :2, :2]),
    lambda x, s: L.cholesky(s @ s.mT), lambda x, s: L.cholesky((s @ s.mT).tril()), lambda x, s: L.cholesky((s @ s.mT).triu(), upper=True),
    lambda x, s: L.cholesky_ex(s @ s.mT)[0], lambda x, s: torch.cholesky_solve(x[0], L.cholesky(s @ s.mT)),
    lambda x, s: torch.cholesky_solve(x[0], s.triu(), upper=True), lambda x, s: torch.cholesky_inverse(s.tril()),
    lambda x, s: L.qr(x.mT)[0], lambda x, s: L.qr(x)[1], lambda x, s: L.svdvals(x), lambda x, s: _product(*L.svd(x, full_matrices=False)[1::-1]),
    lambda x, s: _product(*L.eigh(s)), lambda x, s: L.eigh(s, "U")[0], lambda x, s: L.eigvalsh(s), lambda x, s: L.eigvals(s).abs().sum(),
    lambda x, s: L.lstsq(x.mT, x[:, :1].mT * 2 + 1)[0], lambda x, s: L.lstsq(x[0].mT, x[0, 0] * 2 + 1)[0], lambda x, s: L.lstsq(x, x[..., 0] + 1)[0],
    lambda x, s: L.lstsq(x.mT, x[:, :1].mT * 2 + 1, driver="gels")[1], lambda x, s: L.lstsq(x.mT, x[:, :1].mT * 2 + 1, driver="gelsd")[1],
    lambda x, s: L.norm(x), lambda x, s: L.norm(s, 2), lambda x, s: L.matrix_norm(x), lambda x, s: L.matrix_norm(x, "nuc"), lambda x, s: L.matrix_norm(x, 1),
    lambda x, s: L.matrix_norm(x, -2), lambda x, s: L.matrix_power(s, 3), lambda x, s: L.matrix_power(s, -2), lambda x, s: L.cond(s),
    lambda x, s: L.pinv(x), lambda x, s: L.pinv(s @ s.mT, hermitian=True), lambda x, s: L.pinv(x, atol=0.5), lambda x, s: torch.pinverse(x[0], 0.3),
    lambda x, s: L.multi_dot([s, x[0], x[1].mT]), lambda x, s: L.cross(x[..., :3], x[..., 1:4]), lambda x, s: L.vecdot(x, x + 1), lambda x, s: torch.matrix_exp(s / 3),
    lambda x, s: L.solve_triangular(s.triu(), x, upper=True), lambda x, s: L.solve_triangular(s, x.mT, upper=False, left=False),
    lambda x, s: L.solve_triangular(s, x, upper=False, unitriangular=True), lambda x, s: L.lu(x)[2], lambda x, s: L.lu(x.mT)[1], lambda x, s: L.lu_factor(s)[0],
    lambda x, s: L.lu_solve(*L.lu_factor(s), x[0]), lambda x, s: L.lu_solve(*L.lu_factor(s), x[0].mT, left=False, adjoint=True),
    lambda x, s: L.lu_solve(*L.lu_factor(s), x[0], adjoint=True), lambda x, s: torch.cov(x[0]), lambda x, s: torch.corrcoef(x[0]), lambda x, s: x[0, 0].cov(),
    lambda x, s: torch.cov(x[0], correction=0, fweights=torch.tensor([1, 2, 0, 3, 1]), aweights=x[1, 1].detach().abs()), lambda x, s: L.vander(x[0, 0]),
    lambda x, s: L.householder_product(x.mT, s[:3, :] / 4), lambda x, s: torch.ormqr(x[0].mT / 4, s[0], x[1].mT), lambda x, s: torch.ormqr(s / 4, s[0], x[0], transpose=True),
    lambda x, s: torch.ormqr(x.mT / 4, s[:3], x, left=False), lambda x, s: torch.ormqr(x[0].mT / 4, s[0], x[1], left=False, transpose=True),
]  # fmt: skip
S = torch.special
FUNCTIONS = [
    S.i0, S.i0e, S.i1, S.i1e, S.erfcx, S.ndtr, S.log_ndtr, lambda x: S.ndtri(x.sigmoid()), lambda x: S.entr(x.abs()), lambda x: S.xlog1py(x, x.abs()),
    lambda x: S.zeta(x.detach().abs() + 1.5, x.abs() + 1), lambda x: S.gammainc(x.detach().abs() + 0.1, x.abs()), lambda x: S.psi(x.abs() + 0.1),
    lambda x: S.gammaincc(x.detach().abs() + 0.1, x.abs()), lambda x: S.multigammaln(x.abs() + 3, 2), lambda x: S.logit(x.sigmoid(), eps=1e-3),
    lambda x: S.spherical_bessel_j0(x.detach()), lambda x: S.modified_bessel_i0(x.detach()), lambda x: S.modified_bessel_i1(x.detach()),
    lambda x: torch.nextafter(x.detach(), x.detach() * 2), lambda x: torch.frexp(x.detach())[0], lambda x: S.polygamma(1, x.abs() + 0.1),
]  # fmt: skip
GROUPS = {
    "elementwise": (ELEMENTWISE, (X, Y, POSITIVE)),
    "activations": (ACTIVATIONS, (X,)),
    "shapes": (SHAPES, (X,)),
    "reductions": (REDUCTIONS, (X,)),
    "fourier": (FOURIER, (X,)),
    "indexing": (INDEXING, (TABLE, X)),
    "products": (PRODUCTS, (X, SQUARE)),
    "linear algebra": (LINEAR_ALGEBRA, (X, SQUARE)),
    "special": (FUNCTIONS, (X,)),
    "convolutions": (CONVOLUTIONS, (IMAGE,)),
    "samples": (SAMPLES, (IMAGE,)),
    "losses": (LOSSES, (X, Y, POSITIVE)),
}


class Group(torch.nn.Module):
    def __init__(self, functions):
        super().__init__()
        self.functions = functions
        self.eval()

    def forward(self, *inputs):
        return [f(*inputs) for f in self.functions]


@pytest.mark.parametrize("group", GROUPS)
def test_values_and_gradients_are_torchs(group):
    assert_torchs(*GROUPS[group], group)


def assert_torchs(functions, inputs, group, exact=2e-5):
    """Values within ``exact``, gradients within five times as much."""
    module = Group(functions)
    model = mw.from_torch(module, inputs)
    leaves = [x.clone().requires_grad_() for x in inputs]
    wanted = module(*leaves)
    weights = [torch.linspace(0.5, 1.5, o.numel()).reshape(o.shape) for o in wanted]

    def loss(args):
        outs = model(model.params, *args)
        return sum((o * w.numpy()).sum() for o, w in zip(outs, weights)), outs

    arrays = [x.numpy() for x in inputs]
    (_, outs), grads = mw.jit(mw.value_and_grad(loss, has_aux=True))(arrays)
    for i, (got, want) in enumerate(zip(outs, wanted)):
        assert tuple(got.shape) == tuple(want.shape), f"{group}[{i}]"
        np.testing.assert_allclose(got, want.detach().numpy(), rtol=exact, atol=exact, err_msg=f"{group}[{i}]")
    sum((o * w).sum() for o, w in zip(wanted, weights)).backward()
    for got, leaf in zip(grads, leaves):
        want = leaf.grad.numpy()
        np.testing.assert_allclose(got, want, rtol=5 * exact, atol=exact / 2 * abs(want).max(), err_msg=group)


#: of batches of matrices ``x``, wide, and ``s``, square
BATCHED = [
    lambda x, s: L.solve(s, x.mH), lambda x, s: L.solve(s, x, left=False), lambda x, s: L.inv(s), lambda x, s: L.det(s),
    lambda x, s: L.cholesky(s @ s.mH), lambda x, s: L.cholesky(s @ s.mH, upper=True), lambda x, s: torch.cholesky_solve(x.mH, L.cholesky(s @ s.mH)),
    lambda x, s: L.qr(x.mH)[0], lambda x, s: L.svdvals(x), lambda x, s: (lambda u, w, v: _product(w, v.mH))(*L.svd(x, full_matrices=False)),
    lambda x, s: _product(*L.eigh(s)), lambda x, s: L.eigvals(s).abs().sum(-1), lambda x, s: L.lstsq(x, x[..., :2] + 1)[0], lambda x, s: L.pinv(x),
    lambda x, s: L.pinv(s.detach(), hermitian=True), lambda x, s: L.matrix_norm(x, "nuc"), lambda x, s: L.matrix_power(s, -2), lambda x, s: torch.matrix_exp(s / 3), lambda x, s: L.lu_factor(s)[0],
    lambda x, s: L.solve_triangular(s, x, upper=False, left=False), lambda x, s: L.lu_solve(*L.lu_factor(s), x, left=False, adjoint=True),
    lambda x, s: L.householder_product(x.mH / 4, s[..., 0, :3]), lambda x, s: torch.ormqr(x.mH / 4, s[..., 0, :3], s, transpose=True),
    lambda x, s: torch.ormqr(x.mH / 4, s[..., 0, :3], x, left=False), lambda x, s: torch.fft.fft(s, n=5, norm="ortho"), lambda x, s: torch.fft.ifftn(x, dim=(0, 2)),
]  # fmt: skip


@pytest.mark.parametrize("complex_numbers", [False, True])
def test_linear_algebra_of_batches_in_64_bits(complex_numbers):
    """Complex matrices are made of their parts, so that gradients are real."""

    def of_parts(function):
        def whole(x, s):
            out = function(*map(torch.view_as_complex, (x, s)))
            return torch.view_as_real(out.resolve_conj()) if out.is_complex() else out

        return whole

    parts = (2,) if complex_numbers else ()
    x, s = torch.randn(2, 3, 4, *parts, generator=G).double(), torch.randn(2, 4, 4, *parts, generator=G).double()
    eye = torch.eye(4, dtype=torch.float64)
    s = s + 3 * (torch.stack([eye, 0 * eye], -1) if complex_numbers else eye)
    functions = [of_parts(f) for f in BATCHED] if complex_numbers else BATCHED[:-2]
    with mw.enable_x64(True):
        assert_torchs(functions, (x, s), "batched", 1e-9)


def _fits(rule, overload):
    """Whether a rule takes all arguments of an op that have no default."""
    needed = [a.name for a in overload._schema.arguments if not a.has_default_value()]
    return rule.takes is None or all(n in rule.takes or n in registry.STORAGE for n in needed)


def test_every_rule_takes_the_arguments_of_its_op():
    wrong = []
    for name, rule in registry._TABLE.items():
        namespace, op, *overload = name.split(".")
        packet = getattr(getattr(torch.ops, namespace), op, None)
        if namespace not in ("aten", "prims") or packet is None:
            continue  # of a library that is not loaded, or of another release
        overloads = [getattr(packet, o, None) for o in overload or packet.overloads()]
        if not any(o is not None and _fits(rule, o) for o in overloads):
            wrong.append(name)
    assert not wrong


def test_sums_with_products_and_other_rows_whose_names_differ():
    a, b, c, v = torch.randn(3, 4), torch.randn(4, 5), torch.randn(3, 5), torch.randn(5)

    class Rows(torch.nn.Module):
        def forward(self, a, b, c, v):
            added = torch.addmm(c, a, b, beta=0.5, alpha=2), torch.addmv(c[:, 0], c, v), torch.addr(c, a[:, 0], v)
            batched = torch.baddbmm(c[None], a[None], b[None]), torch.addbmm(c, a[None], b[None])
            other = torch.inner(c, v), torch.fliplr(a), torch.linalg.diagonal(c), torch.chain_matmul(a, b, c.mT)
            return (*added, *batched, *other)

    model = mw.from_torch(Rows(), (a, b, c, v))
    for got, want in zip(model({}, a, b, c, v), Rows()(a, b, c, v), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


class Of(torch.nn.Module):
    """A function, and tensors that it computes with."""

    def __init__(self, function, **tensors):
        super().__init__()
        self.function = function
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def forward(self, *args):
        return self.function(self, *args)


def same(module, *args, tolerance=1e-5):
    """The results, one or several, are torch's."""
    model = mw.from_torch(module, args)
    got, want = model(model.params, *args), module(*args)
    for g, w in zip(*((got, want) if isinstance(want, tuple) else ([got], [want])), strict=True):
        w = w.detach().double().numpy()
        np.testing.assert_allclose(np.asarray(g, np.float64), w, rtol=0, atol=tolerance * np.abs(w).max())


def test_elements_scattered_into_sums_and_products():
    functions = [
        lambda m, t, x: t.scatter(0, IDS[:, :3], x[0, :2, :3], reduce="add"),
        lambda m, t, x: t.scatter(0, IDS[:, :3], x[0, :2, :3], reduce="multiply"),
        lambda m, t, x: t.scatter(1, IDS[:, :3] % 3, 2.5, reduce="multiply"),
    ]
    for function in functions:  # torch has no gradient of them
        same(Of(function), TABLE, X)


def test_scalars_have_dimensions_to_reduce_over():
    functions = [
        lambda x: x.sum(0), lambda x: x.mean(-1), lambda x: x.norm(dim=0), lambda x: x.amax(0), lambda x: x.std(0, unbiased=False),
        lambda x: x.cummax(0)[0], lambda x: x.kthvalue(1)[0], lambda x: torch.aminmax(x, dim=0)[1], lambda x: x.all(0, True), lambda x: x.logsumexp(-1),
    ]  # fmt: skip
    same(Of(lambda m, x: tuple(f(x) for f in functions)), torch.tensor(2.5))


def test_bits_of_another_width(refuses):
    x = r(3, 4)
    same(Of(lambda m, x: (x.view(torch.int16), x.view(torch.uint8), x.half().view(torch.int32))), x)
    model = mw.from_torch(Of(lambda m, x: x.view(torch.int64)), (x,))
    with refuses(errors.RuleError, "enable_x64"):
        model({}, x)
    with mw.enable_x64(True):
        np.testing.assert_array_equal(model({}, x), x.view(torch.int64))


def test_places_of_running_extremes_among_nan():
    x = torch.tensor([[1, np.nan, -2, np.nan, np.inf], [3, 3, 0, 4, -np.inf]])
    same(Of(lambda m, x: (x.cummax(1)[1], x.cummin(1)[1])), x)


def test_rows_reduced_at_indices():
    how = [(reduce, include) for reduce in ("prod", "mean", "amax", "amin") for include in (True, False)]
    at, rows = torch.tensor([0, 0, 2]), X[0, :3, :3]
    same(Of(lambda m, t, x: tuple(t.index_reduce(0, at, x, *h[:1], include_self=h[1]) for h in how)), TABLE, rows)
    same(Of(lambda m, t, x: t.mT.index_reduce(-1, at, x.mT, "mean")), TABLE, rows)


def test_rows_reduced_at_indices_have_torchs_derivatives():
    """Of ties, NaN, infinities, and one or several factors that are 0."""
    inf, nan = np.inf, np.nan
    table = torch.tensor([[1.0, 2, 0, nan, -inf], [5, inf, 0, 2, 3]])
    rows = torch.tensor([[1.0, 5, 0, 2, -inf], [1, 2, 3, inf, 2], [5, inf, 2, 1, 0], [2, 0, 0, 4, 0]])
    at = torch.tensor([0, 0, 1, 1])
    places, both = at[:, None].expand(4, 5), ({"include_self": True}, {"include_self": False})
    functions = [lambda t, r, h=h, o=o: t.scatter_reduce(0, places, r, h, **o) for h in ("prod", "amax") for o in both]
    functions += [lambda t, r, o=o: t.index_reduce(0, at, r, "amin", **o) for o in both]
    group, leaves = Group(functions), [t.clone().requires_grad_() for t in (table, rows)]
    model, wanted, ones = mw.from_torch(group, (table, rows)), group(*leaves), np.ones((2, 5), "f4")

    def pulled(i, *args):
        out, back = mw.vjp(lambda *args: model({}, *args)[i], *args)
        return out, back(ones)

    found = mw.jit(lambda *args: [pulled(i, *args) for i in range(len(functions))])(table.numpy(), rows.numpy())
    for i, ((out, grads), want) in enumerate(zip(found, wanted, strict=True)):
        np.testing.assert_allclose(out, want.detach(), rtol=1e-6, err_msg=str(i))
        for grad, slope in zip(grads, torch.autograd.grad(want.sum(), leaves)):
            np.testing.assert_allclose(grad, slope, rtol=1e-6, err_msg=str(i))


def test_medians_of_nan_and_of_equal_elements():
    x = torch.tensor([[1, np.nan, 2, 0, -0.0], [np.nan] * 5, [np.inf, -np.inf, 1, 1, 1], [3, 3, 2, 2, np.nan]])
    functions = [torch.median, torch.nanmedian, lambda x: x.median(1)[0], lambda x: x.nanmedian(1)[0]]
    at = [lambda x: x[:2, :3].median(1)[1], lambda x: x.median(0)[0], lambda x: torch.median(x[:0])]
    group = Group(functions + at)
    for got, want in zip(mw.from_torch(group, (x,))({}, x), group(x), strict=True):
        np.testing.assert_array_equal(got, want)
    for function in functions[:2]:
        for row in ([1.0, 2, 2, 2, 3], [np.nan, np.nan], [np.nan, 1, 1]):
            leaf = torch.tensor(row, requires_grad=True)
            function(leaf).backward()
            model = mw.from_torch(Of(lambda m, x, f=function: f(x)), (leaf.detach(),))
            got = mw.grad(lambda x, model=model: model({}, x))(leaf.detach().numpy())
            np.testing.assert_allclose(got, leaf.grad, rtol=1e-6)


def test_samples_at_positions_that_are_not_finite():
    inf, nan = np.inf, np.nan
    at = torch.tensor([[inf, 0], [0, -inf], [nan, 0], [0, nan], [5, 0], [nan, 5], [inf, 5]])
    for mode, dims in (("bilinear", 2), ("nearest", 2), ("bicubic", 2), ("bilinear", 3), ("nearest", 3)):
        x = IMAGE[:1] if dims == 2 else IMAGE[:1, :, None] * r0(3, 9, 8)
        points = torch.cat([at, at.new_zeros(7, dims - 2)], 1).reshape(1, *(1,) * (dims - 1), 7, dims)
        options = [{"mode": mode, "padding_mode": p, "align_corners": False} for p in ("zeros", "border", "reflection")]
        group = Group([lambda x, p, o=o: F.grid_sample(x, p, **o) for o in options])
        for got, want in zip(mw.from_torch(group, (x, points))({}, x, points), group(x, points), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=f"{mode} in {dims}")


def test_windows_see_nan_and_infinity_where_they_are():
    x = IMAGE[:1, :3].clone()
    x[0, 0, 2, 3:5], x[0, 0, 0, 0], x[0, 1], x[0, 2] = np.nan, np.inf, -np.inf, 1.0
    functions = [
        lambda x: F.unfold(x, 2, padding=1), lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)[1],
        lambda x: F.adaptive_max_pool2d(x, (4, 3), return_indices=True)[1], lambda x: F.unfold(x > 0, 2),
    ]  # fmt: skip
    for got, want in zip(mw.from_torch(Group(functions), (x,))({}, x), Group(functions)(x), strict=True):
        np.testing.assert_array_equal(got, want)


def test_integers_have_no_means_over_parts(refuses):
    with refuses(errors.RuleError, "int32", "float32"):
        mw.from_torch(Of(lambda _, x: F.adaptive_avg_pool2d(x, 4)), (IMAGE.int(),))({}, IMAGE.int())


def test_draws_have_the_moments_of_their_distributions():
    """Eight standard errors apart at most."""
    draws = [
        (torch.poisson, 3.5, 3.5, 3.5), (torch.poisson, 350.0, 350.0, 350.0), (torch._standard_gamma, 0.7, 0.7, 0.7),
        (lambda x: torch._sample_dirichlet(torch.stack([x, 2 * x], -1))[:, 0], 2.0, 1 / 3, 2 / 9 / 7),
        (lambda x: torch.binomial(x, x / 40), 10.0, 2.5, 1.875),
        (lambda x: torch.distributions.Gamma(x, 2 * x, validate_args=False).rsample(), 2.0, 0.5, 1 / 8),
        (lambda x: torch.distributions.Beta(x, 2 * x, validate_args=False).rsample(), 2.0, 1 / 3, 2 / 9 / 7),
    ]  # fmt: skip
    for draw, parameter, mean, variance in draws:
        x = torch.full((4000,), parameter)
        got = np.asarray(mw.from_torch(Group([draw]), (x,))({}, x, key=mw.random.key(1))[0])
        assert got.dtype == np.float32 and abs(got.mean() - mean) < 8 * (variance / 4000) ** 0.5
        assert 0.8 < got.var() / variance < 1.25
    dirichlet = Group([lambda x: torch.distributions.Dirichlet(x, validate_args=False).rsample()[:, 0]])
    alphas = torch.tensor([1.0, 2.0, 3.0]).expand(4000, 3).contiguous()
    model = mw.from_torch(dirichlet, (alphas,))
    slope = mw.grad(lambda x: model({}, x, key=mw.random.key(1))[0].mean())(alphas.numpy()).sum(0)
    np.testing.assert_allclose(slope, [5 / 36, -1 / 36, -1 / 36], atol=0.02)  # of the mean, 1 / 6
    assert np.isnan(mw.from_torch(Group([torch.poisson]), (x,))({}, -x, key=mw.random.key(1))[0]).all()


def test_weights_of_eight_bits():
    w = torch.arange(64 * 32).reshape(64, 32).sub(1024).remainder(251).sub(125).to(torch.int8)
    same(Of(lambda m, x: torch.ops.aten._weight_int8pack_mm(x, m.w, m.s), w=w, s=torch.rand(64)), torch.randn(4, 32))


def test_windows_and_closed_ranges_are_torchs():
    names = ("hamming", "blackman", "bartlett", "kaiser", "hann")
    windows = [
        partial(getattr(torch, f"{name}_window"), n, *periodic)
        for name in names for n in (1, 3, 7, 8) for periodic in ((), (False,))
    ]  # fmt: skip
    windows += [partial(torch.hamming_window, 6, True, 0.5, 0.4), partial(torch.kaiser_window, 6, False, 5.0)]
    windows += [partial(torch.range, 0, 4), partial(torch.range, 1, 3.4, 0.8), partial(torch.range, 3, -2, -2)]
    with pytest.warns(UserWarning, match="torch.range is deprecated"):
        same(Of(lambda _, x: tuple(x * w() for w in windows)), torch.tensor(1.5))


def test_products_of_bytes_positions_and_convolutions_of_time_first():
    a, b = (torch.arange(32 * 32).reshape(32, 32).mul(k).remainder(255).sub(127).to(torch.int8) for k in (7, 11))
    same(Of(lambda _, a, b: torch._int_mm(a, b)), a, b)
    positions = lambda _, x: tuple(torch.nonzero_static(x > 0.5, size=n, fill_value=-7) for n in (3, 100))  # noqa: E731
    same(Of(positions), X)
    kernel, bias = r(3, 4, 6), r(6)
    assert_torchs([lambda x, k, b: torch.conv_tbc(x, k, b, 1)], (r(7, 2, 4), kernel, bias), "conv_tbc")


def test_integers_drawn_like_others():
    whole, x = torch.zeros(4000, dtype=torch.int32), torch.zeros(4000)
    drawn = lambda _, i, x: (torch.randint_like(i, 3), torch.randint_like(x, 2, 6), torch.randint_like(x, 5, dtype=torch.int32))  # noqa: E731  # fmt: skip
    outs = mw.from_torch(Of(drawn), (whole, x))({}, whole, x, key=mw.random.key(0))
    assert [str(o.dtype) for o in outs] == ["int32", "float32", "int32"]
    for out, (low, high) in zip(outs, ((0, 3), (2, 6), (0, 5))):
        values, counts = np.unique(out, return_counts=True)
        assert list(values) == list(range(low, high)) and counts.min() > 0.85 * 4000 / (high - low)


def test_decompositions_without_a_derivative():
    symmetric, singular = SQUARE + SQUARE.mT, SQUARE.clone()
    symmetric[3, 3], singular[1] = -9.0, singular[0]

    def decomposed(_, x, s, z):
        return (
            L.cholesky_ex(s)[1], L.inv_ex(z * 0)[1], L.solve_ex(s, x[0])[1], L.matrix_rank(x), L.matrix_rank(z),
            L.matrix_rank(s, hermitian=True), *L.lu(x)[:1], torch.lu_unpack(*torch.lu(s))[0], torch.geqrf(x)[0],
            L.qr(x, mode="r")[1], L.lstsq(x.mT, x.mT).rank, L.lstsq(x.mT, x.mT, driver="gelsd").singular_values,
            L.householder_product(*torch.geqrf(x.mT)), L.lu_factor(s)[1],
        )  # fmt: skip

    same(Of(decomposed), X, symmetric, singular)


def test_what_has_no_decomposition_is_nan():
    model = mw.from_torch(Of(lambda _, s: (L.cholesky(s), L.lstsq(s[:, :2], s, driver="gelsd").residuals)), (SQUARE,))
    for out in model({}, np.outer(np.arange(-1, 3), np.ones(4)).astype("f4")):
        assert np.isnan(out).any()


@pytest.mark.parametrize("rows, columns, group", [(64, 64, 32), (272, 128, 64), (80, 64, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_of_four_bits_in_the_processors_order(rows, columns, group, dtype):
    w = torch.randint(0, 16, (rows, columns), dtype=torch.int32)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(w, 2)
    scales, x = torch.randn(columns // group, rows, 2).to(dtype), torch.randn(5, columns).to(dtype)
    product = torch.ops.aten._weight_int4pack_mm_for_cpu
    module = Of(lambda m, x: product(x, m.packed, group, m.scales), packed=packed, scales=scales)
    same(module, x, tolerance=1e-5 if dtype == torch.float32 else 4e-3)


def test_an_order_of_nibbles_that_is_not_known_is_refused(refuses, monkeypatch):
    monkeypatch.setattr(nibbles, "_pack", lambda weight: weight[:, ::-1].reshape(-1) & 15)
    with refuses(errors.RuleError, "w >> 4"):
        nibbles._blocks(48, 64)


def test_packs_and_types_that_are_not_known_are_refused(refuses):
    module = Of(lambda _, x: torch.ops.aten._dyn_quant_matmul_4bit(x, torch.ones(1088), 32, 32, 64))
    with refuses(errors.RuleError, "_dyn_quant_matmul_4bit", "order that depends on the processor", "w >> 4"):
        mw.from_torch(module, (torch.ones(4, 32),))
    for dtype in (torch.int4, torch.uint4):
        with refuses((errors.DTypeError, errors.RuleError), str(dtype)):
            mw.from_torch(torch.nn.Identity(), (torch.empty(3, dtype=dtype),))


def _quantized(m, x):
    ops, signed = torch.ops.quantized_decomposed, (-128, 127, torch.int8)
    a = ops.quantize_per_tensor(x, 0.03, 3, *signed)
    b = ops.quantize_per_channel(x, m.scales, m.zeros, 1, *signed)
    scales, zeros = ops.choose_qparams_per_token_asymmetric(x, torch.int8)
    c = ops.quantize_per_token(x, scales, zeros, *signed)
    d = ops.quantize_per_tensor.tensor(x, m.scales[:1], m.zeros[2], 0, 255, torch.uint8)
    grouped = [t[:, None].expand(4, 2).contiguous() for t in (m.scales, m.zeros)]
    return (
        a, ops.dequantize_per_tensor(a, 0.03, 3, *signed),
        b, ops.dequantize_per_channel(b, m.scales, m.zeros, 1, *signed),
        scales, zeros, c, ops.dequantize_per_token(c, scales, zeros, *signed, torch.float32),
        d, ops.dequantize_per_tensor.tensor(d, m.scales[:1], m.zeros[2], 0, 255, torch.uint8),
        ops.dequantize_per_channel_group(b[0], *grouped, -8, 7, torch.int8, 4, torch.float32),
        *ops.choose_qparams_per_token(x, torch.int8),
    )  # fmt: skip


def test_integers_with_scales_are_torchs():
    pytest.importorskip("torch.ao.quantization.fx._decomposed")
    x = torch.linspace(-4, 5, 96).reshape(3, 4, 8)
    same(Of(_quantized, scales=torch.rand(4) + 0.05, zeros=torch.tensor([1, -2, 0, 3])), x)


#: of activations and signs: both ends of the line, both zeros, the ends of pieces; of NaN the values alone
SPECIAL = torch.tensor([-np.inf, -100, -3, -1, -0.5, -0.0, 0, 0.25, 0.5, 1, 2.5, 3, 6, 20, 100, np.inf])
PIECES = [
    torch.abs, F.relu, F.relu6, F.leaky_relu, F.hardtanh, F.hardsigmoid, F.softshrink, F.hardshrink, F.softsign, F.elu,
    F.celu, F.selu, F.softplus, F.silu, F.mish, F.logsigmoid, torch.sigmoid, torch.tanh, lambda x: F.threshold(x, 0.5, 2.0),
    lambda x: F.l1_loss(x, torch.full_like(x, 3.0), reduction="none"), lambda x: x[4:6].norm(p=1), F.hardswish,
    lambda x: torch.fmax(x, -x), lambda x: torch.atan2(x, x.abs()), lambda x: torch.copysign(x, x * 0 + 1), lambda x: x.norm(p=0.5),
    lambda x: F.smooth_l1_loss(x, x.flip(0), reduction="none"), lambda x: F.huber_loss(x, x.flip(0) / 2, reduction="none"),
    torch.angle, lambda x: torch.view_as_real(torch.complex(x, x - x)).sum(-1) + torch.complex(x, x - x).angle(),
]  # fmt: skip


def test_the_ends_of_pieces_are_torchs():
    finite = SPECIAL[1:-1]  # where other functions are infinite, no cotangents of theirs are 0
    model = mw.from_torch(Group(PIECES), (finite,))
    leaf = finite.clone().requires_grad_()
    wanted = Group(PIECES)(leaf)
    outs, back = mw.jit(lambda x: mw.vjp(lambda x: model({}, x), x))(finite.numpy())
    for i, (got, want) in enumerate(zip(outs, wanted, strict=True)):
        np.testing.assert_allclose(got, want.detach(), rtol=1e-5, atol=1e-30, err_msg=str(i))
        ones = [np.full(o.shape, float(n == i), "f4") for n, o in enumerate(outs)]
        (slope,) = torch.autograd.grad(want.sum(), leaf, retain_graph=True)
        np.testing.assert_allclose(back(ones)[0], slope, rtol=1e-5, atol=1e-6, err_msg=str(i))


def test_a_batch_without_targets_has_no_gradient():
    functions = [
        lambda x: F.cross_entropy(x, T * 0 - 100), lambda x: F.cross_entropy(x, T * 0 - 100, label_smoothing=0.1),
        lambda x: F.nll_loss(x.log_softmax(-1), T * 0, ignore_index=0),
    ]  # fmt: skip
    model = mw.from_torch(Group(functions), (X[0],))
    outs, back = mw.vjp(lambda x: model({}, x), X[0].numpy())
    assert all(np.isnan(o) for o in outs)
    np.testing.assert_array_equal(back([np.ones((), "f4")] * 3)[0], 0)


def test_what_becomes_of_nan_and_infinity_is_torchs():
    functions = [p for p in PIECES if p is not F.hardswish]
    functions += [torch.sign, lambda x: torch.digamma(x * 0), lambda x: x.norm(p=3), lambda x: F.kl_div(x, -x - 1)]
    nan = torch.tensor([np.nan, 0.0, -0.0, np.inf])
    for i, (got, want) in enumerate(zip(mw.from_torch(Group(functions), (nan,))({}, nan), Group(functions)(nan))):
        np.testing.assert_allclose(got, want, rtol=1e-5, err_msg=str(i))


def test_slopes_at_nan_and_infinity_are_torchs():
    """Where others than NaN would be lost, or infinite differences be NaN."""
    functions = [
        torch.abs, lambda x: x.clamp(-1, 1), lambda x: x.clamp(min=x.flip(0)), lambda x: x.norm(p=3), lambda x: x.norm(), lambda x: x.max() + x.min(),
        lambda x: F.smooth_l1_loss(x[1:], x[:-1] * 0 + 1, reduction="none"), lambda x: F.huber_loss(x[1:], x[1:] * 0 + 1, reduction="none"),
        lambda x: F.l1_loss(x, x.roll(2), reduction="none"), F.hardswish,
    ]  # fmt: skip
    x = torch.tensor([np.nan, np.inf, -np.inf, 0.5, 2.0])
    leaf, model = x.clone().requires_grad_(), mw.from_torch(Group(functions), (x,))
    found = mw.jit(lambda x: [mw.grad(lambda x, i=i: model({}, x)[i].sum())(x) for i in range(len(functions))])(
        x.numpy()
    )
    for i, (got, f) in enumerate(zip(found, functions)):
        np.testing.assert_allclose(got, torch.autograd.grad(f(leaf).sum(), leaf)[0], rtol=1e-5, err_msg=str(i))


def test_classes_that_there_are_not_give_nan():
    x, labels = X[0], torch.tensor([1, 5, -3, 2])
    model = mw.from_torch(Group([lambda x, t: F.cross_entropy(x, t, reduction="none")]), (x, labels % 5))
    np.testing.assert_array_equal(np.isnan(model({}, x, labels)[0]), [False, True, True, False])


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_rows_are_those_of_the_factor(mode):
    x = torch.arange(14.0).view(1, 1, 14)
    sizes = [{"size": 46}, {"size": 13}, {"size": 28}, {"size": 42}]
    factors = [{"scale_factor": f} for f in (0.3, 0.6, 1.05, 1.7, 2.05, 2.1, 3.0)]
    same(Of(lambda m, x: tuple(F.interpolate(x, mode=mode, **to) for to in sizes + factors)), x)
    image = x.view(1, 1, 2, 7)
    same(Of(lambda m, x: F.interpolate(x, scale_factor=(3.4, 1.7), mode=mode)), image)


# --- attention ----------------------------------------------------------------------------------------------
def test_queries_that_see_nothing_attend_to_nothing():
    """In batches padded at the left the first rows of a mask are -inf throughout."""
    q, k, v = r(2, 2, 3, 4), r(2, 1, 5, 4), r(2, 1, 5, 4)
    seen = torch.ones(2, 1, 3, 5, dtype=torch.bool).tril(2)
    seen[1, 0, 1] = False

    def attention(m, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    for mask in (seen, torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)):
        inputs = [t.clone().requires_grad_() for t in (q, k, v)] + [
            mask.clone().requires_grad_(mask.is_floating_point())
        ]
        want = attention(None, *inputs)
        model = mw.from_torch(Of(attention), (q, k, v, mask))
        got, back = mw.vjp(partial(model, {}), *(t.detach().numpy() for t in inputs))
        np.testing.assert_allclose(got, want.detach(), rtol=1e-5, atol=1e-6)
        want.sum().backward()
        for t, grad in zip(inputs, back(np.ones(want.shape, "f4"))):
            if t.requires_grad:
                np.testing.assert_allclose(grad, t.grad, rtol=1e-4, atol=1e-5)


def test_rows_of_minus_infinity_have_a_safe_softmax():
    x = torch.tensor([[-torch.inf, -torch.inf], [1, -torch.inf]])
    model = mw.from_torch(Of(lambda m, x: torch.ops.aten._safe_softmax(x, 1)), (x,))
    out, back = mw.vjp(lambda x: model({}, x), x.numpy())
    np.testing.assert_array_equal(out, [[0, 0], [1, 0]])
    np.testing.assert_array_equal(back(np.ones((2, 2), "f4"))[0], 0)


# --- elements by where they lie in memory -------------------------------------------------------------------
def chunks(x):
    """Overlapping windows, as models with sliding attention make them."""
    h = x.view(2, 2, 4, 5)
    (b, n, w, d), (sb, sn, sw, sd) = h.shape, h.stride()
    return h.as_strided((b, 2 * n - 1, w, d), (sb, sn // 2, sw, sd))


STRIDED = [
    lambda x: x.t().as_strided((3, 2), (1, 3)), lambda x: x.t().as_strided((8, 10), (10, 1)), lambda x: x[1:].as_strided((2, 2), (1, 1)),
    lambda x: (x.t() * 2).as_strided((3,), (2,), 1), lambda x: x.as_strided((), (), 5), lambda x: x.as_strided((0, 2), (1, 1)),
    lambda x: x.as_strided((2, 3), (0, 4)), lambda x: x[2:5].as_strided((3, 3), (10, 1)), lambda x: chunks(x.view(2, 8, 5)),
    lambda x: x.view(4, 2, 10).permute(2, 0, 1).contiguous().as_strided((10, 2, 4), (8, 2, 1)),
    lambda x: x.view(4, 2, 10).permute(1, 0, 2).mul(2).as_strided((4, 10), (20, 1)),
]  # fmt: skip


@pytest.mark.parametrize("f", STRIDED)
@pytest.mark.parametrize("transposed", [False, True])
def test_strides_count_in_memory(f, transposed):
    x = r(10, 8).t() if transposed else r(8, 10)

    def run(_, x):
        return f(x.t().contiguous() + 1) if transposed else f(x)

    model, x = mw.from_torch(Of(run), (x,)), x.requires_grad_()
    want = run(None, x)
    weights = torch.arange(1.0, want.numel() + 1).reshape(want.shape)
    (want * weights).sum().backward()
    a = x.detach().numpy()
    np.testing.assert_array_equal(model(model.params, a), want.detach())
    np.testing.assert_allclose(mw.grad(lambda a: (model(model.params, a) * weights.numpy()).sum())(a), x.grad)


def test_writing_by_strides_and_what_they_cannot_count_in():
    def write(x):
        y = x * 2
        y.as_strided((2, 2), (3, 1), 1).mul_(5)
        return y

    x = r(3, 4)
    model = mw.from_torch(Of(lambda _, x: write(x)), (x.t(),))
    np.testing.assert_array_equal(model(model.params, x.t().numpy()), write(x.t()))
    with pytest.raises(errors.RuleError, match="part of another"):
        mw.from_torch(Of(lambda _, x: x.as_strided((2, 2), (1, 1))), (x[:, 1:3],))


@pytest.mark.parametrize("include_self", [True, False])
def test_means_of_integers_are_integers(include_self):
    table, rows = (TABLE * 5).int(), (X[0, :2, :3] * 5).int()
    module = Of(lambda m, t, x: t.scatter_reduce(0, IDS[:, :3], x, "mean", include_self=include_self))
    model = mw.from_torch(module, (table, rows))
    got = model(model.params, table.numpy(), rows.numpy())
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, module(table, rows))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(7, 9), (3, 4), (6, 10), (1, 5)])
def test_bytes_are_resized_in_fixed_point(mode, size):
    image = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, 3, 6, 5)).astype(np.uint8))
    options = [{"antialias": True}, {}, {"align_corners": True}]
    module = Group([partial(F.interpolate, size=size, mode=mode, **o) for o in options])
    module.functions.append(partial(F.interpolate, scale_factor=(1.7, 0.6), mode=mode))
    converted = mw.from_torch(module, (image,))
    for got, want in zip(converted(converted.params, image.numpy()), module(image), strict=True):
        np.testing.assert_array_equal(got, want)


def test_images_of_other_integers_are_not_interpolated(refuses):
    for options in ({}, {"antialias": True}):
        model = mw.from_torch(
            Of(lambda _, x, o=options: F.interpolate(x, (7, 9), mode="bilinear", **o)), (IMAGE.int(),)
        )
        with refuses(errors.RuleError, "int32", "float32"):
            model({}, IMAGE.int())


@pytest.mark.parametrize(
    ("first", "second"),
    [((48, 32), (4, 16, 32)), ((48, 64), (16, 64)), ((4, 24, 32), (64, 32)), ((4, 24, 32), (4, 16, 32))],
    ids=["rows", "sums", "columns", "one-each"],
)
def test_products_of_groups(first, second):
    """Groups of rows, of what is summed, of columns; the second one is empty."""
    whole = {(2, 3): first[0], (2, 2): first[1], (3, 2): second[0]}.get((len(first), len(second)))
    offs = None if whole is None else torch.tensor([8, 8, 24, whole], dtype=torch.int32)
    x, y = (r(*shape).to(torch.bfloat16) for shape in (first, second))
    same(Of(lambda m, x, y: torch._grouped_mm(x, y.mT, offs=m.offs), offs=offs), x, y, tolerance=8e-3)
