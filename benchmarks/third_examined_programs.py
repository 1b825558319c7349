"""Programs of a third examiner: models of today, particles, spectra and meshes whose parts meet in other orders.

Each function returns what those of ``benchmarks/field_programs.py`` do.
"""

from __future__ import annotations

import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from benchmarks.examined_programs import rms
from benchmarks.field_programs import xent
from benchmarks.shapes import Programs, ints, mesh_of, sgd
from meshwright import PartitionSpec as P
from meshwright import lax, nn

F32 = np.float32
PROGRAMS = Programs()
program = PROGRAMS.add


def rope(x, base=1e4):
    """Rotary positions of ``x`` (batch, time, heads, features)."""
    t, d = x.shape[1], x.shape[-1]
    angle = np.arange(t)[:, None] * base ** (-np.arange(d // 2) / (d // 2))
    c, s = np.cos(angle).astype(F32)[:, None], np.sin(angle).astype(F32)[:, None]
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return mnp.concatenate([a * c - b * s, a * s + b * c], -1)


@program
def mla_train_two_layers():
    """DeepSeek's latent attention in training: low-rank q and kv, rope keys that heads share, SwiGLU; DP x TP."""
    b, t, w, h, n, r, v, rq, rkv, f = 8, 128, 256, 8, 32, 16, 32, 96, 64, 512

    def layer(p, x):
        z = rms(x, p["n1"])
        q = (rms(z @ p["qa"], p["nq"]) @ p["qb"]).reshape(b, t, h, n + r)
        ckv = z @ p["kva"]
        kr = rope(ckv[..., None, rkv:])
        kv = (rms(ckv[..., :rkv], p["nkv"]) @ p["kvb"]).reshape(b, t, h, n + v)
        q = mnp.concatenate([q[..., :n], rope(q[..., n:])], -1)
        k = mnp.concatenate([kv[..., :n], mnp.broadcast_to(kr, (b, t, h, r))], -1)
        s = mnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(n + r)
        s = mnp.where(np.tril(np.ones((t, t), bool)), s, -1e9)
        o = mnp.einsum("bhqk,bkhd->bqhd", nn.softmax(s), kv[..., n:]).reshape(b, t, h * v)
        x = x + o @ p["o"]
        z = rms(x, p["n2"])
        return x + (nn.silu(z @ p["g"]) * (z @ p["u"])) @ p["d"]

    def loss(p, ids, y):
        x = p["e"][ids]
        for q in p["layers"]:
            x = layer(q, x)
        return xent((x @ p["e"].T).reshape(b * t, -1), y.reshape(-1)).mean()

    s = {
        "n1": (w,),
        "n2": (w,),
        "nq": (rq,),
        "nkv": (rkv,),
        "qa": (w, rq),
        "qb": (rq, h * (n + r)),
        "kva": (w, rkv + r),
        "kvb": (rkv, h * (n + v)),
        "o": (h * v, w),
        "g": (w, f),
        "u": (w, f),
        "d": (f, w),
    }
    sp = {
        "n1": P(),
        "n2": P(),
        "nq": P(),
        "nkv": P(),
        "qa": P(),
        "qb": P(None, "t"),
        "kva": P(),
        "kvb": P(None, "t"),
        "o": P("t"),
        "g": P(None, "t"),
        "u": P(None, "t"),
        "d": P("t"),
    }
    s, sp = {"e": (1024, w), "layers": [s, s]}, {"e": P("t"), "layers": [sp, sp]}
    return sgd(loss), (s, ints(b, t), ints(b, t)), (sp, P("d"), P("d")), (P(), sp), mesh_of(d=2, t=4)


@program
def native_sparse_attention():
    """Compressed blocks, the best blocks of each query, a window, and gates between them; groups of query heads."""
    b, t, w, g, q, d, block, best, window = 2, 256, 128, 4, 2, 32, 16, 4, 32
    n = t // block
    now = np.arange(t)

    def loss(p, x, y):
        qs = (x @ p["q"]).reshape(b, t, g, q, d)
        k, v = ((x @ p[m]).reshape(b, t, g, d) for m in "kv")
        ck = mnp.einsum("bnlgd,l->bngd", k.reshape(b, n, block, g, d), p["ck"])
        cv = mnp.einsum("bnlgd,l->bngd", v.reshape(b, n, block, g, d), p["cv"])
        past = (np.arange(n) + 1)[None] * block - 1 <= now[:, None]
        sc = mnp.einsum("btgqd,bngd->bgqtn", qs, ck) / np.sqrt(d)
        ac = nn.softmax(mnp.where(past, sc, -1e9)) * past.any(-1)[:, None]
        out_c = mnp.einsum("bgqtn,bngd->btgqd", ac, cv)
        own = np.arange(n)[None] == (now // block)[:, None]
        importance = mnp.where(own, 1e9, mnp.where(past, ac.sum(2), -1.0))
        _, picked = lax.top_k(lax.stop_gradient(importance), best)
        kb = k.reshape(b, n, block, g, d).transpose(0, 3, 1, 2, 4)
        vb = v.reshape(b, n, block, g, d).transpose(0, 3, 1, 2, 4)
        rows = mw.vmap(mw.vmap(lambda z, i: z[i]))
        sk, sv = rows(kb, picked), rows(vb, picked)
        at = picked[..., None] * block + np.arange(block)
        ok = at <= now[:, None, None]
        ss = mnp.einsum("btgqd,bgtmld->bgqtml", qs, sk) / np.sqrt(d)
        ss = mnp.where(ok[:, :, None], ss, -1e9).reshape(b, g, q, t, best * block)
        out_s = mnp.einsum("bgqtm,bgtmd->btgqd", nn.softmax(ss), sv.reshape(b, g, t, best * block, d))
        sw = mnp.einsum("btgqd,bsgd->bgqts", qs, k) / np.sqrt(d)
        near = (now[:, None] >= now) & (now[:, None] - now < window)
        out_w = mnp.einsum("bgqts,bsgd->btgqd", nn.softmax(mnp.where(near, sw, -1e9)), v)
        gate = nn.sigmoid(x @ p["gate"]).reshape(b, t, g, q, 3)
        o = gate[..., :1] * out_c + gate[..., 1:2] * out_s + gate[..., 2:] * out_w
        return mnp.mean((x + o.reshape(b, t, -1) @ p["o"] - y) ** 2)

    s = {
        "q": (w, g * q * d),
        "k": (w, g * d),
        "v": (w, g * d),
        "ck": (block,),
        "cv": (block,),
        "gate": (w, g * q * 3),
        "o": (g * q * d, w),
    }
    c = P(None, "t")
    sp = {"q": c, "k": c, "v": c, "ck": P(), "cv": P(), "gate": c, "o": P("t")}
    return sgd(loss), (s, (b, t, w), (b, t, w)), (sp, P("d"), P("d")), (P(), sp), mesh_of(d=2, t=4)


@program
def muon_scanned_transformer():
    """A scan over stacked layers with remat; Muon's Newton-Schulz on the stacks, Adam on embeddings; FSDP x TP."""
    layers, b, t, w, h, f, v = 4, 8, 64, 128, 4, 512, 512

    def layer(x, p):
        z = rms(x, p["n"][0])
        q, k, u = mnp.split((z @ p["qkv"]).reshape(b, t, 3 * h, w // h), 3, 2)
        s = mnp.where(np.tril(np.ones((t, t), bool)), mnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(w // h), -1e9)
        x = x + mnp.einsum("bhqk,bkhd->bqhd", nn.softmax(s), u).reshape(b, t, w) @ p["o"]
        return x + nn.gelu(rms(x, p["n"][1]) @ p["up"]) @ p["down"], None

    def loss(p, ids, y):
        x, _ = lax.scan(mw.checkpoint(layer), p["e"][ids], p["stack"])
        return xent((x @ p["head"]).reshape(b * t, v), y.reshape(-1)).mean()

    def orthogonal(g):
        x = g / (mnp.sqrt((g * g).sum((-2, -1), keepdims=True)) + 1e-7)
        tall = g.shape[-2] > g.shape[-1]
        x = x.mT if tall else x
        for _ in range(5):
            a = x @ x.mT
            x = 3.4445 * x + (-4.775 * a + 2.0315 * (a @ a)) @ x
        return x.mT if tall else x

    def step(p, m, ids, y):
        value, g = mw.value_and_grad(loss)(p, ids, y)
        m = mw.tree.map(lambda m, g: 0.95 * m + g, m, g)

        def change(name, p, m):
            return p - 0.02 * orthogonal(m) if m.ndim == 3 and name != "n" else p - 1e-3 * m

        stack = {n: change(n, p["stack"][n], m["stack"][n]) for n in p["stack"]}
        return value, {"e": p["e"] - 1e-3 * m["e"], "head": p["head"] - 1e-3 * m["head"], "stack": stack}, m

    st = {
        "n": (layers, 2, w),
        "qkv": (layers, w, 3 * w),
        "o": (layers, w, w),
        "up": (layers, w, f),
        "down": (layers, f, w),
    }
    ss = {
        "n": P(),
        "qkv": P(None, "d", "t"),
        "o": P(None, "t", "d"),
        "up": P(None, "d", "t"),
        "down": P(None, "t", "d"),
    }
    s, sp = {"e": (v, w), "head": (w, v), "stack": st}, {"e": P("t", "d"), "head": P("d", "t"), "stack": ss}
    return step, (s, s, ints(b, t), ints(b, t)), (sp, sp, P("d"), P("d")), (P(), sp, sp), mesh_of(d=2, t=4)


@program
def impala_vtrace():
    """Actor-critic with a convolutional LSTM core over time, V-trace by a reversed scan, entropy; envs split."""
    t, b, h, w, a = 16, 16, 20, 64, 6

    def conv(x, k, s):
        return nn.relu(lax.conv_general_dilated(x, k, (s, s), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")))

    def loss(p, frames, actions, rewards, done, behaviour):
        z = (
            conv(conv(frames.reshape(-1, h, h, 4).astype(F32) / 255, p["c1"], 2), p["c2"], 2).reshape(t + 1, b, -1)
            @ p["f"]
        )

        def cell(c, xs):
            x, d = xs
            hh, cc = (mnp.where(d[:, None], 0, s) for s in c)
            i, f, g, o = mnp.split(mnp.concatenate([nn.relu(x), hh], -1) @ p["l"], 4, -1)
            cc = nn.sigmoid(f) * cc + nn.sigmoid(i) * mnp.tanh(g)
            hh = nn.sigmoid(o) * mnp.tanh(cc)
            return (hh, cc), hh

        zero = mnp.zeros((b, w), F32)
        _, out = lax.scan(cell, (zero, zero), (z, done))
        logits, v = out @ p["pi"], (out @ p["v"])[..., 0]
        logp = nn.log_softmax(logits[:-1])
        taken = mnp.take_along_axis(logp, actions[..., None], -1)[..., 0]
        rho = lax.stop_gradient(mnp.minimum(1, mnp.exp(taken - behaviour)))
        disc = 0.99 * (1 - done[1:])
        vs_, nxt = lax.stop_gradient(v[:-1]), lax.stop_gradient(v[1:])
        delta = rho * (rewards + disc * nxt - vs_)

        def back(acc, xs):
            d, c, r = xs
            acc = d + c * r * acc
            return acc, acc

        _, corr = lax.scan(back, mnp.zeros(b, F32), (delta, disc, rho), reverse=True)
        vs = corr + vs_
        nextvs = mnp.concatenate([vs[1:], nxt[-1:]])
        adv = rho * (rewards + disc * nextvs - vs_)
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        return -(adv * taken).mean() + 0.5 * ((vs - v[:-1]) ** 2).mean() + 0.01 * (mnp.exp(logp) * logp).sum(-1).mean()

    s = {"c1": (4, 4, 4, 16), "c2": (3, 3, 16, 16), "f": (16 * 16, w), "l": (2 * w, 4 * w), "pi": (w, a), "v": (w, 1)}
    args = s, mw.ShapeDtypeStruct((t + 1, b, h, h, 4), np.uint8), ints(t, b), (t, b), (t + 1, b), (t, b)
    col = P(None, "d")
    return sgd(loss), args, ({k: P() for k in s}, col, col, col, col, col), None, mesh_of(d=8)


@program
def fp8_delayed_scaling():
    """Products in float8 with scales from histories of absolute maxima; DP x TP."""
    b, w, f = 256, 256, 1024
    e4 = mnp.float8_e4m3fn

    def quantized(x, history):
        scale = 448.0 / mnp.maximum(history.max(), 1e-6)
        q = mnp.clip(x * scale, -448, 448).astype(e4).astype(F32) / scale
        return x + lax.stop_gradient(q - x), mnp.concatenate([mnp.abs(lax.stop_gradient(x)).max()[None], history[:-1]])

    def loss(p, hist, x, y):
        new = {}

        def product(name, x, w):
            a, new[name + "x"] = quantized(x, hist[name + "x"])
            c, new[name + "w"] = quantized(w, hist[name + "w"])
            return a @ c

        z = nn.gelu(product("a", x, p["a"]))
        return mnp.mean((x + product("b", z, p["b"]) - y) ** 2), new

    def step(p, hist, x, y):
        (value, hist), g = mw.value_and_grad(loss, has_aux=True)(p, hist, x, y)
        return value, mw.tree.map(lambda p, g: p - 1e-2 * g, p, g), hist

    s = {"a": (w, f), "b": (f, w)}
    hist = {n + m: (16,) for n in "ab" for m in "xw"}
    sp = {"a": P(None, "t"), "b": P("t")}
    return step, (s, hist, (b, w), (b, w)), (sp, {n: P() for n in hist}, P("d"), P("d")), None, mesh_of(d=2, t=4)


@program
def mmdit_flow_matching():
    """Two streams with joint attention and modulation, rectified flow with logit-normal times, EMA; 2x2x2."""
    b, c, t, w, h = 8, 32, 96, 128, 4

    def heads(z):
        q, k, v = mnp.split(z.reshape(*z.shape[:2], 3 * h, w // h), 3, 2)
        return rms(q, 1), rms(k, 1), v

    def norm(x, s, g):
        m = x.mean(-1, keepdims=True)
        return (x - m) * lax.rsqrt(((x - m) ** 2).mean(-1, keepdims=True) + 1e-6) * (1 + s[:, None]) + g[:, None]

    def loss(p, x1, text, noise, u):
        time = nn.sigmoid(u)
        x = time[:, None, None] * x1 + (1 - time[:, None, None]) * noise
        freq = np.exp(-np.arange(w // 2) / w * 18).astype(F32)
        emb = mnp.concatenate([mnp.sin(time[:, None] * freq * 1e3), mnp.cos(time[:, None] * freq * 1e3)], -1)
        emb = nn.silu(nn.silu(emb @ p["t1"]) @ p["t2"])
        i, c_ = x @ p["in"], text
        for q in p["blocks"]:
            mi, mc = mnp.split(emb @ q["mi"], 6, -1), mnp.split(emb @ q["mc"], 6, -1)
            a, d = heads(norm(i, mi[0], mi[1]) @ q["qi"]), heads(norm(c_, mc[0], mc[1]) @ q["qc"])
            qq, k, v = (mnp.concatenate(z, 1) for z in zip(a, d))
            s = nn.softmax(mnp.einsum("bqhd,bkhd->bhqk", qq, k) / np.sqrt(w // h))
            o = mnp.einsum("bhqk,bkhd->bqhd", s, v).reshape(b, t + c, w)
            i = i + mi[2][:, None] * (o[:, :t] @ q["oi"])
            c_ = c_ + mc[2][:, None] * (o[:, t:] @ q["oc"])
            i = i + mi[5][:, None] * (nn.gelu(norm(i, mi[3], mi[4]) @ q["ui"]) @ q["di"])
            c_ = c_ + mc[5][:, None] * (nn.gelu(norm(c_, mc[3], mc[4]) @ q["uc"]) @ q["dc"])
        return mnp.mean((i @ p["out"] - (x1 - noise)) ** 2)

    def step(p, ema, *batch):
        value, g = mw.value_and_grad(loss)(p, *batch)
        p = mw.tree.map(lambda p, g: p - 1e-2 * g, p, g)
        return value, p, mw.tree.map(lambda e, p: 0.999 * e + 0.001 * p, ema, p)

    blk, bs = {}, {}
    for m in "ic":
        blk |= {"m" + m: (w, 6 * w), "q" + m: (w, 3 * w), "o" + m: (w, w), "u" + m: (w, 4 * w), "d" + m: (4 * w, w)}
        bs |= {"m" + m: P("f"), "q" + m: P("f", "t"), "o" + m: P("t", "f"), "u" + m: P("f", "t"), "d" + m: P("t", "f")}
    s = {"t1": (w, w), "t2": (w, w), "in": (16, w), "out": (w, 16), "blocks": [blk, blk]}
    sp = {"t1": P(), "t2": P(), "in": P(), "out": P(), "blocks": [bs, bs]}
    rows = P(("d", "f"))
    args = s, s, (b, t, 16), (b, c, w), (b, t, 16), (b,)
    return step, args, (sp, sp, rows, rows, rows, rows), (P(), sp, sp), mesh_of(d=2, f=2, t=2)


@program
def transducer_loss():
    """RNN-T: a joint network over frames and labels, the lattice's forward probabilities by diagonals; DP x vocab."""
    b, t, u, w, v = 8, 48, 13, 64, 256

    def loss(p, enc, pred, labels):
        joint = mnp.tanh((enc @ p["e"])[:, :, None] + (pred @ p["p"])[:, None])
        logp = nn.log_softmax(joint @ p["o"])
        blank = logp[..., 0]
        emit = mnp.take_along_axis(logp[:, :, :-1], labels[:, None, :, None], -1)[..., 0]
        emit = mnp.pad(emit, ((0, 0), (0, 0), (0, 1)), constant_values=-1e9)

        def row(alpha, xs):
            bl, em = xs
            stay = alpha + bl
            shifted = mnp.pad(mnp.cumsum(em, -1)[:, :-1], ((0, 0), (1, 0)))
            return lax.cumlogsumexp(stay - shifted, axis=1) + shifted, None

        first = mnp.pad(mnp.cumsum(emit[:, 0], -1)[:, :-1], ((0, 0), (1, 0)))
        last, _ = lax.scan(row, first, (blank[:, :-1].transpose(1, 0, 2), emit[:, 1:].transpose(1, 0, 2)))
        return -(last[:, -1] + blank[:, -1, -1]).mean()

    s = {"e": (w, w), "p": (w, w), "o": (w, v)}
    return (
        sgd(loss),
        (s, (b, t, w), (b, u, w), ints(b, u - 1)),
        ({"e": P(), "p": P(), "o": P(None, "t")}, P("d"), P("d"), P("d")),
        None,
        mesh_of(d=4, t=2),
    )


@program
def direct_n_body():
    """Gravity between all pairs, blocks of sources in a loop, leapfrog; bodies split."""
    n, blocks = 1000, 4

    def run(x, v, m):
        def acceleration(x):
            xs, ms = x.reshape(blocks, -1, 3), m.reshape(blocks, -1)

            def block(a, s):
                y, w = s
                d = y[None] - x[:, None]
                r2 = (d * d).sum(-1) + 1e-3
                return a + ((w * r2**-1.5)[..., None] * d).sum(1), None

            a, _ = lax.scan(block, mnp.zeros_like(x), (xs, ms))
            return a

        def step(c, _):
            x, v = c
            v = v + 0.005 * acceleration(x)
            x = x + 0.01 * v
            v = v + 0.005 * acceleration(x)
            return (x, v), 0.5 * (m * (v * v).sum(-1)).sum()

        return lax.scan(step, (x, v), None, length=3)

    return run, ((n, 3), (n, 3), (n,)), (P("d"), P("d"), P("d")), None, mesh_of(d=8)


@program
def neighbour_list_dynamics():
    """A Verlet list from cells by sorting, then steps with forces over the list and their Newton pairs by scatter."""
    n, g, cap, near, steps = 1024, 6, 16, 48, 4

    def run(x, v):
        cell = (mnp.floor(x * g).astype(np.int32) % g) @ np.array([g * g, g, 1], np.int32)
        order = mnp.argsort(cell)
        first = mnp.searchsorted(cell[order], np.arange(g**3))
        slot = np.arange(n) - first[cell[order]]
        table = mnp.full((g**3, cap), n, np.int32).at[cell[order], slot].set(order, mode="drop")
        shift = np.stack(np.meshgrid(*[[-1, 0, 1]] * 3, indexing="ij"), -1).reshape(-1, 3)
        ijk = mnp.floor(x * g).astype(np.int32)
        around = ((ijk[:, None] + shift) % g) @ np.array([g * g, g, 1], np.int32)
        candidates = table[around].reshape(n, -1)
        padded = mnp.concatenate([x, mnp.full((1, 3), 9.0, F32)])
        d = padded[candidates] - x[:, None]
        d = d - mnp.round(d)
        r2 = (d * d).sum(-1)
        r2 = mnp.where((candidates == np.arange(n)[:, None]) | (candidates == n), 1e9, r2)
        _, pick = lax.top_k(-r2, near)
        nb = mnp.take_along_axis(candidates, pick, 1)
        ok = mnp.take_along_axis(r2, pick, 1) < 0.02

        def energy(x):
            d = x[mnp.minimum(nb, n - 1)] - x[:, None]
            d = d - mnp.round(d)
            r2 = (d * d).sum(-1) + 1e-2
            s6 = (0.01 / r2) ** 3
            return 0.5 * mnp.where(ok, s6 * s6 - s6, 0).sum()

        def step(c, _):
            x, v = c
            v = v - 0.01 * mw.grad(energy)(x)
            return ((x + 0.01 * v) % 1.0, v), (v * v).sum()

        return lax.scan(step, (x % 1.0, v), None, length=steps)

    return run, ((n, 3), (n, 3)), (P("d"), P("d")), None, mesh_of(d=8)


@program
def cubed_sphere_shallow_water():
    """Six faces with halos from their neighbours, rotated; two Runge-Kutta stages; rows and columns split."""
    n = 48

    def halo(q):
        def edge(f, side):
            return {"l": q[f, :, 0], "r": q[f, :, -1], "b": q[f, 0, :], "t": q[f, -1, :]}[side]

        # the neighbours of each face on the left, right, bottom and top, and which edge of theirs meets it
        table = {
            0: "3r 1l 4t 5b",
            1: "0r 2l 4r 5r",
            2: "1r 3l 4b 5t",
            3: "2r 0l 4l 5l",
            4: "3b 1b 2b 0b",
            5: "3t 1t 0t 2t",
        }
        faces = []
        for f in range(6):
            l, r, b, t = (edge(int(s[0]), s[1]) for s in table[f].split())
            z = mnp.concatenate([l[:, None], q[f], r[:, None]], 1)
            b, t = (mnp.concatenate([e[:1], e, e[-1:]])[None] for e in (b, t))
            faces.append(mnp.concatenate([b, z, t], 0))
        return mnp.stack(faces)

    def tendency(h, u, v):
        hh, uu, vv = halo(h), halo(u), halo(v)

        def dx(a):
            return (a[:, 1:-1, 2:] - a[:, 1:-1, :-2]) / 2

        def dy(a):
            return (a[:, 2:, 1:-1] - a[:, :-2, 1:-1]) / 2

        zeta = dx(vv) - dy(uu) + 1.0
        b = 9.8 * hh + 0.5 * (uu * uu + vv * vv)
        return -dx(hh * uu) - dy(hh * vv), zeta * v - dx(b), -zeta * u - dy(b)

    def run(h, u, v):
        def step(s, _):
            k = tendency(*s)
            mid = tuple(a + 0.005 * d for a, d in zip(s, k))
            return tuple(a + 0.01 * d for a, d in zip(s, tendency(*mid))), None

        return lax.scan(step, (h, u, v), None, length=4)[0]

    s = P(None, "y", "x")
    return run, ((6, n, n),) * 3, (s, s, s), None, mesh_of(y=2, x=4)


@program
def bundle_adjustment():
    """A Levenberg-Marquardt step: Jacobians of reprojections, Schur complement over points, CG on cameras."""
    cams, points, obs = 32, 1024, 8192

    def project(cam, pt):
        th = mnp.sqrt((cam[:3] ** 2).sum() + 1e-12)
        k = cam[:3] / th
        r = pt * mnp.cos(th) + mnp.cross(k, pt) * mnp.sin(th) + k * (k @ pt) * (1 - mnp.cos(th))
        r = r + cam[3:6] + np.array([0, 0, 5.0], F32)
        return -r[:2] / (mnp.abs(r[2]) + 1.0)

    def run(cam, pts, ci, pi, xy):
        def residual(c, p, z):
            return project(c, p) - z

        c, p = cam[ci], pts[pi]
        r = mw.vmap(residual)(c, p, xy)
        jc, jp = mw.vmap(mw.jacfwd(residual, (0, 1)))(c, p, xy)
        hp = mw.ops.segment_sum(mnp.einsum("nij,nik->njk", jp, jp), pi, points) + np.eye(3, dtype=F32)
        hc = mw.ops.segment_sum(mnp.einsum("nij,nik->njk", jc, jc), ci, cams) + np.eye(6, dtype=F32)
        gp = mw.ops.segment_sum(mnp.einsum("nij,ni->nj", jp, r), pi, points)
        gc = mw.ops.segment_sum(mnp.einsum("nij,ni->nj", jc, r), ci, cams)
        inv = mnp.linalg.inv(hp)
        w = mnp.einsum("nij,nik->njk", jc, jp)

        def schur(x):
            y = mw.ops.segment_sum(mnp.einsum("njk,nj->nk", w, x[ci]), pi, points)
            y = mnp.einsum("pij,pj->pi", inv, y)
            return mnp.einsum("cij,cj->ci", hc, x) - mw.ops.segment_sum(mnp.einsum("njk,nk->nj", w, y[pi]), ci, cams)

        rhs = -gc + mw.ops.segment_sum(mnp.einsum("njk,nk->nj", w, mnp.einsum("pij,pj->pi", inv, gp)[pi]), ci, cams)

        def cg(_, s):
            x, r, p, rs = s
            q = schur(p)
            a = rs / ((p * q).sum() + 1e-12)
            x, r = x + a * p, r - a * q
            new = (r * r).sum()
            return x, r, r + new / (rs + 1e-12) * p, new

        dc, *_ = lax.fori_loop(0, 6, cg, (mnp.zeros_like(rhs), rhs, rhs, (rhs * rhs).sum()))
        back = mw.ops.segment_sum(mnp.einsum("njk,nj->nk", w, dc[ci]), pi, points)
        dp = -mnp.einsum("pij,pj->pi", inv, gp + back)
        return cam + dc, pts + dp, (r * r).sum()

    args = (cams, 6), (points, 3), ints(obs), ints(obs), (obs, 2)
    return run, args, (P(), P("d"), P("d"), P("d"), P("d")), (P(), P("d"), P()), mesh_of(d=8)


@program
def cahn_hilliard():
    """Semi-implicit spectral steps of a phase field on slabs in three dimensions."""
    n = 64

    def run(c):
        k = (np.fft.fftfreq(n) * 2 * np.pi).astype(F32)
        kr = (np.fft.rfftfreq(n) * 2 * np.pi).astype(F32)
        k2 = k[:, None, None] ** 2 + k[:, None] ** 2 + kr**2

        def step(ch, _):
            c = mnp.fft.irfftn(ch, s=(n, n, n))
            mu = mnp.fft.rfftn(c**3 - c)
            ch = (ch - 0.1 * k2 * mu) / (1 + 0.1 * k2 * k2)
            return ch, (c * c).mean()

        ch, e = lax.scan(step, mnp.fft.rfftn(c), None, length=4)
        return mnp.fft.irfftn(ch, s=(n, n, n)), e

    return run, ((n, n, n),), (P("x", "y"),), None, mesh_of(x=2, y=4)


@program
def outer_product_mean_msa():
    """MSA row attention with pair bias, then the outer product mean; rows of the MSA and residues split."""
    m, n, w, pw, h, c = 64, 64, 32, 32, 4, 16

    def loss(p, msa, pair, y):
        q, k, v = mnp.split((msa @ p["qkv"]).reshape(m, n, 3 * h, -1), 3, 2)
        a = mnp.einsum("mihd,mjhd->mhij", q, k) / np.sqrt(w // h) + (pair @ p["b"]).transpose(2, 0, 1)
        o = mnp.einsum("mhij,mjhd->mihd", nn.softmax(a), v).reshape(m, n, w) * nn.sigmoid(msa @ p["g"])
        msa = msa + o @ p["o"]
        l, r = msa @ p["l"], msa @ p["r"]
        outer = mnp.einsum("mic,mjd->ijcd", l, r).reshape(n, n, c * c) / m
        return mnp.mean((pair + outer @ p["out"] - y) ** 2)

    s = {"qkv": (w, 3 * w), "b": (pw, h), "g": (w, w), "o": (w, w), "l": (w, c), "r": (w, c), "out": (c * c, pw)}
    args = s, (m, n, w), (n, n, pw), (n, n, pw)
    return sgd(loss), args, ({k: P() for k in s}, P("s", "r"), P("r"), P("r")), None, mesh_of(s=2, r=4)


@program
def spherical_harmonic_operator():
    """A spherical neural operator: FFT along longitude, Legendre matrices along latitude, batch x latitude."""
    b, lat, lon, c, lmax = 2, 32, 64, 16, 24
    rng = np.random.default_rng(0)
    leg = rng.normal(size=(lmax, lat, lmax)).astype(F32) / 8

    def loss(p, x, y):
        z = x @ p["i"]
        for w in p["w"]:
            f = mnp.fft.rfft(z, axis=2)[:, :, :lmax]
            s = mnp.einsum("btmc,ltm->blmc", f, leg)
            s = mnp.einsum("blmc,lcd->blmd", s, lax.complex(w[0], w[1]))
            f = mnp.einsum("blmd,ltm->btmd", s, leg)
            f = mnp.pad(f, ((0, 0), (0, 0), (0, lon // 2 + 1 - lmax), (0, 0)))
            z = nn.gelu(mnp.fft.irfft(f, n=lon, axis=2) + z)
        return mnp.mean((z @ p["o"] - y) ** 2)

    s = {"i": (3, c), "w": [(2, lmax, c, c)] * 2, "o": (c, 3)}
    sp = {"i": P(), "w": [P()] * 2, "o": P()}
    rows = P("b", "h")
    return sgd(loss), (s, (b, lat, lon, 3), (b, lat, lon, 3)), (sp, rows, rows), None, mesh_of(b=2, h=4)
