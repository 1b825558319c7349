"""Programs of a second examiner: networks on images and sequences that pad by themselves, optimizers, solvers, sorting.

Each function returns what those of ``benchmarks/field_programs.py`` do.
"""

from __future__ import annotations

import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from benchmarks.field_programs import xent
from benchmarks.shapes import Programs, int8s, ints, mesh_of, sgd
from meshwright import PartitionSpec as P
from meshwright import lax, nn

F32 = np.float32
NHWC = ("NHWC", "HWIO", "NHWC")
PROGRAMS = Programs()
program = PROGRAMS.add


def conv(x, w, stride=1, padding="SAME", groups=1):
    """A convolution of images with features last."""
    return lax.conv_general_dilated(x, w, (stride, stride), padding, dimension_numbers=NHWC, feature_group_count=groups)


def replicated(shapes):
    return {name: P() for name in shapes}


@program
def resnet_stem_blurred():
    """A ResNet's stem with max-pool, batch norm over space, an anti-aliased shortcut; images in tiles."""
    b, h, c = 4, 64, 16

    def norm(x, g):
        m = x.mean((0, 1, 2))
        return (x - m) * lax.rsqrt(((x - m) ** 2).mean((0, 1, 2)) + 1e-5) * g

    def blur(x):
        row = np.array([1, 2, 1], F32) / 4
        kernel = np.broadcast_to(np.outer(row, row)[:, :, None, None], (3, 3, 1, c))
        return conv(mnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))), kernel, 2, "VALID", c)

    def loss(p, x, y):
        z = nn.relu(norm(conv(x, p["a"], 2), p["g1"]))
        z = lax.reduce_window(z, -np.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        r = nn.relu(norm(conv(z, p["b"]), p["g2"]))
        z = blur(nn.relu(z + norm(conv(r, p["c"]), p["g3"])))
        z = lax.reduce_window(z, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
        return xent(z.mean((1, 2)) @ p["w"], y).mean()

    s = {"a": (7, 7, 3, c), "b": (3, 3, c, c), "c": (3, 3, c, c), "g1": (c,), "g2": (c,), "g3": (c,), "w": (c, 10)}
    rows = P(None, "h", "w")
    return sgd(loss), (s, (b, h, h, 3), ints(b)), (replicated(s), rows, P()), None, mesh_of(h=4, w=2)


@program
def causal_convolutions_in_time():
    """A temporal convolutional network: dilated causal convolutions after explicit padding, weight norm, time split."""
    b, t, c, layers = 4, 512, 16, 4

    def causal(x, w, d):
        padded = mnp.pad(x, ((0, 0), (2 * d, 0), (0, 0)))
        return lax.conv_general_dilated(
            padded, w, (1,), "VALID", rhs_dilation=(d,), dimension_numbers=("NHC", "HIO", "NHC")
        )

    def loss(p, x, y):
        z = x
        for i in range(layers):
            v = p["v"][i]
            z = z + nn.relu(causal(z, v * lax.rsqrt((v * v).sum((0, 1))) * p["g"][i], 2**i))
        return mnp.mean((z - y) ** 2)

    s = {"v": (layers, 3, c, c), "g": (layers, c)}
    split = P("b", "t")
    return sgd(loss), (s, (b, t, c), (b, t, c)), (replicated(s), split, split), None, mesh_of(b=2, t=4)


@program
def upsampled_modulated_convolutions():
    """A StyleGAN2 block: dilate, pad and filter, one kernel for each image, noise; images by batch and rows."""
    b, h, c = 4, 32, 8

    def up(x):
        row = np.array([1, 3, 3, 1], F32) / 4
        kernel = np.broadcast_to(np.outer(row, row)[:, :, None, None], (4, 4, 1, c))
        return conv(lax.pad(x, 0.0, ((0, 0, 0), (2, 2, 1), (2, 2, 1), (0, 0, 0))), kernel, 1, "VALID", c)

    def loss(p, x, z, y):
        w = p["w"][None] * (z @ p["s"])[:, None, None, :, None]
        w = w * lax.rsqrt((w * w).sum((1, 2, 3), keepdims=True) + 1e-8)
        out = mw.vmap(lambda x, w: conv(x[None], w)[0])(up(x), w)
        return mnp.mean((nn.leaky_relu(out + p["n"] * y[..., :1]) - y) ** 2)

    s = {"s": (16, c), "w": (3, 3, c, c), "n": ()}
    sp = {"s": P(), "w": P(None, None, None, "t"), "n": P()}
    args = s, (b, h, h, c), (b, 16), (b, 2 * h, 2 * h, c)
    return sgd(loss), args, (sp, P("d", "h"), P("d"), P("d", "h")), None, mesh_of(d=2, h=2, t=2)


@program
def multigrid_from_zeros():
    """V-cycles whose smoothing starts from zeros: strided restriction, interpolation by stacking; an odd number of
    points."""
    b, n = 8, 8191

    def residual(u, f):
        padded = mnp.pad(u, ((0, 0), (1, 1)))
        return f - 2 * u + padded[:, :-2] + padded[:, 2:]

    def smooth(u, f):
        return u + residual(u, f) / 3

    def cycle(f, level):
        u = smooth(mnp.zeros_like(f), f)
        if level:
            r = residual(u, f)
            e = cycle(r[:, :-2:2] + 2 * r[:, 1:-1:2] + r[:, 2::2], level - 1)
            padded = mnp.pad(e, ((0, 0), (1, 1)))
            middle = (padded[:, :-1] + padded[:, 1:]) / 2
            pairs = mnp.stack([middle[:, :-1], e], -1).reshape(b, -1)
            u = u + mnp.concatenate([pairs, middle[:, -1:]], 1)
        return smooth(u, f)

    return (lambda f: cycle(f[:, :n], 3)), ((b, n + 1),), (P(None, "d"),), None, mesh_of(d=8)


@program
def adam_in_8_bits():
    """Adam with moments in blocks of 8-bit integers and their scales, gradients clipped by their global norm, FSDP."""
    w, f, b, block = 256, 1024, 256, 128

    def packed(x):
        rows = x.reshape(-1, block)
        scale = mnp.max(mnp.abs(rows), -1, keepdims=True) / 127 + 1e-12
        return mnp.round(rows / scale).astype(np.int8), scale

    def unpacked(m, shape):
        return (m[0].astype(F32) * m[1]).reshape(shape)

    def step(p, m, v, x, y):
        def loss(p):
            return mnp.mean((nn.gelu(x @ p["a"]) @ p["b"] - y) ** 2)

        value, grads = mw.value_and_grad(loss)(p)
        norm = mnp.sqrt(sum((g * g).sum() for g in grads.values()))
        new_p, new_m, new_v = {}, {}, {}
        for name, g in grads.items():
            g = g * mnp.minimum(1, 1 / norm)
            first = 0.9 * unpacked(m[name], g.shape) + 0.1 * g
            second = 0.999 * unpacked(v[name], g.shape) + 0.001 * g * g
            new_p[name] = p[name] - 1e-3 * first / (mnp.sqrt(mnp.abs(second)) + 1e-8)
            new_m[name], new_v[name] = packed(first), packed(second)
        return value, new_p, new_m, new_v

    s = {"a": (w, f), "b": (f, w)}
    blocks = w * f // block
    moments = {name: (int8s(blocks, block), (blocks, 1)) for name in s}
    sp = {name: P("d") for name in s}
    return step, (s, moments, moments, (b, w), (b, w)), (sp, sp, sp, P("d"), P("d")), (P(), sp, sp, sp), mesh_of(d=8)


@program
def shifted_windows_in_two_directions():
    """Swin blocks, one with shifted windows, of images split by rows and columns."""
    b, n, c, w, h = 2, 32, 32, 4, 4

    def windows(x):
        return x.reshape(b, n // w, w, n // w, w, c).transpose(0, 1, 3, 2, 4, 5)

    def loss(p, x, y):
        for shift in (0, w // 2):
            z = windows(mnp.roll(x, (-shift, -shift), (1, 2))).reshape(-1, w * w, c)
            q, k, v = mnp.split((z @ p["qkv"]).reshape(-1, w * w, 3 * h, c // h), 3, 2)
            a = nn.softmax(mnp.einsum("nqhd,nkhd->nhqk", q, k) / np.sqrt(c // h) + p["bias"])
            o = mnp.einsum("nhqk,nkhd->nqhd", a, v).reshape(-1, w * w, c) @ p["o"]
            o = o.reshape(b, n // w, n // w, w, w, c).transpose(0, 1, 3, 2, 4, 5).reshape(x.shape)
            x = x + mnp.roll(o, (shift, shift), (1, 2))
        return mnp.mean((x - y) ** 2)

    s = {"qkv": (c, 3 * c), "bias": (h, w * w, w * w), "o": (c, c)}
    split = P(None, "h", "w")
    return sgd(loss), (s, (b, n, n, c), (b, n, n, c)), (replicated(s), split, split), None, mesh_of(h=4, w=2)


@program
def shift_buffer_carried():
    """A loop that carries a window of past features as a concatenation, and attends to it; the window is split."""
    b, n, w, t = 4, 64, 128, 32

    def run(p, buffer, xs):
        def step(carry, x):
            seen, h = carry
            seen = mnp.concatenate([seen[:, 1:], (x @ p["a"])[:, None]], 1)
            weights = nn.softmax(mnp.einsum("bw,btw->bt", h, seen))
            h = mnp.tanh(mnp.einsum("bt,btw->bw", weights, seen) @ p["b"])
            return (seen, h), h

        return lax.scan(step, (buffer, mnp.zeros((b, w), F32)), xs)

    s = {"a": (w, w), "b": (w, w)}
    sp = {"a": P(None, "t"), "b": P()}
    return run, (s, (b, n, w), (t, b, w)), (sp, P("d", "t"), P(None, "d")), None, mesh_of(d=2, t=4)


@program
def tables_of_categories():
    """DLRM with whole tables on different devices: bags of rows, pairwise interactions in the batch's split."""
    b, tables, rows, w = 128, 8, 500, 16

    def loss(p, ids, x, y):
        e = mw.vmap(lambda table, i: table[i].mean(1), (0, 1), 1)(p["t"], ids)
        d = nn.relu(x @ p["b"])
        z = mnp.concatenate([d[:, None], e], 1)
        i, j = np.triu_indices(tables + 1, 1)
        z = mnp.concatenate([d, mnp.einsum("bic,bjc->bij", z, z)[:, i, j]], 1)
        logit = (nn.relu(z @ p["m"]) @ p["o"])[:, 0]
        return mnp.mean(nn.softplus(logit) - logit * y)

    s = {"t": (tables, rows, w), "b": (13, w), "m": (w + 36, 64), "o": (64, 1)}
    sp = {"t": P("d"), "b": P(), "m": P(), "o": P()}
    args = s, ints(b, tables, 4), (b, 13), (b,)
    return sgd(loss), args, (sp, P("d"), P("d"), P("d")), None, mesh_of(d=8)


@program
def bitonic_network():
    """A sorting network of one split array, as reshapes into pairs."""
    n = 4096

    def sort(x):
        k = 2
        while k <= n:
            j = k // 2
            while j:
                pairs = x.reshape(-1, 2, j)
                low, high = mnp.minimum(pairs[:, 0], pairs[:, 1]), mnp.maximum(pairs[:, 0], pairs[:, 1])
                up = (np.arange(n).reshape(-1, 2, j)[:, 0] & k) == 0
                x = mnp.stack([mnp.where(up, low, high), mnp.where(up, high, low)], 1).reshape(n)
                j //= 2
            k *= 2
        return x

    return sort, ((n,),), (P("d"),), P("d"), mesh_of(d=8)


@program
def beams_with_caches():
    """Beam search in a loop: the caches follow their parents, the vocabulary is split."""
    b, k, v, w, t = 8, 4, 1024, 128, 16

    def run(p, ids):
        def step(i, carry):
            score, tokens, cache, h = carry
            total = (score[..., None] + nn.log_softmax(h @ p["u"])).reshape(b, k * v)
            score, best = lax.top_k(total, k)
            parent, token = best // v, best % v
            tokens = mnp.take_along_axis(tokens, parent[..., None], 1).at[:, :, i].set(token)
            cache = mnp.take_along_axis(cache, parent[..., None, None], 1)
            e = p["e"][token]
            cache = lax.dynamic_update_slice(cache, e[:, :, None], (0, 0, i, 0))
            seen = mnp.where(np.arange(t) <= i, mnp.einsum("bkw,bktw->bkt", e @ p["q"], cache), -1e9)
            h = mnp.tanh(mnp.einsum("bkt,bktw->bkw", nn.softmax(seen), cache) @ p["w"])
            return score, tokens, cache, h

        h = mnp.broadcast_to(p["e"][ids][:, None], (b, k, w))
        score = mnp.zeros((b, 1), F32) + np.where(np.arange(k) == 0, 0, -1e9).astype(F32)
        start = score, mnp.zeros((b, k, t), np.int32), mnp.zeros((b, k, t, w), F32), h
        return lax.fori_loop(0, t, step, start)[:2]

    s = {"u": (w, v), "e": (v, w), "q": (w, w), "w": (w, w)}
    return run, (s, ints(b)), ({"u": P(None, "t"), "e": P("t"), "q": P(), "w": P()}, P("d")), None, mesh_of(d=2, t=4)
