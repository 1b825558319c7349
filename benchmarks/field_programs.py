"""Programs of many fields that nobody tuned the partitioner for: training steps, inference and solvers.

Each function returns a function, the shapes of its arguments (float32 where no type is given), specs of arguments and
of results (None where nothing places them), and a mesh. ``benchmarks/fields.py`` compares their partitions with XLA's.
"""

from __future__ import annotations

import itertools

import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from benchmarks.shapes import Programs, bools, int8s, ints, mesh_of, sgd
from meshwright import NamedSharding, lax, nn
from meshwright import PartitionSpec as P

F32 = np.float32
PROGRAMS = Programs()
program = PROGRAMS.add


def adam(loss, rate=1e-3):
    def step(p, m, v, *a):
        l, g = mw.value_and_grad(loss)(p, *a)
        m = mw.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = mw.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, v, g)
        return l, mw.tree.map(lambda p, m, v: p - rate * m / (mnp.sqrt(v) + 1e-8), p, m, v), m, v

    return step


xent = nn.softmax_cross_entropy_with_integer_labels
D = P("d")


# --- sequence models ---------------------------------------------------------------------------------------
@program
def mamba2_ssd():
    """Chunked state space duality; heads over tensor axis, batch over data."""
    b, t, h, n, p, c, w = 8, 512, 8, 16, 32, 64, 256

    def loss(q, x, y):
        z = x @ q["in"]
        gate = x @ q["gate"]
        u = z.reshape(b, t // c, c, h, p)
        B_ = (x @ q["B"]).reshape(b, t // c, c, n)
        C = (x @ q["C"]).reshape(b, t // c, c, n)
        dt = nn.softplus(x @ q["dt"]).reshape(b, t // c, c, h)
        la = -dt * mnp.exp(q["A"])
        cs = mnp.cumsum(la, 2)
        seg = mnp.exp(cs[:, :, :, None] - cs[:, :, None]) * mnp.tril(mnp.ones((c, c), F32))[None, None, :, :, None]
        sc = mnp.einsum("bkin,bkjn->bkij", C, B_)[..., None] * seg
        yd = mnp.einsum("bkijh,bkjhp,bkjh->bkihp", sc, u, dt)
        decay = mnp.exp(cs[:, :, -1:] - cs)
        st = mnp.einsum("bkjn,bkjh,bkjhp->bkhnp", B_, decay * dt, u)
        tot = mnp.exp(cs[:, :, -1])

        def f(s, a):
            st, tot = a
            return s * tot[..., None, None] + st, s

        _, prev = lax.scan(f, mnp.zeros((b, h, n, p), F32), (st.swapaxes(0, 1), tot.swapaxes(0, 1)))
        yo = mnp.einsum("bkin,bkhnp,bkih->bkihp", C, prev.swapaxes(0, 1), mnp.exp(cs))
        o = (yd + yo).reshape(b, t, h * p) * nn.silu(gate)
        return mnp.mean((nn.rms_norm(o, q["norm"]) @ q["out"] - y) ** 2)

    params = {
        "in": (w, h * p),
        "gate": (w, h * p),
        "B": (w, n),
        "C": (w, n),
        "dt": (w, h),
        "A": (h,),
        "norm": (h * p,),
        "out": (h * p, w),
    }
    s = {
        "in": P(None, "t"),
        "gate": P(None, "t"),
        "B": P(),
        "C": P(),
        "dt": P(None, "t"),
        "A": P("t"),
        "norm": P("t"),
        "out": P("t"),
    }
    return sgd(loss), (params, (b, t, w), (b, t, w)), (s, P("d"), P("d")), (P(), s), mesh_of(d=2, t=4)


@program
def rwkv_time_mix():
    b, t, h, k = 16, 256, 8, 32
    w = h * k

    def loss(q, x, y):
        prev = mnp.concatenate([mnp.zeros_like(x[:, :1]), x[:, :-1]], 1)

        def mix(n):
            return (x * q["mu" + n] + prev * (1 - q["mu" + n])) @ q[n]

        r, kk, v = (mix(n).reshape(b, t, h, k) for n in "rkv")
        wd = mnp.exp(-mnp.exp(mix("w"))).reshape(b, t, h, k)

        def f(s, a):
            r, kk, v, wd = a
            kv = kk[..., None] * v[..., None, :]
            o = mnp.einsum("bhk,bhkv->bhv", r, s + q["u"][..., None] * kv)
            return s * wd[..., None] + kv, o

        _, o = lax.scan(f, mnp.zeros((b, h, k, k), F32), tuple(a.swapaxes(0, 1) for a in (r, kk, v, wd)))
        o = o.swapaxes(0, 1).reshape(b, t, w)
        x = x + o @ q["o"]
        prev = mnp.concatenate([mnp.zeros_like(x[:, :1]), x[:, :-1]], 1)
        m = mnp.square(nn.relu((x + prev) @ q["up"])) @ q["down"]
        return mnp.mean((x + m - y) ** 2)

    params = {
        **{"mu" + n: (w,) for n in "rkvw"},
        **dict.fromkeys("rkvw", (w, w)),
        "u": (h, k),
        "o": (w, w),
        "up": (w, 4 * w),
        "down": (4 * w, w),
    }
    s = {**{"mu" + n: P() for n in "rkvw"}, **{n: P("d") for n in "rkvwo"}, "u": P(), "up": P("d"), "down": P("d")}
    return sgd(loss), (params, (b, t, w), (b, t, w)), (s, D, D), (P(), s), mesh_of(d=8)


@program
def retnet_chunkwise_sp():
    """Retention with the sequence split over devices (chunk = device)."""
    b, t, h, k, c = 4, 1024, 4, 64, 128
    w = h * k

    def f(q, x):
        qq, kk, v = ((x @ q[n]).reshape(b, t // c, c, h, k) for n in "qkv")
        g = 1 - 2.0 ** (-5 - mnp.arange(h, dtype=F32))
        i = mnp.arange(c, dtype=F32)
        dm = mnp.where(i[:, None] >= i[None], g[:, None, None] ** (i[:, None] - i[None]), 0)
        inner = mnp.einsum("bnihk,bnjhk,hij,bnjhv->bnihv", qq, kk, dm, v)
        kv = mnp.einsum("bnjhk,bnjhv,jh->bnhkv", kk, v, g[None] ** (c - 1 - i)[:, None])

        def step(s, kv):
            return s * (g**c)[:, None, None] + kv, s

        _, s = lax.scan(step, mnp.zeros((b, h, k, k), F32), kv.swapaxes(0, 1))
        cross = mnp.einsum("bnihk,nbhkv,ih->bnihv", qq, s, g[None] ** (i + 1)[:, None])
        o = nn.layer_norm(inner + cross).reshape(b, t, w)
        return (o * nn.silu(x @ q["g"])) @ q["o"]

    return f, (dict.fromkeys("qkvgo", (w, w)), (b, t, w)), (P(), P(None, "s")), P(None, "s"), mesh_of(s=8)


@program
def hyena_long_conv():
    b, t, w = 8, 2048, 64

    def loss(q, x, y):
        v, a, bb = (x @ q[n] for n in "vab")
        pos = mnp.linspace(0, 1, t, dtype=F32)[:, None]
        h = mnp.sin(pos @ q["f1"]) @ q["f2"] * mnp.exp(-pos * mnp.exp(q["decay"]))

        def conv(u):
            U = mnp.fft.rfft(u, n=2 * t, axis=1) * mnp.fft.rfft(h, n=2 * t, axis=0)[None]
            return mnp.fft.irfft(U, n=2 * t, axis=1)[:, :t]

        z = bb * conv(a * v) + q["bias"] * v
        return mnp.mean((z @ q["o"] - y) ** 2)

    params = {
        "v": (w, w),
        "a": (w, w),
        "b": (w, w),
        "o": (w, w),
        "f1": (1, 32),
        "f2": (32, w),
        "decay": (w,),
        "bias": (w,),
    }
    return sgd(loss), (params, (b, t, w), (b, t, w)), (P(), P(None, "s"), P(None, "s")), (P(), P()), mesh_of(s=8)


@program
def mlstm_matrix_memory():
    b, t, h, k = 8, 128, 4, 32
    w = h * k

    def loss(q, x, y):
        qq, kk, v = ((x @ q[n]).reshape(b, t, h, k) for n in "qkv")
        i, f = (x @ q["i"], nn.log_sigmoid(x @ q["f"]))

        def step(s, a):
            C, n, m = s
            qt, kt, vt, it, ft = a
            mn = mnp.maximum(ft + m, it)
            fi, ii = mnp.exp(ft + m - mn)[..., None], mnp.exp(it - mn)[..., None]
            C = fi[..., None] * C + ii[..., None] * (vt[..., None] * kt[..., None, :])
            n = fi * n + ii * kt
            hh = mnp.einsum("bhvk,bhk->bhv", C, qt) / mnp.maximum(mnp.abs((n * qt).sum(-1, keepdims=True)), 1)
            return (C, n, mn), hh

        s0 = (mnp.zeros((b, h, k, k), F32), mnp.zeros((b, h, k), F32), mnp.zeros((b, h), F32))
        _, o = lax.scan(step, s0, tuple(a.swapaxes(0, 1) for a in (qq, kk, v, i, f)))
        return mnp.mean((o.swapaxes(0, 1).reshape(b, t, w) @ q["o"] - y) ** 2)

    params = {**dict.fromkeys("qkvo", (w, w)), "i": (w, h), "f": (w, h)}
    s = {"q": P(None, "t"), "k": P(None, "t"), "v": P(None, "t"), "o": P("t"), "i": P(None, "t"), "f": P(None, "t")}
    return (
        adam(loss),
        (params, params, params, (b, t, w), (b, t, w)),
        (s, s, s, P("d"), P("d")),
        (P(), s, s, s),
        mesh_of(d=4, t=2),
    )


# --- attention ---------------------------------------------------------------------------------------------
def mha(p, x, heads, kv=None, mask=None):
    kv = x if kv is None else kv
    q = (x @ p["q"]).reshape(*x.shape[:-1], heads, -1)
    k, v = ((kv @ p[n]).reshape(*kv.shape[:-1], heads, -1) for n in "kv")
    s = mnp.einsum("bqhd,bkhd->bhqk", q, k) / np.float32(np.sqrt(q.shape[-1]))
    if mask is not None:
        s = mnp.where(mask, s, -1e9)
    return mnp.einsum("bhqk,bkhd->bqhd", nn.softmax(s), v).reshape(*x.shape[:-1], -1) @ p["o"]


def att(w):
    return dict.fromkeys("qkvo", (w, w))


def ATT(a, b):
    return {"q": a, "k": a, "v": a, "o": b}


def mlp(p, x):
    return nn.gelu(x @ p["up"]) @ p["down"]


@program
def sliding_window_context_parallel():
    """Blocks of the sequence see themselves and the block before; the sequence is split."""
    b, t, h, k, w, blk = 4, 2048, 8, 32, 256, 128

    def loss(q, x, y):
        qq, kk, v = ((x @ q[n]).reshape(b, t // blk, blk, h, k) for n in "qkv")

        def before(a):
            return mnp.concatenate([mnp.zeros_like(a[:, :1]), a[:, :-1]], 1)

        k2, v2 = mnp.concatenate([before(kk), kk], 2), mnp.concatenate([before(v), v], 2)
        s = mnp.einsum("bnihk,bnjhk->bnhij", qq, k2) / np.float32(np.sqrt(k))
        i, j = mnp.arange(blk)[:, None] + blk, mnp.arange(2 * blk)[None]
        s = mnp.where((j <= i) & (j > i - blk), s, -1e9)
        o = mnp.einsum("bnhij,bnjhk->bnihk", nn.softmax(s), v2).reshape(b, t, w)
        return mnp.mean((x + o @ q["o"] - y) ** 2)

    return sgd(loss), (att(w), (b, t, w), (b, t, w)), (P(), P(None, "s"), P(None, "s")), (P(), P()), mesh_of(s=8)


@program
def bigbird_block_sparse():
    """Local, global and random blocks gathered by index; heads over tensor."""
    b, t, h, k, w, blk, r = 4, 1024, 8, 32, 256, 64, 3

    def f(q, x, idx):
        n = t // blk
        qq, kk, v = ((x @ q[n_]).reshape(b, n, blk, h, k) for n_ in "qkv")
        kr, vr = kk[:, idx].reshape(b, n, r * blk, h, k), v[:, idx].reshape(b, n, r * blk, h, k)
        kl = mnp.concatenate([mnp.roll(kk, 1, 1), kk, mnp.roll(kk, -1, 1), kr], 2)
        vl = mnp.concatenate([mnp.roll(v, 1, 1), v, mnp.roll(v, -1, 1), vr], 2)
        s = mnp.einsum("bnihk,bnjhk->bnhij", qq, kl) / np.float32(np.sqrt(k))
        o = mnp.einsum("bnhij,bnjhk->bnihk", nn.softmax(s), vl).reshape(b, t, w)
        return x + o @ q["o"]

    return (
        f,
        (att(w), (b, t, w), ints(t // blk, r)),
        (ATT(P(None, "t"), P("t")), P("d"), P()),
        P("d"),
        mesh_of(d=2, t=4),
    )


@program
def mla_decode_latent_cache():
    """DeepSeek's multi-head latent attention, one token, cache of latents split by sequence; absorbed weights."""
    b, t, h, k, c, w = 16, 4096, 16, 32, 128, 512

    def f(q, x, cache, pos):
        lat = x @ q["dkv"]
        cache = lax.dynamic_update_slice(cache, lat[:, None], (0, pos, 0))
        qh = (x @ q["q"]).reshape(b, h, k)
        ql = mnp.einsum("bhk,hkc->bhc", qh, q["uk"])
        s = mnp.einsum("bhc,btc->bht", ql, cache) / np.float32(np.sqrt(k))
        s = mnp.where(mnp.arange(t) <= pos, s, -1e9)
        o = mnp.einsum("bht,btc->bhc", nn.softmax(s), cache)
        o = mnp.einsum("bhc,hck->bhk", o, q["uv"]).reshape(b, h * k)
        return x + o @ q["o"], cache

    params = {"dkv": (w, c), "q": (w, h * k), "uk": (h, k, c), "uv": (h, c, k), "o": (h * k, w)}
    s = {"dkv": P(), "q": P(None, "t"), "uk": P("t"), "uv": P("t"), "o": P("t")}
    return f, (params, (b, w), (b, t, c), ints()), (s, P(), P(None, "t"), P()), (P(), P(None, "t")), mesh_of(t=8)


@program
def perceiver_io():
    """Latents attend to a split long input, several times."""
    b, t, n, w = 4, 4096, 96, 128

    def loss(q, x, y):
        z = mnp.broadcast_to(q["lat"], (b, n, w))
        for l in q["layers"]:
            z = z + mha(l["x"], nn.layer_norm(z), 4, nn.layer_norm(x))
            z = z + mha(l["s"], nn.layer_norm(z), 4)
            z = z + mlp(l, nn.layer_norm(z))
        o = mha(q["out"], x, 4, z)
        return mnp.mean((o - y) ** 2)

    one = {"x": att(w), "s": att(w), "up": (w, 4 * w), "down": (4 * w, w)}
    params = {"lat": (n, w), "layers": [one, one], "out": att(w)}
    return sgd(loss), (params, (b, t, w), (b, t, w)), (P(), P(None, "s"), P(None, "s")), (P(), P()), mesh_of(s=8)


@program
def set_transformer_uneven():
    """Induced set attention on 100 elements split over 8."""
    b, n, m, w = 12, 100, 16, 128

    def loss(q, x, y):
        for l in q["isab"]:
            i = mnp.broadcast_to(l["i"], (b, m, w))
            hh = i + mha(l["a"], i, 4, x)
            x = x + mha(l["b"], x, 4, hh)
            x = x + nn.relu(x @ l["ff"])
        s = mnp.broadcast_to(q["seed"], (b, 1, w))
        z = (s + mha(q["pma"], s, 4, x))[:, 0]
        return xent(z @ q["head"], y).mean()

    one = {"i": (m, w), "a": att(w), "b": att(w), "ff": (w, w)}
    return (
        sgd(loss),
        ({"isab": [one, one], "seed": (1, w), "pma": att(w), "head": (w, 40)}, (b, n, w), ints(b)),
        (P(), P(None, "s"), P()),
        (P(), P()),
        mesh_of(s=8),
    )


@program
def gqa_rope_tp_sp_2d():
    """Llama layer, grouped queries, rotary, fused gate-up, tensor 4 x data 2, with sequence parallel residual."""
    b, t, h, g, k = 4, 512, 16, 4, 32
    w, ff = h * k, 1408

    def rope(x):
        f = 10000.0 ** (-mnp.arange(0, k, 2, dtype=F32) / k)
        a = mnp.arange(t, dtype=F32)[:, None] * f
        c, s = mnp.cos(a)[:, None], mnp.sin(a)[:, None]
        x1, x2 = x[..., : k // 2], x[..., k // 2 :]
        return mnp.concatenate([x1 * c - x2 * s, x2 * c + x1 * s], -1)

    mesh = mesh_of(d=2, t=4)

    def loss(q, x, y):
        for l in q:
            hh = nn.rms_norm(x, l["n1"])
            qq = rope((hh @ l["q"]).reshape(b, t, h, k)).reshape(b, t, g, h // g, k)
            kk, v = rope((hh @ l["k"]).reshape(b, t, g, k)), (hh @ l["v"]).reshape(b, t, g, k)
            s = mnp.einsum("bigrk,bjgk->bgrij", qq, kk) / np.float32(np.sqrt(k))
            s = mnp.where(mnp.tril(mnp.ones((t, t), np.bool_)), s, -1e9)
            o = mnp.einsum("bgrij,bjgk->bigrk", nn.softmax(s), v).reshape(b, t, w)
            x = (
                lax.with_sharding_constraint(x + o @ l["o"], NamedSharding(mesh, P("d", "t")))
                if hasattr(lax, "with_sharding_constraint")
                else x + o @ l["o"]
            )
            gu = nn.rms_norm(x, l["n2"]) @ l["gu"]
            a, u = mnp.split(gu, 2, -1)
            x = lax.with_sharding_constraint(x + (nn.silu(a) * u) @ l["d"], NamedSharding(mesh, P("d", "t")))
        return mnp.mean((x - y) ** 2)

    one = {
        "n1": (w,),
        "n2": (w,),
        "q": (w, w),
        "k": (w, g * k),
        "v": (w, g * k),
        "o": (w, w),
        "gu": (w, 2 * ff),
        "d": (ff, w),
    }
    s = {
        "n1": P(),
        "n2": P(),
        "q": P(None, "t"),
        "k": P(None, "t"),
        "v": P(None, "t"),
        "o": P("t"),
        "gu": P(None, "t"),
        "d": P("t"),
    }
    return sgd(loss), ([one, one], (b, t, w), (b, t, w)), ([s, s], P("d", "t"), P("d", "t")), (P(), [s, s]), mesh


@program
def swin_windows():
    """Shifted window attention, batch 2 x rows 4."""
    b, s, win, w, h = 4, 32, 8, 96, 3

    def loss(q, x, y):
        for j, l in enumerate(q["l"]):
            sh = (win // 2) * (j % 2)
            z = mnp.roll(nn.layer_norm(x), (-sh, -sh), (1, 2)) if sh else nn.layer_norm(x)
            z = z.reshape(b, s // win, win, s // win, win, w).transpose(0, 1, 3, 2, 4, 5).reshape(-1, win * win, w)
            z = mha(l, z, h)
            z = z.reshape(b, s // win, s // win, win, win, w).transpose(0, 1, 3, 2, 4, 5).reshape(b, s, s, w)
            x = x + (mnp.roll(z, (sh, sh), (1, 2)) if sh else z)
            x = x + mlp(l, nn.layer_norm(x))
        x = (
            x.reshape(b, s // 2, 2, s // 2, 2, w).transpose(0, 1, 3, 2, 4, 5).reshape(b, s // 2, s // 2, 4 * w)
            @ q["merge"]
        )
        return xent(x.mean((1, 2)) @ q["head"], y).mean()

    one = {**att(w), "up": (w, 4 * w), "down": (4 * w, w)}
    return (
        sgd(loss),
        ({"l": [one, one], "merge": (4 * w, 2 * w), "head": (2 * w, 100)}, (b, s, s, w), ints(b)),
        (P(), P("d", "r"), P("d")),
        (P(), P()),
        mesh_of(d=2, r=4),
    )


# --- MoE ---------------------------------------------------------------------------------------------------
@program
def soft_moe():
    b, t, w, e, s, ff = 16, 256, 256, 8, 16, 512

    def loss(q, x, y):
        lg = mnp.einsum("btw,wes->btes", x, q["phi"])
        dis = nn.softmax(lg.reshape(b, t, e * s), 1).reshape(b, t, e, s)
        com = nn.softmax(lg.reshape(b, t, e * s), -1).reshape(b, t, e, s)
        z = mnp.einsum("btes,btw->besw", dis, x)
        z = mnp.einsum("besf,efw->besw", nn.gelu(mnp.einsum("besw,ewf->besf", z, q["up"])), q["down"])
        return mnp.mean((x + mnp.einsum("btes,besw->btw", com, z) - y) ** 2)

    params = {"phi": (w, e, s), "up": (e, w, ff), "down": (e, ff, w)}
    sp = {"phi": P(), "up": P("d"), "down": P("d")}
    return sgd(loss), (params, (b, t, w), (b, t, w)), (sp, D, D), (P(), sp), mesh_of(d=8)


@program
def hash_moe_dropless():
    """Tokens hashed to experts; all experts in a scan over experts with masks (dense dropless), experts split."""
    b, t, w, e, ff = 8, 256, 128, 16, 512

    def loss(q, tok, x, y):
        ex = (tok * 7919) % e
        oh = nn.one_hot(ex, e)
        hh = nn.relu(mnp.einsum("btw,ewf->btef", x, q["up"]))
        o = mnp.einsum("btef,efw,bte->btw", hh, q["down"], oh)
        return mnp.mean((x + o - y) ** 2)

    sp = {"up": P("e"), "down": P("e")}
    return (
        sgd(loss),
        ({"up": (e, w, ff), "down": (e, ff, w)}, ints(b, t), (b, t, w), (b, t, w)),
        (sp, P("d"), P("d"), P("d")),
        (P(), sp),
        mesh_of(d=2, e=4),
    )


@program
def moe_capacity_top2():
    """GShard: one-hot dispatch, capacity by cumsum; tokens in groups, experts split along the same axis."""
    g, s, w, e, c, ff = 8, 256, 128, 16, 48, 256

    def loss(q, x, y):
        pr = nn.softmax(x @ q["r"])
        v, i = lax.top_k(pr, 2)
        aux = (pr.mean(1) * nn.one_hot(i[..., 0], e).mean(1)).sum(-1).mean() * e
        disp = 0.0
        base = mnp.zeros((g, 1, e), F32)
        for r in range(2):
            oh = nn.one_hot(i[..., r], e)
            pos = mnp.cumsum(oh, 1) - oh + base
            base = base + oh.sum(1, keepdims=True)
            keep = oh * (pos < c)
            disp = (
                disp
                + (v[..., r, None] * keep)[..., None]
                * nn.one_hot((pos * keep).sum(-1).astype(np.int32), c)[..., None, :]
            )
        z = mnp.einsum("gsec,gsw->egcw", (disp > 0).astype(F32), x)
        z = mnp.einsum("egcf,efw->egcw", nn.relu(mnp.einsum("egcw,ewf->egcf", z, q["up"])), q["down"])
        o = mnp.einsum("gsec,egcw->gsw", disp, z)
        return mnp.mean((x + o - y) ** 2) + 0.01 * aux

    sp = {"r": P(), "up": P("d"), "down": P("d")}
    return (
        sgd(loss),
        ({"r": (w, e), "up": (e, w, ff), "down": (e, ff, w)}, (g, s, w), (g, s, w)),
        (sp, D, D),
        (P(), sp),
        mesh_of(d=8),
    )


@program
def moe_scatter_dispatch():
    """Tokens scattered into expert buffers by position within the expert, batch split, experts split."""
    n, w, e, c, ff = 4096, 128, 8, 640, 256

    def f(q, x):
        pr = nn.softmax(x @ q["r"])
        ex = mnp.argmax(pr, -1)
        oh = nn.one_hot(ex, e, dtype=np.int32)
        pos = (mnp.cumsum(oh, 0) * oh).sum(-1) - 1
        buf = mnp.zeros((e, c, w), F32).at[ex, pos].add(x, mode="drop")
        z = mnp.einsum("ecf,efw->ecw", nn.relu(mnp.einsum("ecw,ewf->ecf", buf, q["up"])), q["down"])
        o = z.at[ex, pos].get(mode="fill", fill_value=0)
        return x + o * pr.max(-1, keepdims=True)

    sp = {"r": P(), "up": P("d"), "down": P("d")}
    return f, ({"r": (w, e), "up": (e, w, ff), "down": (e, ff, w)}, (n, w)), (sp, D), D, mesh_of(d=8)


# --- generative --------------------------------------------------------------------------------------------
@program
def diffusion_transformer_adaln():
    b, t, w, h = 16, 256, 384, 6

    def loss(q, x, tt, noise, cls):
        ang = tt[:, None] * mnp.exp(-mnp.arange(64, dtype=F32) / 8)
        c = nn.silu(mnp.concatenate([mnp.sin(ang), mnp.cos(ang)], -1) @ q["t"]) + q["cls"][cls]
        z = (x + noise) @ q["in"]

        def block(z, l):
            m = (nn.silu(c) @ l["ada"])[:, None]
            s1, b1, g1, s2, b2, g2 = mnp.split(m, 6, -1)
            z = z + g1 * mha(l, nn.layer_norm(z) * (1 + s1) + b1, h)
            return z + g2 * mlp(l, nn.layer_norm(z) * (1 + s2) + b2), None

        z, _ = lax.scan(mw.checkpoint(block), z, q["l"])
        return mnp.mean((z @ q["out"] - noise) ** 2)

    L = 3
    one = {**dict.fromkeys("qkvo", (L, w, w)), "up": (L, w, 4 * w), "down": (L, 4 * w, w), "ada": (L, w, 6 * w)}
    params = {"t": (128, w), "cls": (1000, w), "in": (16, w), "out": (w, 16), "l": one}
    s = {"t": D, "cls": D, "in": P(None, "d"), "out": D, "l": {n: P(None, "d") for n in one}}
    return (
        adam(loss),
        (params, params, params, (b, t, 16), (b,), (b, t, 16), ints(b)),
        (s, s, s, D, D, D, D),
        (P(), s, s, s),
        mesh_of(d=8),
    )


@program
def rvq_codec():
    """Residual vector quantizer with EMA codebooks; batch split."""
    b, t, w, k, n = 16, 256, 64, 512, 4

    def f(books, counts, x):
        r, outs, nb, nc = x.reshape(-1, w), 0.0, [], []
        for i in range(n):
            dd = (r**2).sum(-1, keepdims=True) - 2 * r @ books[i].T + (books[i] ** 2).sum(-1)
            ix = mnp.argmin(dd, -1)
            oh = nn.one_hot(ix, k)
            cnt, tot = oh.sum(0), oh.T @ r
            c2 = 0.99 * counts[i] + 0.01 * cnt
            nb.append(0.99 * books[i] + 0.01 * tot / mnp.maximum(cnt, 1)[:, None])
            nc.append(c2)
            qv = books[i][ix]
            r, outs = r - qv, outs + qv
        return outs.reshape(b, t, w), mnp.stack(nb), mnp.stack(nc), mnp.mean(r**2)

    return f, ((n, k, w), (n, k), (b, t, w)), (P(), P(), D), (D, P(), P(), P()), mesh_of(d=8)


@program
def nerf_hash_grid():
    rays, s, L, T, fd, w = 1024, 32, 4, 16384, 2, 64

    def loss(q, o, dr, col):
        ts = mnp.linspace(0.1, 1, s, dtype=F32)
        p = o[:, None] + dr[:, None] * ts[:, None]
        feats = []
        for l in range(L):
            g = p * (16 * 2**l)
            lo = mnp.floor(g)
            fr = g - lo
            acc = 0.0
            for dx in (0, 1):
                for dy in (0, 1):
                    ix = lo.astype(np.int32)
                    hsh = ((ix[..., 0] + dx) ^ ((ix[..., 1] + dy) * 19349) ^ (ix[..., 2] * 83492)) % T
                    wt = (fr[..., 0] if dx else 1 - fr[..., 0]) * (fr[..., 1] if dy else 1 - fr[..., 1])
                    acc = acc + wt[..., None] * q["table"][l][hsh]
            feats.append(acc)
        hh = nn.relu(mnp.concatenate(feats, -1) @ q["a"])
        o4 = nn.relu(hh @ q["b"]) @ q["c"]
        sig, rgb = nn.softplus(o4[..., 0]) / s, nn.sigmoid(o4[..., 1:])
        tr = mnp.exp(-mnp.cumsum(sig, -1) + sig)
        return mnp.mean((((tr * (1 - mnp.exp(-sig)))[..., None] * rgb).sum(1) - col) ** 2)

    params = {"table": (L, T, fd), "a": (L * fd, w), "b": (w, w), "c": (w, 4)}
    return (
        adam(loss),
        (params, params, params, (rays, 3), (rays, 3), (rays, 3)),
        (P(), P(), P(), D, D, D),
        (P(), P(), P(), P()),
        mesh_of(d=8),
    )


@program
def gaussian_splatting():
    """Pixels (rows x cols) by gaussians, sorted by depth, composed; gaussians whole, pixels split in 2-D; gradient."""
    n, s = 128, 64

    def loss(q, img):
        order = mnp.argsort(q["z"])
        mu, cov, a, c = q["mu"][order], mnp.exp(q["sc"])[order], nn.sigmoid(q["a"])[order], q["c"][order]
        yy, xx = mnp.meshgrid(mnp.arange(s, dtype=F32), mnp.arange(s, dtype=F32), indexing="ij")
        d2 = ((yy[..., None] - mu[:, 0]) ** 2 + (xx[..., None] - mu[:, 1]) ** 2) / cov
        al = a * mnp.exp(-0.5 * d2)
        tr = mnp.cumprod(1 - al + 1e-6, -1) / (1 - al + 1e-6)
        return mnp.mean((mnp.einsum("yxn,nc->yxc", al * tr, c) - img) ** 2)

    params = {"z": (n,), "mu": (n, 2), "sc": (n,), "a": (n,), "c": (n, 3)}
    return sgd(loss), (params, (s, s, 3)), (P(), P("r", "c")), (P(), P()), mesh_of(r=4, c=2)


# --- graphs, geometry --------------------------------------------------------------------------------------
@program
def gat_edges_split():
    n, e, w, h = 2048, 16384, 64, 4

    def loss(q, x, src, dst, y):
        z = (x @ q["w"]).reshape(n, h, -1)
        a = nn.leaky_relu((z * q["as"]).sum(-1)[src] + (z * q["ad"]).sum(-1)[dst], 0.2)
        m = mnp.full((n, h), -1e9, F32).at[dst].max(lax.stop_gradient(a))
        ex = mnp.exp(a - m[dst])
        den = mnp.zeros((n, h), F32).at[dst].add(ex)
        o = mnp.zeros_like(z).at[dst].add((ex / (den[dst] + 1e-9))[..., None] * z[src])
        return xent(nn.elu(o.reshape(n, -1)) @ q["o"], y).mean()

    params = {"w": (w, w), "as": (h, w // h), "ad": (h, w // h), "o": (w, 16)}
    return sgd(loss), (params, (n, w), ints(e), ints(e), ints(n)), (P(), P(), D, D, P()), (P(), P()), mesh_of(d=8)


@program
def gnn_nodes_and_edges_split():
    """Message passing with nodes and edges both split (full graph), two rounds, forward only."""
    n, e, w = 4096, 16384, 64

    def f(q, x, ea, src, dst):
        for l in q:
            m = nn.relu(mnp.concatenate([x[src], x[dst], ea], -1) @ l["m"])
            agg = mnp.zeros((n, w), F32).at[dst].add(m)
            x = x + nn.relu(mnp.concatenate([x, agg], -1) @ l["u"])
            ea = ea + m
        return x

    one = {"m": (3 * w, w), "u": (2 * w, w)}
    return f, ([one, one], (n, w), (e, w), ints(e), ints(e)), (P(), D, D, D, D), D, mesh_of(d=8)


@program
def gnn_train_nodes_edges():
    n, e, w = 4096, 16384, 64

    def loss(q, x, src, dst, y):
        deg = mnp.zeros((n,), F32).at[dst].add(1.0)
        for l in q["l"]:
            hh = x @ l
            x = nn.relu(mnp.zeros((n, w), F32).at[dst].add(hh[src]) / (deg[:, None] + 1) + hh)
        return xent(x @ q["o"], y).mean()

    return (
        sgd(loss),
        ({"l": [(w, w)] * 3, "o": (w, 16)}, (n, w), ints(e), ints(e), ints(n)),
        (P(), D, D, D, D),
        (P(), P()),
        mesh_of(d=8),
    )


@program
def graph_transformer_dense():
    """Graphormer: dense bias from distances, graphs batch x heads."""
    b, n, w, h = 8, 96, 128, 8

    def loss(q, x, dist, y):
        bias = q["bias"][dist].transpose(0, 3, 1, 2)
        for l in q["l"]:
            qq, kk, v = ((nn.layer_norm(x) @ l[m]).reshape(b, n, h, -1) for m in "qkv")
            s = mnp.einsum("bihd,bjhd->bhij", qq, kk) / 4 + bias
            x = x + mnp.einsum("bhij,bjhd->bihd", nn.softmax(s), v).reshape(b, n, w) @ l["o"]
            x = x + mlp(l, nn.layer_norm(x))
        return mnp.mean((x.mean(1) @ q["out"] - y) ** 2)

    one = {**att(w), "up": (w, 2 * w), "down": (2 * w, w)}
    so = {**ATT(P(None, "t"), P("t")), "up": P(None, "t"), "down": P("t")}
    s = {"bias": P(None, "t"), "l": [so, so], "out": P()}
    return (
        sgd(loss),
        ({"bias": (32, h), "l": [one, one], "out": (w, 1)}, (b, n, w), ints(b, n, n), (b, 1)),
        (s, P("d"), P("d"), P("d")),
        (P(), s),
        mesh_of(d=2, t=4),
    )


@program
def egnn_forces():
    """Equivariant network energies, forces by gradient, loss on forces; molecules split."""
    b, n, w = 32, 20, 64

    def energy(q, z, x):
        hh = q["emb"][z]
        for l in q["l"]:
            dx = x[:, None] - x[None]
            d2 = (dx**2).sum(-1, keepdims=True)
            m = nn.silu(
                mnp.concatenate(
                    [mnp.broadcast_to(hh[:, None], (n, n, w)), mnp.broadcast_to(hh[None], (n, n, w)), d2], -1
                )
                @ l["e"]
            )
            x = x + (dx * (m @ l["c"])).mean(1)
            hh = hh + nn.silu(mnp.concatenate([hh, m.sum(1)], -1) @ l["n"])
        return (hh @ q["out"]).sum()

    def loss(q, z, x, f):
        ff = mw.vmap(mw.grad(energy, 2), (None, 0, 0))(q, z, x)
        return mnp.mean((ff + f) ** 2)

    one = {"e": (2 * w + 1, w), "c": (w, 1), "n": (2 * w, w)}
    return (
        sgd(loss),
        ({"emb": (10, w), "l": [one, one], "out": (w, 1)}, ints(b, n), (b, n, 3), (b, n, 3)),
        (P(), D, D, D),
        (P(), P()),
        mesh_of(d=8),
    )


@program
def pointnet_fps_knn():
    """Farthest point sampling, ball grouping, max pool; clouds on data 2, points on 4."""
    b, n, m, k, w = 8, 1024, 64, 16, 64

    def f(q, x):
        def fps(p):
            def step(c, _):
                d, last = c
                d = mnp.minimum(d, ((p - p[last]) ** 2).sum(-1))
                nx = mnp.argmax(d)
                return (d, nx), nx

            _, ix = lax.scan(step, (mnp.full((n,), 1e9, F32), mnp.int32(0)), None, length=m)
            return ix

        ix = mw.vmap(fps)(x)
        c = mnp.take_along_axis(x, ix[..., None], 1)
        d = ((c[:, :, None] - x[:, None]) ** 2).sum(-1)
        _, nb = lax.top_k(-d, k)
        g = mw.vmap(lambda p, i: p[i])(x, nb) - c[:, :, None]
        return (nn.relu(nn.relu(g @ q["a"]) @ q["b"])).max(2).max(1) @ q["o"]

    return f, ({"a": (3, w), "b": (w, w), "o": (w, 40)}, (b, n, 3)), (P(), P("d", "p")), P("d"), mesh_of(d=2, p=4)


# --- physics -----------------------------------------------------------------------------------------------
@program
def lattice_boltzmann():
    """D2Q9, grid split 2-D, ten steps."""
    nx, ny = 256, 192
    cx, cy = [0, 1, 0, -1, 0, 1, -1, -1, 1], [0, 0, 1, 0, -1, 1, 1, -1, -1]
    wt = [4 / 9] + [1 / 9] * 4 + [1 / 36] * 4

    def f(ff, mask):
        def step(ff, _):
            ff = mnp.stack([mnp.roll(ff[i], (cx[i], cy[i]), (0, 1)) for i in range(9)])
            rho = ff.sum(0)
            ux = sum(c * ff[i] for i, c in enumerate(cx) if c) / rho
            uy = sum(c * ff[i] for i, c in enumerate(cy) if c) / rho
            out = []
            for i in range(9):
                cu = 3 * (cx[i] * ux + cy[i] * uy)
                eq = rho * np.float32(wt[i]) * (1 + cu + 0.5 * cu**2 - 1.5 * (ux**2 + uy**2))
                out.append(ff[i] + 0.6 * (eq - ff[i]))
            new = mnp.stack(out)
            bounce = mnp.stack([ff[i] for i in (0, 3, 4, 1, 2, 7, 8, 5, 6)])
            return mnp.where(mask, bounce, new), (ux**2).mean()

        return lax.scan(step, ff, None, length=10)

    s = P(None, "x", "y")
    return f, ((9, nx, ny), bools(nx, ny)), (s, P("x", "y")), (s, P()), mesh_of(x=4, y=2)


@program
def sph_fluid():
    """SPH with all pairs: density, pressure, viscosity; particles split; 5 steps."""
    n = 2048

    def f(x, v):
        def step(c, _):
            x, v = c
            dx = x[:, None] - x[None]
            r = mnp.sqrt((dx**2).sum(-1) + 1e-6)
            wk = mnp.maximum(0, 1 - r / 0.1) ** 3
            rho = wk.sum(1)
            p = 10.0 * (rho - 1)
            gr = -3 * mnp.maximum(0, 1 - r / 0.1) ** 2 / 0.1
            fp = -((p[:, None] / rho[:, None] ** 2 + p[None] / rho[None] ** 2) * gr / r)[..., None] * dx
            fv = 0.1 * (v[None] - v[:, None]) / rho[None, :, None] * wk[..., None]
            v = v + 0.001 * (fp + fv).sum(1)
            return (x + 0.001 * v, v), rho.max()

        return lax.scan(step, (x, v), None, length=5)

    return f, ((n, 3), (n, 3)), (D, D), ((D, D), P()), mesh_of(d=8)


@program
def fem_assembly_cg():
    """Tetrahedral elements split, nodes replicated: matrix-free operator by gather and scatter, CG."""
    ne, nnode = 8192, 2048

    def f(conn, ke, b):
        def A(u):
            return mnp.zeros((nnode,), F32).at[conn].add(mnp.einsum("eij,ej->ei", ke, u[conn])) + u

        def step(c, _):
            x, r, p, rs = c
            ap = A(p)
            al = rs / (p @ ap)
            x, r = x + al * p, r - al * ap
            rn = r @ r
            return (x, r, r + rn / rs * p, rn), None

        (x, *_), _ = lax.scan(step, (mnp.zeros_like(b), b, b, b @ b), None, length=20)
        return x

    return f, (ints(ne, 4), (ne, 4, 4), (nnode,)), (D, D, P()), P(), mesh_of(d=8)


@program
def multigrid_vcycle():
    """Geometric multigrid V-cycle on a 2-D grid, rows split."""
    n = 256

    def lap(u):
        p = mnp.pad(u, 1)
        return 4 * u - p[2:, 1:-1] - p[:-2, 1:-1] - p[1:-1, 2:] - p[1:-1, :-2]

    def smooth(u, f):
        for _ in range(2):
            u = u + 0.2 * (f - lap(u))
        return u

    def v(u, f, lev):
        u = smooth(u, f)
        if lev == 0:
            return smooth(u, f)
        r = f - lap(u)
        m = r.shape[0] // 2
        rc = r.reshape(m, 2, m, 2).mean((1, 3)) * 4
        e = v(mnp.zeros_like(rc), rc, lev - 1)
        return smooth(u + e.repeat(2, 0).repeat(2, 1), f)

    def f(u, b):
        for _ in range(2):
            u = v(u, b, 3)
        return u, (lap(u) ** 2).mean()

    return f, ((n, n), (n, n)), (P("x", "y"), P("x", "y")), (P("x", "y"), P()), mesh_of(x=4, y=2)


@program
def spectral_navier_stokes():
    """2-D vorticity, pseudo-spectral RK2, rows split."""
    n = 256

    def f(wh):
        k = mnp.fft.fftfreq(n, dtype=F32) * n
        k2 = k[:, None] ** 2 + k[None] ** 2
        inv = mnp.where(k2 == 0, 0, 1 / mnp.where(k2 == 0, 1, k2))

        def rhs(wh):
            psi = wh * inv
            u, v = mnp.fft.ifft2(1j * k[None] * psi).real, -mnp.fft.ifft2(1j * k[:, None] * psi).real
            wx, wy = mnp.fft.ifft2(1j * k[:, None] * wh).real, mnp.fft.ifft2(1j * k[None] * wh).real
            return -mnp.fft.fft2((u * wx + v * wy).astype(np.complex64)) - 1e-3 * k2 * wh

        def step(wh, _):
            h = wh + 0.005 * rhs(wh)
            return wh + 0.01 * rhs(h), (mnp.abs(wh) ** 2).sum()

        return lax.scan(step, wh, None, length=3)

    c = mw.ShapeDtypeStruct((n, n), np.complex64)
    return f, (c,), (D,), (D, P()), mesh_of(d=8)


@program
def ising_checkerboard():
    n = 512

    def f(s, u):
        i = mnp.arange(n)
        board = ((i[:, None] + i[None]) % 2).astype(F32)

        def sweep(s, u):
            for c in (0.0, 1.0):
                nb = mnp.roll(s, 1, 0) + mnp.roll(s, -1, 0) + mnp.roll(s, 1, 1) + mnp.roll(s, -1, 1)
                flip = (u[int(c)] < mnp.exp(-0.88 * s * nb)) & (board == c)
                s = mnp.where(flip, -s, s)
            return s, (s.mean(), (s * mnp.roll(s, 1, 0)).mean())

        return lax.scan(sweep, s, u)

    return f, ((n, n), (6, 2, n, n)), (P("x", "y"), P(None, None, "x", "y")), (P("x", "y"), P()), mesh_of(x=2, y=4)


@program
def mpm_particle_grid():
    """Material points: particles split, grid replicated; scatter to 3x3 nodes, gather back."""
    n, g = 16384, 64

    def f(x, v, C):
        def step(c, _):
            x, v, C = c
            base = mnp.floor(x * g - 0.5).astype(np.int32)
            fx = x * g - base
            ws = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1) ** 2, 0.5 * (fx - 0.5) ** 2]
            mass, mom = mnp.zeros((g, g), F32), mnp.zeros((g, g, 2), F32)
            for i in range(3):
                for j in range(3):
                    wt = ws[i][:, 0] * ws[j][:, 1]
                    dp = (mnp.asarray(np.array([i, j], F32)) - fx) / g
                    mass = mass.at[base[:, 0] + i, base[:, 1] + j].add(wt)
                    mom = mom.at[base[:, 0] + i, base[:, 1] + j].add(
                        wt[:, None] * (v + mnp.einsum("nij,nj->ni", C, dp))
                    )
            gv = mom / (mass[..., None] + 1e-6)
            nv, nC = mnp.zeros_like(v), mnp.zeros_like(C)
            for i in range(3):
                for j in range(3):
                    wt = (ws[i][:, 0] * ws[j][:, 1])[:, None]
                    dp = (mnp.asarray(np.array([i, j], F32)) - fx) / g
                    gg = gv[base[:, 0] + i, base[:, 1] + j]
                    nv = nv + wt * gg
                    nC = nC + 4 * g * wt[..., None] * gg[..., None] * dp[:, None]
            return (x + 1e-3 * nv, nv, nC), None

        return lax.scan(step, (x, v, C), None, length=3)[0]

    return f, ((n, 2), (n, 2), (n, 2, 2)), (D, D, D), (D, D, D), mesh_of(d=8)


@program
def wave_equation_3d_adjoint():
    """Waveform inversion: gradient of a misfit through time steps of a 3-D stencil, z-slabs split, checkpointed."""
    n, m, steps = 64, 48, 8

    def lap(u):
        p = mnp.pad(u, 1)
        c = p[1:-1, 1:-1, 1:-1]
        return (
            p[2:, 1:-1, 1:-1]
            + p[:-2, 1:-1, 1:-1]
            + p[1:-1, 2:, 1:-1]
            + p[1:-1, :-2, 1:-1]
            + p[1:-1, 1:-1, 2:]
            + p[1:-1, 1:-1, :-2]
            - 6 * c
        )

    def loss(vel, src, rec):
        def step(c, s):
            a, b = c
            nx = 2 * b - a + 0.1 * vel * lap(b)
            nx = nx.at[n // 2, m // 2, m // 2].add(s)
            return (b, nx), nx[:, 2, 2]

        z = mnp.zeros((n, m, m), F32)
        _, r = lax.scan(mw.checkpoint(step), (z, z), src)
        return mnp.mean((r - rec) ** 2)

    return mw.value_and_grad(loss), ((n, m, m), (steps,), (steps, n)), (D, P(), P()), (P(), D), mesh_of(d=8)


# --- probabilistic -----------------------------------------------------------------------------------------
@program
def ensemble_kalman():
    """EnKF: members split; anomalies, gain, update."""
    e, n, o = 64, 2048, 256

    def f(X, y, Hm, eps):
        X = X + 0.01 * mnp.tanh(mnp.roll(X, 1, 1) - X)
        A = X - X.mean(0)
        HX = X @ Hm.T
        HA = HX - HX.mean(0)
        S = HA.T @ HA / (e - 1) + 0.1 * mnp.eye(o, dtype=F32)
        innov = y + eps - HX
        Z = mnp.linalg.solve(S, innov.T)
        return X + (HA @ Z).T @ A / (e - 1)

    return f, ((e, n), (o,), (o, n), (e, o)), (D, P(), P(), D), D, mesh_of(d=8)


@program
def particle_filter_resample():
    n, t, dd = 32768, 6, 4

    def f(x, ys, us, noise):
        def step(x, a):
            y, u, ns = a
            x = 0.9 * x + ns
            lw = -0.5 * ((x - y) ** 2).sum(-1)
            w = nn.softmax(lw)
            cs = mnp.cumsum(w)
            pos = (mnp.arange(n, dtype=F32) + u) / n
            ix = mnp.searchsorted(cs, pos)
            return x[mnp.minimum(ix, n - 1)], ((w[:, None] * x).sum(0), 1 / (w**2).sum())

        return lax.scan(step, x, (ys, us, noise))

    return f, ((n, dd), (t, dd), (t,), (t, n, dd)), (D, P(), P(), P(None, "d")), (D, P()), mesh_of(d=8)


@program
def hmm_forward_backward_em():
    """Baum-Welch: sequences split over data 4, states over 2."""
    b, t, k, v = 32, 128, 64, 100

    def f(la, lb, pi, obs):

        def ll(la, lb, pi, o):
            e = lb[:, o]  # k t

            def step(al, et):
                al = (
                    mw.scipy.special.logsumexp(al[:, None] + la, 0) + et
                    if hasattr(mw, "scipy")
                    else mnp.log(mnp.exp(al) @ mnp.exp(la)) + et
                )
                return al, None

            al, _ = lax.scan(step, pi + e[:, 0], e[:, 1:].T)
            m = al.max()
            return m + mnp.log(mnp.exp(al - m).sum())

        def tot(la, lb, pi):
            return mw.vmap(ll, (None, None, None, 0))(la, lb, pi, obs).sum()

        v_, (ga, gb, gp) = mw.value_and_grad(tot, (0, 1, 2))(la, lb, pi)

        def norm(g, ax):
            return mnp.log(g / g.sum(ax, keepdims=True) + 1e-9)

        return v_, norm(ga, 1), norm(gb, 1), norm(gp, 0)

    return (
        f,
        ((k, k), (k, v), (k,), ints(b, t)),
        (P(None, "s"), P("s"), P("s"), P("d")),
        (P(), P(None, "s"), P("s"), P("s")),
        mesh_of(d=4, s=2),
    )


@program
def crf_tagger():
    b, t, w, k = 32, 64, 128, 24

    def loss(q, x, y):
        e = x @ q["e"]

        def step(al, et):
            s = al[:, :, None] + q["tr"]
            m = s.max(1)
            return m + mnp.log(mnp.exp(s - m[:, None]).sum(1)) + et, None

        al, _ = lax.scan(step, e[:, 0], e[:, 1:].swapaxes(0, 1))
        z = al.max(1) + mnp.log(mnp.exp(al - al.max(1, keepdims=True)).sum(1))
        sc = mnp.take_along_axis(e, y[..., None], -1)[..., 0].sum(1) + q["tr"][y[:, :-1], y[:, 1:]].sum(1)
        return (z - sc).mean()

    return sgd(loss), ({"e": (w, k), "tr": (k, k)}, (b, t, w), ints(b, t)), (P(), D, D), (P(), P()), mesh_of(d=8)


@program
def ctc_loss():
    b, t, v, l, w = 16, 128, 64, 20, 128

    def loss(q, x, lab):
        lp = nn.log_softmax(nn.relu(x @ q["a"]) @ q["b"])
        ext = mnp.zeros((b, 2 * l + 1), np.int32).at[:, 1::2].set(lab)
        em = mnp.take_along_axis(lp, mnp.broadcast_to(ext[:, None], (b, t, 2 * l + 1)), -1)
        skip = mnp.concatenate([mnp.zeros((b, 2), np.bool_), ext[:, 2:] != ext[:, :-2]], 1)
        neg = np.float32(-1e9)

        def step(a, e):
            a1 = mnp.concatenate([mnp.full((b, 1), neg), a[:, :-1]], 1)
            a2 = mnp.where(skip, mnp.concatenate([mnp.full((b, 2), neg), a[:, :-2]], 1), neg)
            m = mnp.maximum(mnp.maximum(a, a1), a2)
            return m + mnp.log(mnp.exp(a - m) + mnp.exp(a1 - m) + mnp.exp(a2 - m)) + e, None

        a0 = mnp.where(mnp.arange(2 * l + 1) < 2, em[:, 0], neg)
        a, _ = lax.scan(step, a0, em[:, 1:].swapaxes(0, 1))
        return -mnp.logaddexp(a[:, -1], a[:, -2]).mean()

    return sgd(loss), ({"a": (w, 256), "b": (256, v)}, (b, t, w), ints(b, l)), (P(), D, D), (P(), P()), mesh_of(d=8)


@program
def sinkhorn_2d_grid():
    """Entropic OT with the cost matrix split both ways."""
    n, m, dd = 2048, 1536, 8

    def f(x, y):
        C = (x**2).sum(1)[:, None] + (y**2).sum(1)[None] - 2 * x @ y.T
        K = mnp.exp(-C)

        def step(c, _):
            u, v = c
            u = (1 / n) / (K @ v)
            v = (1 / m) / (K.T @ u)
            return (u, v), None

        (u, v), _ = lax.scan(step, (mnp.ones((n,), F32), mnp.ones((m,), F32)), None, length=10)
        Pn = u[:, None] * K * v
        return (Pn * C).sum(), n * Pn @ y

    return f, ((n, dd), (m, dd)), (P("r"), P("c")), (P(), P("r")), mesh_of(r=4, c=2)


@program
def kmeans_minibatch():
    n, k, dd = 65536, 256, 32

    def f(x, c):
        def step(c, _):
            d = (c**2).sum(1) - 2 * x @ c.T
            a = mnp.argmin(d, 1)
            s = mnp.zeros((k, dd), F32).at[a].add(x)
            cnt = mnp.zeros((k,), F32).at[a].add(1.0)
            return s / mnp.maximum(cnt, 1)[:, None], (d.min(1)).mean()

        return lax.scan(step, c, None, length=5)

    return f, ((n, dd), (k, dd)), (D, P()), (P(), P()), mesh_of(d=8)


@program
def gmm_em_full_cov():
    n, k, dd = 8192, 16, 16

    def f(x, mu, L, pi):
        def step(c, _):
            mu, L, pi = c
            diff = x[:, None] - mu
            z = lax.linalg.triangular_solve(L, diff.transpose(1, 2, 0), left_side=True, lower=True)
            lp = -0.5 * (z**2).sum(1).T - mnp.log(mnp.diagonal(L, axis1=1, axis2=2)).sum(1) + mnp.log(pi)
            r = nn.softmax(lp)
            nk = r.sum(0)
            mu = (r.T @ x) / nk[:, None]
            diff = x[:, None] - mu
            cov = mnp.einsum("nk,nki,nkj->kij", r, diff, diff) / nk[:, None, None] + 1e-3 * mnp.eye(dd, dtype=F32)
            return (mu, mnp.linalg.cholesky(cov), nk / n), lp.max(1).mean()

        return lax.scan(step, (mu, L, pi), None, length=3)

    return f, ((n, dd), (k, dd), (k, dd, dd), (k,)), (D, P(), P(), P()), (P(), P()), mesh_of(d=8)


# --- linear algebra, optimizers ----------------------------------------------------------------------------
@program
def als_matrix_factorization():
    """Ratings split by users x items; solve for users, then items."""
    n, m, k = 1024, 768, 16

    def f(R, W, U, V):
        reg = 0.1 * mnp.eye(k, dtype=F32)

        def solve(R, W, V):
            A = mnp.einsum("nm,mi,mj->nij", W, V, V) + reg
            return mnp.linalg.solve(A, ((R * W) @ V)[..., None])[..., 0]

        U = solve(R, W, V)
        V = solve(R.T, W.T, U)
        return U, V, (W * (R - U @ V.T) ** 2).sum()

    g = P("u", "i")
    return f, ((n, m), (n, m), (n, k), (m, k)), (g, g, P("u"), P("i")), (P("u"), P("i"), P()), mesh_of(u=4, i=2)


@program
def randomized_svd_rows():
    n, m, r = 8192, 256, 32

    def f(A, om):
        Y = A @ om
        for _ in range(2):
            Q, _ = mnp.linalg.qr(Y)
            Y = A @ (A.T @ Q)
        Q, _ = mnp.linalg.qr(Y)
        Bm = Q.T @ A
        u, s, vt = mnp.linalg.svd(Bm, full_matrices=False)
        return Q @ u, s, vt

    return f, ((n, m), (m, r)), (D, P()), (D, P(), P()), mesh_of(d=8)


@program
def gmres_arnoldi():
    n, k = 4096, 12

    def f(A, b):
        Q = [b / mnp.sqrt(b @ b)]
        Hm = []
        for j in range(k):
            w = A @ Q[j]
            col = []
            for i in range(j + 1):
                hh = Q[i] @ w
                w = w - hh * Q[i]
                col.append(hh)
            nw = mnp.sqrt(w @ w)
            Hm.append(mnp.stack(col + [nw] + [mnp.float32(0)] * (k - j - 1)))
            Q.append(w / nw)
        Hh = mnp.stack(Hm, 1)
        e1 = mnp.zeros((k + 1,), F32).at[0].set(mnp.sqrt(b @ b))
        y = mnp.linalg.solve(Hh.T @ Hh, Hh.T @ e1)
        return mnp.stack(Q[:k], 1) @ y

    return f, ((n, n), (n,)), (D, D), D, mesh_of(d=8)


@program
def lbfgs_logistic():
    n, m, h = 16384, 512, 6

    def f(x, y, w, S, Y):
        def loss(w):
            return mnp.mean(nn.softplus(-y * (x @ w))) + 1e-3 * w @ w

        _v, g = mw.value_and_grad(loss)(w)
        q, al = g, []
        for i in reversed(range(h)):
            rho = 1 / (S[i] @ Y[i])
            a = rho * (S[i] @ q)
            q = q - a * Y[i]
            al.append((a, rho))
        q = q * (S[-1] @ Y[-1]) / (Y[-1] @ Y[-1])
        for i in range(h):
            a, rho = al[h - 1 - i]
            q = q + S[i] * (a - rho * (Y[i] @ q))
        ts = mnp.array([1.0, 0.5, 0.25, 0.125], F32)
        ls = mw.vmap(lambda t: loss(w - t * q))(ts)
        t = ts[mnp.argmin(ls)]
        nw = w - t * q
        return nw, mnp.concatenate([S[1:], (nw - w)[None]]), mnp.concatenate([Y[1:], (mw.grad(loss)(nw) - g)[None]])

    return (
        f,
        ((n, m), (n,), (m,), (h, m), (h, m)),
        (P("d", "f"), P("d"), P("f"), P(None, "f"), P(None, "f")),
        (P("f"), P(None, "f"), P(None, "f")),
        mesh_of(d=4, f=2),
    )


@program
def kfac_step():
    b, sizes = 1024, [256, 512, 384, 10]

    def f(q, A, G, x, y):
        def net(q, pert):
            hh, acts = x, []
            for i, w in enumerate(q):
                acts.append(hh)
                hh = hh @ w + pert[i]
                if i < len(q) - 1:
                    hh = nn.relu(hh)
            return xent(hh, y).mean(), acts

        pert = [mnp.zeros((b, s), F32) for s in sizes[1:]]
        (l, acts), (g, dp) = mw.value_and_grad(net, (0, 1), has_aux=True)(q, pert)
        nq, nA, nG = [], [], []
        for i in range(len(q)):
            a = 0.95 * A[i] + 0.05 * acts[i].T @ acts[i] / b
            gg = 0.95 * G[i] + 0.05 * dp[i].T @ dp[i] * b
            ia = mnp.linalg.inv(a + 1e-2 * mnp.eye(a.shape[0], dtype=F32))
            ig = mnp.linalg.inv(gg + 1e-2 * mnp.eye(gg.shape[0], dtype=F32))
            nq.append(q[i] - 0.01 * ia @ g[i] @ ig)
            nA.append(a)
            nG.append(gg)
        return l, nq, nA, nG

    q = list(itertools.pairwise(sizes))
    return (
        f,
        (q, [(a, a) for a, _ in q], [(g, g) for _, g in q], (b, sizes[0]), ints(b)),
        (P(), P(), P(), D, D),
        (P(), P(), P(), P()),
        mesh_of(d=8),
    )


@program
def shampoo_blocks():
    """Shampoo, parameters FSDP, preconditioners split over the layer stack; inverse roots by coupled Newton."""
    L, w, b = 8, 128, 512

    def root(A):
        n = A.shape[-1]
        tr = mnp.trace(A, axis1=-2, axis2=-1)[..., None, None]
        X, Mm = mnp.broadcast_to(mnp.eye(n, dtype=F32), A.shape), A / tr
        for _ in range(4):
            T = (5 * mnp.eye(n, dtype=F32) - Mm) / 4
            X = X @ T
            T2 = T @ T
            Mm = T2 @ T2 @ Mm
        return X * tr**-0.25

    def step(q, l, r, x, y):
        def loss(q):
            hh, _ = lax.scan(lambda hh, w: (hh + nn.gelu(hh @ w), None), x, q)
            return mnp.mean((hh - y) ** 2)

        v, g = mw.value_and_grad(loss)(q)
        l = 0.9 * l + g @ g.swapaxes(1, 2)
        r = 0.9 * r + g.swapaxes(1, 2) @ g
        e = 1e-3 * mnp.eye(w, dtype=F32)
        return v, q - 0.1 * root(l + e) @ g @ root(r + e), l, r

    return (
        step,
        ((L, w, w), (L, w, w), (L, w, w), (b, w), (b, w)),
        (P(None, "d"), D, D, D, D),
        (P(), P(None, "d"), D, D),
        mesh_of(d=8),
    )


@program
def soap_tensor_parallel_muon():
    """Muon on a tensor-parallel MLP with momentum; weights split by t, batch by d."""
    w, ff, b = 256, 1024, 512

    def ns(g):
        x = g / (mnp.sqrt((g * g).sum()) + 1e-7)
        tr = x.shape[0] > x.shape[1]
        x = x.T if tr else x
        for _ in range(3):
            a = x @ x.T
            x = 3.4 * x + (-4.7 * a + 2.0 * a @ a) @ x
        return x.T if tr else x

    def step(q, m, x, y):
        v, g = mw.value_and_grad(lambda q: mnp.mean((nn.gelu(x @ q["up"]) @ q["down"] - y) ** 2))(q)
        m = mw.tree.map(lambda m, g: 0.95 * m + g, m, g)
        return v, mw.tree.map(lambda p, m: p - 0.02 * ns(m), q, m), m

    q, s = {"up": (w, ff), "down": (ff, w)}, {"up": P(None, "t"), "down": P("t")}
    return step, (q, q, (b, w), (b, w)), (s, s, P("d"), P("d")), (P(), s, s), mesh_of(d=2, t=4)


# --- training tricks ---------------------------------------------------------------------------------------
@program
def distill_ema_teacher():
    """DINO-like: student, EMA teacher (FSDP), centering, two crops."""
    b, w, k = 256, 256, 1024

    def net(q, x):
        for l in q["l"]:
            x = x + mlp(l, nn.layer_norm(x))
        x = x @ q["neck"]
        return (x / mnp.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)) @ q["proto"]

    def step(q, tq, center, a, c):
        ta, tc = net(tq, a), net(tq, c)
        pa, pc = nn.softmax((ta - center) / 0.04), nn.softmax((tc - center) / 0.04)

        def loss(q):
            return -(
                (pc * nn.log_softmax(net(q, a) / 0.1)).sum(-1) + (pa * nn.log_softmax(net(q, c) / 0.1)).sum(-1)
            ).mean()

        v, g = mw.value_and_grad(loss)(q)
        q = mw.tree.map(lambda p, g: p - 0.1 * g, q, g)
        tq = mw.tree.map(lambda t, p: 0.99 * t + 0.01 * p, tq, q)
        return v, q, tq, 0.9 * center + 0.1 * mnp.concatenate([ta, tc]).mean(0)

    one = {"up": (w, 4 * w), "down": (4 * w, w)}
    q = {"l": [one, one], "neck": (w, 128), "proto": (128, k)}
    s = {"l": [{"up": D, "down": D}] * 2, "neck": D, "proto": D}
    return step, (q, q, (k,), (b, w), (b, w)), (s, s, P(), D, D), (P(), s, s, P()), mesh_of(d=8)


@program
def moco_queue():
    """Contrastive loss with a queue that is split, new keys enter at a pointer."""
    b, w, dd, k = 256, 256, 64, 8192

    def enc(q, x):
        z = nn.relu(x @ q["a"]) @ q["b"]
        return z / mnp.sqrt((z * z).sum(-1, keepdims=True) + 1e-6)

    def step(q, kq, queue, ptr, x1, x2):
        key = lax.stop_gradient(enc(kq, x2))

        def loss(q):
            z = enc(q, x1)
            lg = mnp.concatenate([(z * key).sum(-1, keepdims=True), z @ queue.T], 1) / 0.07
            return (nn.logsumexp(lg, 1) - lg[:, 0]).mean()

        v, g = mw.value_and_grad(loss)(q)
        q = mw.tree.map(lambda p, g: p - 0.1 * g, q, g)
        kq = mw.tree.map(lambda a, b: 0.99 * a + 0.01 * b, kq, q)
        return v, q, kq, lax.dynamic_update_slice(queue, key, (ptr, 0)), (ptr + b) % k

    q = {"a": (w, 512), "b": (512, dd)}
    return (
        step,
        (q, q, (k, dd), ints(), (b, w), (b, w)),
        (P(), P(), P(), P(), D, D),
        (P(), P(), P(), P(), P()),
        mesh_of(d=8),
    )


@program
def ppo_gae():
    """PPO on a rollout (time, envs): GAE by reverse scan, advantages normalized, minibatch epochs in a scan."""
    t, n, o, a, w = 64, 256, 32, 8, 128

    def net(q, ob):
        hh = mnp.tanh(mnp.tanh(ob @ q["a"]) @ q["b"])
        return hh @ q["pi"], (hh @ q["v"])[..., 0]

    def step(q, ob, act, rew, done, lp0):
        _, val = net(q, ob)
        nxt = mnp.concatenate([val[1:], val[-1:]], 0)
        delta = rew + 0.99 * nxt * (1 - done) - val

        def back(c, a):
            d, dn = a
            c = d + 0.99 * 0.95 * (1 - dn) * c
            return c, c

        _, adv = lax.scan(back, mnp.zeros((n,), F32), (delta, done), reverse=True)
        ret = adv + val
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)

        def loss(q, b):
            ob, act, adv, ret, lp0 = b
            lg, v = net(q, ob)
            lp = mnp.take_along_axis(nn.log_softmax(lg), act[..., None], -1)[..., 0]
            r = mnp.exp(lp - lp0)
            return -mnp.minimum(r * adv, mnp.clip(r, 0.8, 1.2) * adv).mean() + 0.5 * ((v - ret) ** 2).mean()

        mb = mw.tree.map(lambda x: x.reshape(4, t // 4, n, *x.shape[2:]), (ob, act, adv, ret, lp0))

        def ep(q, b):
            l, g = mw.value_and_grad(loss)(q, b)
            gn = mnp.sqrt(sum((x * x).sum() for x in mw.tree.leaves(g)))
            return mw.tree.map(lambda p, g: p - 0.01 * g * mnp.minimum(1, 0.5 / gn), q, g), l

        return lax.scan(ep, q, mb)

    q = {"a": (o, w), "b": (w, w), "pi": (w, a), "v": (w, 1)}
    e = P(None, "d")
    return step, (q, (t, n, o), ints(t, n), (t, n), (t, n), (t, n)), (P(), e, e, e, e, e), (P(), P()), mesh_of(d=8)


@program
def dqn_prioritized_replay():
    """Prioritized replay: buffer split, sampling by cumulative priorities, TD update, priorities written back."""
    n, o, b, w, a = 65536, 16, 512, 128, 6

    def net(q, x):
        return nn.relu(nn.relu(x @ q["a"]) @ q["b"]) @ q["c"]

    def step(q, tq, ob, nob, act, rew, pri, u):
        cs = mnp.cumsum(pri)
        ix = mnp.minimum(mnp.searchsorted(cs, u * cs[-1]), n - 1)
        x, nx, aa, r, pr = ob[ix], nob[ix], act[ix], rew[ix], pri[ix]
        wt = (pri.sum() / (n * pr + 1e-6)) ** 0.4
        tgt = r + 0.99 * net(tq, nx).max(-1)

        def loss(q):
            td = mnp.take_along_axis(net(q, x), aa[:, None], 1)[:, 0] - tgt
            return (wt * td**2).mean(), td

        (l, td), g = mw.value_and_grad(loss, has_aux=True)(q)
        return l, mw.tree.map(lambda p, g: p - 0.01 * g, q, g), pri.at[ix].set(mnp.abs(td) + 1e-3)

    q = {"a": (o, w), "b": (w, w), "c": (w, a)}
    return (
        step,
        (q, q, (n, o), (n, o), ints(n), (n,), (n,), (b,)),
        (P(), P(), D, D, D, D, D, P()),
        (P(), P(), D),
        mesh_of(d=8),
    )


@program
def bootstrap_regression():
    """Bootstrap resamples of a linear regression; resamples split, data replicated."""
    r, n, p = 256, 512, 16

    def f(x, y, idx):
        def one(i):
            xx, yy = x[i], y[i]
            return mnp.linalg.solve(xx.T @ xx + 1e-3 * mnp.eye(p, dtype=F32), xx.T @ yy)

        bs = mw.vmap(one)(idx)
        return bs.mean(0), bs.std(0), mnp.quantile(bs, mnp.array([0.05, 0.95], F32), axis=0)

    return f, ((n, p), (n,), ints(r, n)), (P(), P(), D), (P(), P(), P()), mesh_of(d=8)


@program
def gradient_boosting_histograms():
    """Histograms of gradients per feature and bin; rows split x features split; best split found; rows routed."""
    n, ft, bins, nodes = 16384, 32, 64, 8

    def f(xb, g, h, node):
        fl = node[:, None] * bins + xb

        def hist(v):
            return (
                mnp.zeros((ft, nodes * bins), F32).at[mnp.arange(ft)[None], fl].add(v[:, None]).reshape(ft, nodes, bins)
            )

        G, Hh = mnp.cumsum(hist(g), -1), mnp.cumsum(hist(h), -1)
        Gt, Ht = G[..., -1:], Hh[..., -1:]
        gain = G**2 / (Hh + 1) + (Gt - G) ** 2 / (Ht - Hh + 1) - Gt**2 / (Ht + 1)
        flat = gain.transpose(1, 0, 2).reshape(nodes, -1)
        best = mnp.argmax(flat, -1)
        bf, bb = best // bins, best % bins
        right = mnp.take_along_axis(xb, bf[node][:, None], 1)[:, 0] > bb[node]
        return flat.max(-1), best, node * 2 + right

    return (
        f,
        (ints(n, ft), (n,), (n,), ints(n)),
        (P("d", "f"), P("d"), P("d"), P("d")),
        (P(), P(), P("d")),
        mesh_of(d=4, f=2),
    )


# --- inference ---------------------------------------------------------------------------------------------
@program
def paged_kv_decode():
    """Pages gathered through block tables; heads over tensor 4, batch over data 2."""
    b, pages, pg, h, k, w, mp = 16, 256, 16, 8, 32, 256, 12

    def f(q, x, kc, vc, table, lens):
        qq, kn, vn = ((x @ q[n]).reshape(b, h, k) for n in "qkv")
        slot = mnp.take_along_axis(table, (lens // pg)[:, None], 1)[:, 0]
        kc, vc = kc.at[slot, lens % pg].set(kn), vc.at[slot, lens % pg].set(vn)
        ks, vs = kc[table].reshape(b, mp * pg, h, k), vc[table].reshape(b, mp * pg, h, k)
        s = mnp.einsum("bhk,bthk->bht", qq, ks) / np.float32(np.sqrt(k))
        s = mnp.where(mnp.arange(mp * pg)[None, None] <= lens[:, None, None], s, -1e9)
        o = mnp.einsum("bht,bthk->bhk", nn.softmax(s), vs).reshape(b, w)
        return x + o @ q["o"], kc, vc

    c = P(None, None, "t")
    return (
        f,
        (att(w), (b, w), (pages, pg, h, k), (pages, pg, h, k), ints(b, mp), ints(b)),
        (ATT(P(None, "t"), P("t")), P("d"), c, c, P("d"), P("d")),
        (P("d"), c, c),
        mesh_of(d=2, t=4),
    )


@program
def int8_quantized_mlp():
    """Weights int8 with scales by channel, activations quantized per token, tensor parallel."""
    b, w, ff = 128, 1024, 4096

    def qm(x, wq, sc):
        s = mnp.abs(x).max(-1, keepdims=True) / 127 + 1e-8
        xi = mnp.clip(mnp.round(x / s), -127, 127).astype(np.int8)
        y = lax.dot_general(xi, wq, (((1,), (0,)), ((), ())), preferred_element_type=np.int32)
        return y.astype(F32) * s * sc

    def f(q, x):
        for l in q:
            hh = nn.rms_norm(x, l["n"])
            x = x + qm(nn.silu(qm(hh, l["g"], l["gs"])) * qm(hh, l["u"], l["us"]), l["d"], l["ds"])
        return x

    one = {"n": (w,), "g": int8s(w, ff), "gs": (ff,), "u": int8s(w, ff), "us": (ff,), "d": int8s(ff, w), "ds": (w,)}
    s = {"n": P(), "g": P(None, "t"), "gs": P("t"), "u": P(None, "t"), "us": P("t"), "d": P("t"), "ds": P()}
    return f, ([one, one], (b, w)), ([s, s], P()), P(), mesh_of(t=8)


@program
def top_p_sampling_vocab_split():
    b, w, v = 32, 512, 32000

    def f(x, head, u, counts):
        lg = x @ head - 0.1 * counts
        srt = -mnp.sort(-lg, -1)
        pr = nn.softmax(srt)
        cut = mnp.take_along_axis(srt, (mnp.cumsum(pr, -1) < 0.9).sum(-1)[:, None], 1)
        p = nn.softmax(mnp.where(lg >= cut, lg, -1e9))
        tok = (mnp.cumsum(p, -1) < u[:, None]).sum(-1)
        return tok, counts.at[mnp.arange(b), tok].add(1.0)

    return f, ((b, w), (w, v), (b,), (b, v)), (P(), P(None, "t"), P(), P(None, "t")), (P(), P(None, "t")), mesh_of(t=8)


@program
def label_smoothing_vocab_z_loss():
    """Head with vocabulary over t, tokens over d, label smoothing, z loss, gradient; uneven vocabulary."""
    n, w, v = 2048, 256, 10001

    def loss(q, x, y):
        lg = nn.layer_norm(x, q["g"]) @ q["h"]
        z = nn.logsumexp(lg, -1)
        ll = mnp.take_along_axis(lg, y[:, None], 1)[:, 0]
        return (z - 0.9 * ll - 0.1 * lg.mean(-1)).mean() + 1e-4 * (z**2).mean()

    s = {"g": P(), "h": P(None, "t")}
    return (
        mw.value_and_grad(loss, (0, 1)),
        ({"g": (w,), "h": (w, v)}, (n, w), ints(n)),
        (s, P("d"), P("d")),
        (P(), (s, P("d"))),
        mesh_of(d=2, t=4),
    )


@program
def image_augmentation():
    """Random crop, flip, colour jitter, mixup, normalization by batch statistics; images split."""
    b, s, c = 64, 72, 64

    def f(x, off, flip, jit, lam, perm):
        def crop(im, o):
            return lax.dynamic_slice(im, (o[0], o[1], 0), (c, c, 3))

        y = mw.vmap(crop)(x, off)
        y = mnp.where(flip[:, None, None, None], y[:, :, ::-1], y)
        y = y * jit[:, None, None] + y.mean((1, 2, 3), keepdims=True) * (1 - jit[:, None, None])
        y = (y - y.mean((0, 1, 2))) / (y.std((0, 1, 2)) + 1e-5)
        return lam[:, None, None, None] * y + (1 - lam[:, None, None, None]) * y[perm]

    return f, ((b, s, s, 3), ints(b, 2), bools(b), (b, 3), (b,), ints(b)), (D, D, D, D, D, P()), D, mesh_of(d=8)


@program
def fno_2d():
    """Fourier neural operator, channels mixed per mode, batch 2 x rows 4."""
    b, n, w, m = 4, 128, 32, 12

    def loss(q, x, y):
        z = x @ q["in"]
        for l in q["l"]:
            Z = mnp.fft.rfft2(z, axes=(1, 2))[:, :m, :m]
            Z = mnp.einsum("bxyi,xyio->bxyo", Z, l["re"] + 1j * l["im"])
            full = mnp.zeros((b, n, n // 2 + 1, w), np.complex64).at[:, :m, :m].set(Z)
            z = nn.gelu(mnp.fft.irfft2(full, s=(n, n), axes=(1, 2)) + z @ l["w"])
        return mnp.mean((z @ q["out"] - y) ** 2)

    one = {"re": (m, m, w, w), "im": (m, m, w, w), "w": (w, w)}
    return (
        sgd(loss),
        ({"in": (3, w), "l": [one, one], "out": (w, 1)}, (b, n, n, 3), (b, n, n, 1)),
        (P(), P("d", "r"), P("d", "r")),
        (P(), P()),
        mesh_of(d=2, r=4),
    )


@program
def evoformer_triangle():
    """AlphaFold pair track: triangle multiplication and triangle attention; pair rows split."""
    n, w, h = 96, 64, 4

    def loss(q, z, y):
        zz = nn.layer_norm(z)
        a, b = nn.sigmoid(zz @ q["ga"]) * (zz @ q["a"]), nn.sigmoid(zz @ q["gb"]) * (zz @ q["b"])
        z = z + nn.layer_norm(mnp.einsum("ikc,jkc->ijc", a, b)) @ q["o1"]
        z = z + nn.layer_norm(mnp.einsum("kic,kjc->ijc", a, b)) @ q["o2"]
        zz = nn.layer_norm(z)
        qq, kk, v = ((zz @ q[m]).reshape(n, n, h, -1) for m in "qkv")
        s = mnp.einsum("rihd,rjhd->rhij", qq, kk) / 4 + (zz @ q["bias"]).transpose(2, 0, 1)[None]
        z = z + mnp.einsum("rhij,rjhd->rihd", nn.softmax(s), v).reshape(n, n, w) @ q["o"]
        return mnp.mean((z - y) ** 2)

    p = {**dict.fromkeys(("ga", "a", "gb", "b", "o1", "o2", "q", "k", "v", "o"), (w, w)), "bias": (w, h)}
    return sgd(loss), (p, (n, n, w), (n, n, w)), (P(), D, D), (P(), P()), mesh_of(d=8)


@program
def unet3d_volume_spatial():
    b, n, m = 2, 64, 32

    def loss(q, x, y):
        a = nn.relu(nn.conv(x, q["a"]))
        c = nn.relu(nn.conv(nn.max_pool(a, 2), q["b"]))
        u = c.repeat(2, 1).repeat(2, 2).repeat(2, 3)
        lg = nn.conv(mnp.concatenate([u, a], -1), q["c"])
        p = nn.softmax(lg)
        oh = nn.one_hot(y, 4)
        dice = 2 * (p * oh).sum((1, 2, 3)) / (p.sum((1, 2, 3)) + oh.sum((1, 2, 3)) + 1e-5)
        return 1 - dice.mean()

    return (
        sgd(loss),
        ({"a": (3, 3, 3, 1, 8), "b": (3, 3, 3, 8, 16), "c": (3, 3, 3, 24, 4)}, (b, n, m, m, 1), ints(b, n, m, m)),
        (P(), P("d", "z"), P("d", "z")),
        (P(), P()),
        mesh_of(d=2, z=4),
    )


@program
def longformer_global_rows_2d_fsdp():
    """Encoder-decoder cross attention model, FSDP over both axes, batch over both, seq2seq with tied table."""
    b, s, t, w, v = 16, 96, 64, 256, 4000

    def loss(q, src, tgt):
        e = q["emb"][src]
        for l in q["enc"]:
            e = e + mha(l, nn.layer_norm(e), 8)
            e = e + mlp(l, nn.layer_norm(e))
        d = q["emb"][tgt]
        m = mnp.tril(mnp.ones((t, t), np.bool_))
        for l in q["dec"]:
            d = d + mha(l["s"], nn.layer_norm(d), 8, mask=m)
            d = d + mha(l["c"], nn.layer_norm(d), 8, e)
            d = d + mlp(l, nn.layer_norm(d))
        lg = d[:, :-1] @ q["emb"].T
        return xent(lg, tgt[:, 1:]).mean()

    ff = {"up": (w, 4 * w), "down": (4 * w, w)}
    p = {"emb": (v, w), "enc": [{**att(w), **ff}], "dec": [{"s": att(w), "c": att(w), **ff}]}
    f, g = P("d", "t"), P("t", "d")
    F = {"up": f, "down": g}
    s_ = {"emb": P("t", "d"), "enc": [{**ATT(f, g), **F}], "dec": [{"s": ATT(f, g), "c": ATT(f, g), **F}]}
    return (
        adam(loss),
        (p, p, p, ints(b, s), ints(b, t)),
        (s_, s_, s_, P(("d",)), P(("d",))),
        (P(), s_, s_, s_),
        mesh_of(d=4, t=2),
    )


@program
def grad_accum_zero2_clip():
    """Gradient accumulation over microbatches in a scan, ZeRO-2 (optimizer split, params whole), global clip."""
    mb, b, w, L = 4, 64, 256, 3

    def step(q, m, x, y):
        def loss(q, x, y):
            for l in q:
                x = x + nn.gelu(x @ l[0]) @ l[1]
            return mnp.mean((x - y) ** 2)

        def acc(g, a):
            l, gg = mw.value_and_grad(loss)(q, *a)
            return mw.tree.map(lambda a, b: a + b / mb, g, gg), l

        g, l = lax.scan(acc, mw.tree.map(mnp.zeros_like, q), (x, y))
        gn = mnp.sqrt(sum((z * z).sum() for z in mw.tree.leaves(g)))
        g = mw.tree.map(lambda z: z * mnp.minimum(1, 1 / gn), g)
        m = mw.tree.map(lambda m, g: 0.9 * m + g, m, g)
        return l.mean(), mw.tree.map(lambda p, m: p - 0.1 * m, q, m), m

    q = [[(w, 4 * w), (4 * w, w)]] * L
    s = [[D, D]] * L
    return step, (q, q, (mb, b, w), (mb, b, w)), (P(), s, P(None, "d"), P(None, "d")), (P(), P(), s), mesh_of(d=8)


@program
def beam_search_step_vocab():
    """One beam step: logits over split vocabulary, top-k over beams x vocab, caches reordered by parent beam."""
    b, k, w, v, t, _h = 8, 4, 256, 16000, 128, 8

    def f(x, emb, cache, scores, seq):
        lp = nn.log_softmax(x @ emb.T) + scores[..., None]
        sc, ix = lax.top_k(lp.reshape(b, k * v), k)
        par, tok = ix // v, ix % v
        cache = mnp.take_along_axis(cache, par[:, :, None, None], 1)
        seq = mnp.concatenate([mnp.take_along_axis(seq, par[..., None], 1)[:, :, 1:], tok[..., None]], -1)
        return emb[tok], cache, sc, seq

    return (
        f,
        ((b, k, w), (v, w), (b, k, t, w), (b, k), ints(b, k, t)),
        (P("d"), P("t"), P("d", None, None, "t"), P("d"), P("d")),
        (P("d"), P("d", None, None, "t"), P("d"), P("d")),
        mesh_of(d=2, t=4),
    )


@program
def speculative_tree_verify():
    """Tree attention over draft tokens against a split cache, acceptance by matching greedy tokens."""
    b, n, t, h, k, v = 8, 16, 1024, 8, 32, 8000
    w = h * k

    def f(q, x, kc, vc, mask, draft):
        qq, kn, vn = ((x @ q[m]).reshape(b, n, h, k) for m in "qkv")
        s1 = mnp.einsum("bnhk,bthk->bhnt", qq, kc)
        s2 = mnp.where(mask, mnp.einsum("bnhk,bmhk->bhnm", qq, kn), -1e9)
        p = nn.softmax(mnp.concatenate([s1, s2], -1) / np.float32(np.sqrt(k)))
        o = mnp.einsum("bhnt,bthk->bnhk", p[..., :t], vc) + mnp.einsum("bhnm,bmhk->bnhk", p[..., t:], vn)
        lg = (x + o.reshape(b, n, w) @ q["o"]) @ q["head"]
        g = mnp.argmax(lg, -1)
        ok = mnp.cumprod((g[:, :-1] == draft[:, 1:]).astype(np.int32), 1)
        cnt = ok.sum(1)
        return mnp.take_along_axis(g, cnt[:, None], 1), cnt

    c = P(None, "t")
    return (
        f,
        ({**att(w), "head": (w, v)}, (b, n, w), (b, t, h, k), (b, t, h, k), bools(n, n), ints(b, n)),
        ({**{m: P() for m in "qkvo"}, "head": P(None, "t")}, P(), c, c, P(), P()),
        (P(), P()),
        mesh_of(t=8),
    )


@program
def vae_flow_couplings():
    """RealNVP with checkerboard couplings on vectors, features split by tensor 2, batch 4."""
    b, w, hdim = 512, 256, 512

    def loss(q, x):
        ld = 0.0
        for i, l in enumerate(q):
            a, c = mnp.split(x, 2, -1)
            if i % 2:
                a, c = c, a
            st = nn.relu(a @ l["a"]) @ l["b"]
            s, t = mnp.split(st, 2, -1)
            s = mnp.tanh(s)
            c = c * mnp.exp(s) + t
            ld = ld + s.sum(-1)
            x = mnp.concatenate([a, c], -1)[:, l_perm]
        return (0.5 * (x**2).sum(-1) - ld).mean()

    l_perm = np.random.RandomState(0).permutation(w)
    one = {"a": (w // 2, hdim), "b": (hdim, w)}
    s = {"a": P(None, "t"), "b": P("t")}
    return sgd(loss), ([one] * 4, (b, w)), ([s] * 4, P("d")), (P(), [s] * 4), mesh_of(d=4, t=2)


# --- added later: what was learnt from ----------------------------------------------------------------------
@program
def fno_both_corners():
    """Fourier neural operator that keeps low frequencies of both signs, trained with Adam."""
    b, n, w, m = 4, 64, 32, 12

    def loss(q, x, y):
        z = x @ q["in"]
        for l in q["l"]:
            Z = mnp.fft.rfft2(z, axes=(1, 2))
            A = mnp.einsum("bxyi,xyio->bxyo", Z[:, :m, :m], l["re"] + 1j * l["im"])
            B = mnp.einsum("bxyi,xyio->bxyo", Z[:, -m:, :m], l["re2"] + 1j * l["im2"])
            full = mnp.zeros((b, n, n // 2 + 1, w), np.complex64).at[:, :m, :m].set(A).at[:, -m:, :m].set(B)
            z = nn.gelu(mnp.fft.irfft2(full, s=(n, n), axes=(1, 2)) + z @ l["w"])
        return mnp.mean((z @ q["out"] - y) ** 2)

    one = {"re": (m, m, w, w), "im": (m, m, w, w), "re2": (m, m, w, w), "im2": (m, m, w, w), "w": (w, w)}
    return (
        adam(loss),
        ({"in": (3, w), "l": [one, one], "out": (w, 1)},) * 3 + ((b, n, n, 3), (b, n, n, 1)),
        (P(), P(), P(), P("d", "r"), P("d", "r")),
        (P(), P(), P(), P()),
        mesh_of(d=2, r=4),
    )


@program
def mri_unrolled_coils():
    """Unrolled reconstruction from several coils: masked transforms, convolutional regularizer; coils x rows."""
    c, n = 8, 128

    def f(q, k, sens, mask):
        x = (mnp.fft.ifft2(k) * mnp.conj(sens)).sum(0)
        for l in q:
            r = mask * mnp.fft.fft2(sens * x) - k
            g = (mnp.fft.ifft2(mask * r) * mnp.conj(sens)).sum(0)
            z = mnp.stack([x.real, x.imag], -1)[None]
            z = nn.conv(nn.relu(nn.conv(z, l["a"])), l["b"])[0]
            x = x - 0.5 * g - (z[..., 0] + 1j * z[..., 1])
        return mnp.abs(x)

    cpx = mw.ShapeDtypeStruct((c, n, n), np.complex64)
    return (
        f,
        ([{"a": (3, 3, 2, 16), "b": (3, 3, 16, 2)}] * 3, cpx, cpx, (n, n)),
        (P(), P("c", "r"), P("c", "r"), P("r")),
        P("r"),
        mesh_of(c=2, r=4),
    )


@program
def als_list_of_ratings():
    """Alternating least squares on a list of ratings: outer products of item factors are summed by user."""
    n, m, k, e = 4096, 2048, 16, 65536

    def f(u, i, r, U, V):
        v = V[i]
        A = mnp.zeros((n, k, k), F32).at[u].add(v[:, :, None] * v[:, None, :])
        b = mnp.zeros((n, k), F32).at[u].add(r[:, None] * v)
        return mnp.linalg.solve(A + 0.1 * mnp.eye(k, dtype=F32), b[..., None])[..., 0]

    return f, (ints(e), ints(e), (e,), (n, k), (m, k)), (D, D, D, D, P()), D, mesh_of(d=8)


@program
def irls_tall_qr():
    """Logistic regression by reweighted least squares, each step a QR of a tall matrix whose rows are split."""
    n, p_ = 16384, 32

    def f(X, y):
        def step(b, _):
            mu = nn.sigmoid(X @ b)
            w = mnp.sqrt(mu * (1 - mu) + 1e-4)
            z = X @ b + (y - mu) / (w**2)
            q, r = mnp.linalg.qr(X * w[:, None])
            return lax.linalg.triangular_solve(r, (q.T @ (z * w))[:, None], left_side=True, lower=False)[:, 0], None

        return lax.scan(step, mnp.zeros((p_,), F32), None, length=5)[0]

    return f, ((n, p_), (n,)), (D, D), P(), mesh_of(d=8)


@program
def hybrid_ssm_moe_scan():
    """State space recurrence and dense mixture of experts in a scan over layers, FSDP."""
    b, t, w, e, L = 16, 128, 128, 8, 2

    def loss(q, x, y):
        def block(x, l):
            z = nn.rms_norm(x, l["n"])
            u, g = z @ l["u"], z @ l["g"]
            dt = nn.softplus(z @ l["dt"])
            Bm = z @ l["B"]
            C = z @ l["C"]

            def step(s, a):
                u, dt, B, C = a
                s = s * mnp.exp(-dt[..., None] * mnp.exp(l["A"])) + (dt * u)[..., None] * B[:, None]
                return s, (s * C[:, None]).sum(-1)

            _, o = lax.scan(step, mnp.zeros((b, w, 8), F32), tuple(a.swapaxes(0, 1) for a in (u, dt, Bm, C)))
            x = x + (o.swapaxes(0, 1) * nn.silu(g)) @ l["o"]
            z = nn.rms_norm(x, l["n"])
            p = nn.softmax(z @ l["r"])
            v, i = lax.top_k(p, 2)
            gate = (nn.one_hot(i, e) * v[..., None]).sum(2)
            h = nn.silu(mnp.einsum("btw,ewf->btef", z, l["up"]))
            return x + mnp.einsum("btef,efw,bte->btw", h, l["down"], gate), None

        x, _ = lax.scan(block, x, q)
        return mnp.mean((x - y) ** 2)

    p = {
        "n": (L, w),
        "u": (L, w, w),
        "g": (L, w, w),
        "dt": (L, w, w),
        "B": (L, w, 8),
        "C": (L, w, 8),
        "A": (L, w, 8),
        "o": (L, w, w),
        "r": (L, w, e),
        "up": (L, e, w, 2 * w),
        "down": (L, e, 2 * w, w),
    }
    s = {n: P(None, "d") if n not in ("n",) else P() for n in p}
    return sgd(loss), (p, (b, t, w), (b, t, w)), (s, D, D), (P(), s), mesh_of(d=8)


@program
def particle_mesh_ewald():
    """Charges are spread to a mesh, Poisson's equation is solved in Fourier space, forces are gathered."""
    n, g = 16384, 64

    def f(x, q):
        i = mnp.floor(x * g).astype(np.int32)
        fr = x * g - i
        rho = mnp.zeros((g, g, g), F32)
        for dx in (0, 1):
            for dy in (0, 1):
                for dz in (0, 1):
                    w = (
                        (fr[:, 0] if dx else 1 - fr[:, 0])
                        * (fr[:, 1] if dy else 1 - fr[:, 1])
                        * (fr[:, 2] if dz else 1 - fr[:, 2])
                    )
                    rho = rho.at[(i[:, 0] + dx) % g, (i[:, 1] + dy) % g, (i[:, 2] + dz) % g].add(w * q)
        k = mnp.fft.fftfreq(g, dtype=F32)
        k2 = k[:, None, None] ** 2 + k[None, :, None] ** 2 + (mnp.arange(g // 2 + 1, dtype=F32) / g)[None, None] ** 2
        ph = mnp.fft.rfftn(rho) * mnp.where(k2 == 0, 0, mnp.exp(-k2) / mnp.where(k2 == 0, 1, k2))
        phi = mnp.fft.irfftn(ph, s=(g, g, g))
        e = [(mnp.roll(phi, -1, a) - mnp.roll(phi, 1, a)) * 0.5 * g for a in range(3)]
        return -q[:, None] * mnp.stack([ea[i[:, 0] % g, i[:, 1] % g, i[:, 2] % g] for ea in e], -1), (rho * phi).sum()

    return f, ((n, 3), (n,)), (D, D), (D, P()), mesh_of(d=8)


@program
def typical_sampling_vocab_split():
    """Typical sampling: words sorted by surprise, cumulative mass, gathered back; vocabulary split."""
    b, v = 64, 32000

    def f(lg, u):
        lp = nn.log_softmax(lg)
        p = mnp.exp(lp)
        ent = -(p * lp).sum(-1, keepdims=True)
        dev = mnp.abs(-lp - ent)
        o = mnp.argsort(dev, -1)
        ps = mnp.take_along_axis(p, o, -1)
        keep = mnp.cumsum(ps, -1) < 0.95
        ps = mnp.where(keep, ps, 0)
        cs = mnp.cumsum(ps, -1)
        j = (cs < u[:, None] * cs[:, -1:]).sum(-1)
        return mnp.take_along_axis(o, j[:, None], -1)[:, 0]

    return f, ((b, v), (b,)), (P(None, "t"), P()), P(), mesh_of(t=8)


@program
def kalman_smoother_batch():
    """Kalman filter and Rauch-Tung-Striebel smoother of many series; series split."""
    b, t, n, m = 64, 64, 16, 8

    def f(F, H, Q, R, ys):
        def step(c, y):
            x, Pm = c
            x = x @ F.T
            Pm = F @ Pm @ F.T + Q
            S = H @ Pm @ H.T + R
            K = mnp.linalg.solve(S, H @ Pm).swapaxes(-1, -2)
            x2 = x + mnp.einsum("bij,bj->bi", K, y - x @ H.T)
            P2 = Pm - K @ (H @ Pm)
            return (x2, P2), (x, Pm, x2, P2)

        _, (xp, Pp, xf, Pf) = lax.scan(
            step, (mnp.zeros((b, n), F32), mnp.broadcast_to(mnp.eye(n, dtype=F32), (b, n, n))), ys.swapaxes(0, 1)
        )

        def back(c, a):
            xs = c
            xp, Pp, xf, Pf = a
            G = mnp.linalg.solve(Pp, F @ Pf).swapaxes(-1, -2)
            xs = xf + mnp.einsum("bij,bj->bi", G, xs - xp)
            return xs, xs

        _, xs = lax.scan(
            back, xf[-1], (mnp.concatenate([xp[1:], xp[-1:]]), mnp.concatenate([Pp[1:], Pp[-1:]]), xf, Pf), reverse=True
        )
        return xs.swapaxes(0, 1)

    return f, ((n, n), (m, n), (n, n), (m, m), (b, t, m)), (P(), P(), P(), P(), D), D, mesh_of(d=8)


@program
def sorted_moe_shared_experts():
    """Fine-grained experts and a shared one; tokens sorted by expert."""
    n, w, e, k, ff = 1024, 128, 32, 4, 64
    cap = n * k // e * 2

    def loss(q, x, y):
        g = nn.sigmoid(x @ q["r"])
        v, i = lax.top_k(g + q["bias"], k)
        flat = i.reshape(-1)
        order = mnp.argsort(flat)
        srt = flat[order]
        first = mnp.searchsorted(srt, mnp.arange(e))
        pos = mnp.arange(n * k) - first[srt]
        tok = order // k
        buf = mnp.zeros((e, cap, w), F32).at[srt, pos].add(x[tok], mode="drop")
        z = mnp.einsum("ecf,efw->ecw", nn.silu(mnp.einsum("ecw,ewf->ecf", buf, q["up"])), q["down"])
        o = z.at[srt, pos].get(mode="fill", fill_value=0) * v.reshape(-1)[order][:, None]
        out = mnp.zeros((n, w), F32).at[tok].add(o)
        sh = nn.silu(x @ q["su"]) @ q["sd"]
        return mnp.mean((x + out + sh - y) ** 2)

    p = {"r": (w, e), "bias": (e,), "up": (e, w, ff), "down": (e, ff, w), "su": (w, 4 * ff), "sd": (4 * ff, w)}
    s = {"r": P(), "bias": P(), "up": D, "down": D, "su": P(), "sd": P()}
    return sgd(loss), (p, (n, w), (n, w)), (s, D, D), (P(), s), mesh_of(d=8)


@program
def pinn_burgers():
    """Physics-informed network with second derivatives; points split."""
    n, w = 16384, 64

    def net(q, t, x):
        h = mnp.tanh(mnp.stack([t, x]) @ q["a"])
        for l in q["l"]:
            h = mnp.tanh(h @ l)
        return (h @ q["o"])[0]

    def loss(q, t, x, xb, ub):
        def res(t, x):
            u = net(q, t, x)
            ut = mw.grad(net, 1)(q, t, x)
            ux = mw.grad(net, 2)(q, t, x)
            uxx = mw.grad(mw.grad(net, 2), 2)(q, t, x)
            return ut + u * ux - 0.01 * uxx

        r = mw.vmap(res)(t, x)
        ubp = mw.vmap(lambda x: net(q, mnp.float32(0), x))(xb)
        return (r**2).mean() + ((ubp - ub) ** 2).mean()

    p = {"a": (2, w), "l": [(w, w)] * 3, "o": (w, 1)}
    return (
        adam(loss),
        (p, p, p, (n,), (n,), (1024,), (1024,)),
        (P(), P(), P(), D, D, D, D),
        (P(), P(), P(), P()),
        mesh_of(d=8),
    )


@program
def lora_tensor_parallel():
    """Low-rank adapters of a tensor-parallel layer."""
    b, t, w, h, r = 8, 128, 512, 8, 8

    def loss(lo, q, x, y):
        def lin(n, x):
            return x @ q[n] + (x @ lo[n][0]) @ lo[n][1]

        z = nn.layer_norm(x)
        qq, kk, v = (lin(n, z).reshape(b, t, h, -1) for n in "qkv")
        s = mnp.einsum("bqhd,bkhd->bhqk", qq, kk) / 8
        o = mnp.einsum("bhqk,bkhd->bqhd", nn.softmax(s), v).reshape(b, t, w)
        x = x + lin("o", o)
        x = x + nn.gelu(nn.layer_norm(x) @ q["up"]) @ q["down"]
        return mnp.mean((x - y) ** 2)

    q = {**att(w), "up": (w, 4 * w), "down": (4 * w, w)}
    lo = {n: [(w, r), (r, w)] for n in "qkvo"}
    sq = {**ATT(P(None, "t"), P("t")), "up": P(None, "t"), "down": P("t")}
    sl = {**{n: [P(), P(None, "t")] for n in "qkv"}, "o": [P("t"), P()]}
    return sgd(loss), (lo, q, (b, t, w), (b, t, w)), (sl, sq, P("d"), P("d")), (P(), sl), mesh_of(d=2, t=4)


if __name__ == "__main__":
    print(len(PROGRAMS))
