"""More programs of many fields, written after the partitioner was: nothing in it has been tuned for them.

Each function returns what those of ``benchmarks/field_programs.py`` do.
"""

from __future__ import annotations

import itertools

import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from benchmarks.field_programs import ATT, adam, att, mha, mlp, xent
from benchmarks.shapes import Programs, int8s, ints, mesh_of, sgd
from meshwright import NamedSharding, lax, nn
from meshwright import PartitionSpec as P

F32 = np.float32
BF16 = mnp.bfloat16
KEY = mw.ShapeDtypeStruct((), mw.random.key(0).dtype)
PROGRAMS = Programs()
program = PROGRAMS.add


@program
def gspmd_pipeline():
    """Stages stacked and split, vmapped, the state shifted by a roll each step (GSPMD pipelining)."""
    s, m, b, w, h = 4, 8, 4, 256, 1024

    def loss(p, xs, ys):
        def stage(p, x):
            return x + nn.gelu(x @ p["up"]) @ p["down"]

        def step(state, i):
            x = lax.dynamic_index_in_dim(xs, mnp.minimum(i, m - 1), keepdims=False)
            state = mnp.concatenate([x[None], state[:-1]], 0)
            state = mw.vmap(stage)(p, state)
            return state, state[-1]

        _, outs = lax.scan(step, mnp.zeros((s, b, w)), mnp.arange(m + s - 1))
        return mnp.mean((outs[s - 1 :] - ys) ** 2)

    return (
        sgd(loss),
        ({"up": (s, w, h), "down": (s, h, w)}, (m, b, w), (m, b, w)),
        (P("s"), P(None, "d"), P(None, "d")),
        (P(), P("s")),
        mesh_of(s=4, d=2),
    )


@program
def dlrm():
    """Embedding tables split by rows, dense features by batch, dot interactions."""
    b, n, w, r = 1024, 8, 64, 20000

    def loss(p, dense, ids, y):
        x = nn.relu(dense @ p["b0"]) @ p["b1"]
        e = mnp.stack([p["t"][i][ids[:, i]] for i in range(n)], 1)
        z = mnp.concatenate([x[:, None], e], 1)
        d = mnp.einsum("bik,bjk->bij", z, z)
        i, j = np.tril_indices(n + 1, -1)
        f = mnp.concatenate([x, d[:, i, j]], 1)
        l = (nn.relu(f @ p["o0"]) @ p["o1"])[:, 0]
        return mnp.mean(nn.softplus(l) - l * y)

    shp = {"b0": (16, 256), "b1": (256, w), "t": [(r, w)] * n, "o0": (w + 36, 256), "o1": (256, 1)}
    sp = {"b0": P(), "b1": P(), "t": [P("d")] * n, "o0": P(), "o1": P()}
    return sgd(loss), (shp, (b, 16), ints(b, n), (b,)), (sp, P("d"), P("d"), P("d")), (P(), sp), mesh_of(d=8)


@program
def dlrm_one_table_bags():
    """One stacked table (n, r, w) split over tables, bags of 4 ids summed, batch split outside."""
    b, n, w, r, k = 1024, 16, 64, 5000, 4

    def loss(p, ids, y):
        e = mw.vmap(lambda t, i: t[i].sum(1), (0, 1), 1)(p["t"], ids)
        h = nn.relu(e.reshape(b, n * w) @ p["o0"])
        l = (h @ p["o1"])[:, 0]
        return mnp.mean(nn.softplus(l) - l * y)

    shp = {"t": (n, r, w), "o0": (n * w, 256), "o1": (256, 1)}
    sp = {"t": P("d"), "o0": P(), "o1": P()}
    return sgd(loss), (shp, ints(b, n, k), (b,)), (sp, P("d"), P("d")), (P(), sp), mesh_of(d=8)


@program
def two_tower_softmax():
    """Two tables of embeddings split by rows, and each row of a batch against all others of it."""
    b, w, r = 2048, 128, 30000

    def loss(p, u, v):
        a = nn.relu(p["u"][u] @ p["a"])
        c = nn.relu(p["v"][v] @ p["c"])
        a = a / mnp.linalg.norm(a, axis=-1, keepdims=True)
        c = c / mnp.linalg.norm(c, axis=-1, keepdims=True)
        s = a @ c.T * 20
        return mnp.mean(nn.logsumexp(s, 1) - mnp.diagonal(s))

    shp = {"u": (r, w), "v": (r, w), "a": (w, w), "c": (w, w)}
    sp = {"u": P("d"), "v": P("d"), "a": P(), "c": P()}
    return sgd(loss), (shp, ints(b), ints(b)), (sp, P("d"), P("d")), (P(), sp), mesh_of(d=8)


@program
def simclr():
    """A contrastive loss over all pairs of a split batch."""
    b, w, k = 512, 3072, 128

    def loss(p, x, y):
        z = [nn.relu(nn.relu(a @ p["w0"]) @ p["w1"]) @ p["w2"] for a in (x, y)]
        z = mnp.concatenate(z, 0)
        z = z / mnp.linalg.norm(z, axis=1, keepdims=True)
        s = z @ z.T / 0.5
        s = mnp.where(mnp.eye(2 * b, dtype=bool), -1e9, s)
        pos = mnp.concatenate([mnp.arange(b) + b, mnp.arange(b)])
        return xent(s, pos).mean()

    return (
        sgd(loss),
        ({"w0": (w, 1024), "w1": (1024, 512), "w2": (512, k)}, (b, w), (b, w)),
        (P(), P("d"), P("d")),
        (P(), P()),
        mesh_of(d=8),
    )


@program
def dpo_tensor_parallel():
    """Preferences of pairs against a reference model, both tensor parallel."""
    b, t, w, h, v = 8, 128, 256, 8, 8000

    def logp(p, x, y):
        z = p["e"][x]
        for l in p["l"]:
            z = z + mha(l, z, h, mask=mnp.tril(mnp.ones((t, t), bool)))
            z = z + mlp(l, z)
        return -xent(z @ p["e"].T, y).sum(1)

    def loss(p, ref, x, y):
        r = logp(p, x, y) - logp(ref, x, y)
        c, d = r.reshape(2, b // 2)
        return -mnp.mean(nn.log_sigmoid(0.1 * (c - d)))

    shp = {"e": (v, w), "l": [{**att(w), "up": (w, 4 * w), "down": (4 * w, w)}] * 2}
    sp = {"e": P("t"), "l": [{**ATT(P(None, "t"), P("t")), "up": P(None, "t"), "down": P("t")}] * 2}
    return sgd(loss), (shp, shp, ints(b, t), ints(b, t)), (sp, sp, P("d"), P("d")), (P(), sp), mesh_of(d=2, t=4)


@program
def whisper_encoder():
    """Strided convolutions over a split batch, then an encoder-decoder with cross attention."""
    b, t, f, w, h, u, v = 8, 512, 80, 256, 8, 64, 4000

    def loss(p, x, y):
        x = nn.gelu(lax.conv_general_dilated(x, p["c0"], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")))
        x = nn.gelu(lax.conv_general_dilated(x, p["c1"], (2,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")))
        x = x + mha(p["a"], x, h)
        x = x + mlp(p["m"], x)
        z = p["e"][y]
        z = z + mha(p["b"], z, h, mask=mnp.tril(mnp.ones((u, u), bool)))
        z = z + mha(p["x"], z, h, kv=x)
        z = z + mlp(p["n"], z)
        return xent(z[:, :-1] @ p["e"].T, y[:, 1:]).mean()

    m, ms = {"up": (w, 4 * w), "down": (4 * w, w)}, {"up": P(None, "t"), "down": P("t")}
    shp = {"c0": (3, f, w), "c1": (3, w, w), "a": att(w), "b": att(w), "x": att(w), "m": m, "n": m, "e": (v, w)}
    A = ATT(P(None, "t"), P("t"))
    sp = {"c0": P(), "c1": P(), "a": A, "b": A, "x": A, "m": ms, "n": ms, "e": P("t")}
    return sgd(loss), (shp, (b, t, f), ints(b, u)), (sp, P("d"), P("d")), (P(), sp), mesh_of(d=2, t=4)


@program
def conformer_time_split():
    """Depthwise convolution and gating along a split time dimension, batch norm, attention."""
    b, t, w, h = 2, 2048, 128, 4

    def loss(p, x, y):
        x = x + 0.5 * mlp(p["m"], x)
        x = x + mha(p["a"], x, h)
        g = x @ p["g"]
        g = g[..., :w] * nn.sigmoid(g[..., w:])
        c = lax.conv_general_dilated(
            g, p["c"], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=w
        )
        c = (c - c.mean((0, 1))) / mnp.sqrt(c.var((0, 1)) + 1e-5)
        x = x + nn.silu(c) @ p["o"]
        return mnp.mean((x - y) ** 2)

    return (
        sgd(loss),
        (
            {"m": {"up": (w, 4 * w), "down": (4 * w, w)}, "a": att(w), "g": (w, 2 * w), "c": (15, 1, w), "o": (w, w)},
            (b, t, w),
            (b, t, w),
        ),
        (P(), P(None, "s"), P(None, "s")),
        (P(), P()),
        mesh_of(s=8),
    )


@program
def wav2vec_negatives():
    """Negatives drawn from each utterance's own steps, batch split."""
    b, t, w, n = 32, 128, 128, 20

    def loss(p, x, idx):
        c = nn.gelu(x @ p["c"])
        q = x @ p["q"]
        neg = mnp.take_along_axis(q[:, :, None], idx.reshape(b, t * n)[:, :, None, None], 1).reshape(b, t, n, w)
        z = mnp.concatenate([q[:, :, None], neg], 2)
        s = mnp.einsum("btw,btnw->btn", c, z)
        return mnp.mean(nn.logsumexp(s, -1) - s[..., 0])

    return (
        sgd(loss),
        ({"c": (w, w), "q": (w, w)}, (b, t, w), ints(b, t, n)),
        (P(), P("d"), P("d")),
        (P(), P()),
        mesh_of(d=8),
    )


@program
def retrieval_topk():
    """Queries against a split corpus, top-k, gathered documents."""
    q, n, w, k = 64, 65536, 128, 16

    def f(x, db):
        s, i = lax.top_k(x @ db.T, k)
        docs = db[i]
        a = nn.softmax(s, -1)
        return mnp.einsum("qk,qkw->qw", a, docs), i

    return f, ((q, w), (n, w)), (P(), P("d")), (P(), P()), mesh_of(d=8)


@program
def maml():
    """A step within each task, split, and the gradient through it."""
    b, n, w = 16, 32, 64

    def net(p, x):
        return mnp.tanh(mnp.tanh(x @ p["a"]) @ p["b"]) @ p["c"]

    def inner(p, x, y):
        return mnp.mean((net(p, x) - y) ** 2)

    def loss(p, xs, ys, xq, yq):
        def task(x, y, u, v):
            g = mw.grad(inner)(p, x, y)
            fast = mw.tree.map(lambda a, g: a - 0.1 * g, p, g)
            return inner(fast, u, v)

        return mw.vmap(task)(xs, ys, xq, yq).mean()

    return (
        sgd(loss),
        ({"a": (8, w), "b": (w, w), "c": (w, 4)}, (b, n, 8), (b, n, 4), (b, n, 8), (b, n, 4)),
        (P(), *[P("d")] * 4),
        (P(), P()),
        mesh_of(d=8),
    )


@program
def evolution_strategies():
    """A population split over devices, perturbations drawn by key, evaluated, weighted and summed."""
    pop, w, b = 256, 64, 128

    def f(p, key, x, y):
        keys = mw.random.split(key, pop)

        def one(k):
            ks = mw.random.split(k, 2)
            eps = [mw.random.normal(a, q.shape) for a, q in zip(ks, p)]
            q = [a + 0.1 * e for a, e in zip(p, eps)]
            return mnp.mean((mnp.tanh(x @ q[0]) @ q[1] - y) ** 2), eps

        l, eps = mw.vmap(one)(keys)
        l = (l - l.mean()) / (l.std() + 1e-6)
        return [a - 0.01 * mnp.tensordot(l, e, 1) / pop for a, e in zip(p, eps)], l

    return f, ([(16, w), (w, 4)], KEY, (b, 16), (b, 4)), (P(), P(), P(), P()), (P(), P("d")), mesh_of(d=8)


@program
def hmc_chains():
    """Chains over one axis, the data of their potential over the other."""
    c, d, n, steps = 64, 32, 512, 8

    def f(q, mom, u, x, y):
        def pot(q):
            return 0.5 * (q @ q) + nn.softplus(-(x @ q) * y).sum()

        g = mw.vmap(mw.grad(pot))
        v = mw.vmap(pot)

        def leap(s, _):
            a, b = s
            b = b - 0.005 * g(a)
            a = a + 0.01 * b
            b = b - 0.005 * g(a)
            return (a, b), None

        (a, b), _ = lax.scan(leap, (q, mom), None, length=steps)
        acc = mnp.log(u) < v(q) + 0.5 * (mom * mom).sum(1) - v(a) - 0.5 * (b * b).sum(1)
        return mnp.where(acc[:, None], a, q), acc.mean()

    return (
        f,
        ((c, d), (c, d), (c,), (n, d), (n,)),
        (P("c"), P("c"), P("c"), P("d"), P("d")),
        (P("c"), P()),
        mesh_of(c=4, d=2),
    )


@program
def lqr_riccati_batch():
    """Riccati's recursion backwards, then the controlled system forwards, many at once."""
    b, n, m, t = 64, 12, 4, 20

    def f(a, bb, q, r, x0):
        def back(v, _):
            def one(v, a, b, q, r):
                k = mnp.linalg.solve(r + b.T @ v @ b, b.T @ v @ a)
                return q + a.T @ v @ (a - b @ k), k

            return mw.vmap(one)(v, a, bb, q, r)

        _, ks = lax.scan(back, q, None, length=t)

        def fwd(x, k):
            u = -mnp.einsum("bmn,bn->bm", k, x)
            x = mnp.einsum("bij,bj->bi", a, x) + mnp.einsum("bim,bm->bi", bb, u)
            return x, (x, u)

        return lax.scan(fwd, x0, ks[::-1])[1]

    return (
        f,
        ((b, n, n), (b, n, m), (b, n, n), (b, m, m), (b, n)),
        (P("d"),) * 5,
        (P(None, "d"), P(None, "d")),
        mesh_of(d=8),
    )


@program
def gaussian_process():
    """The likelihood of a Gaussian process, the points split."""
    n, d = 512, 8

    def loss(p, x, y):
        z = x / mnp.exp(p["l"])
        k = mnp.exp(p["s"] - 0.5 * ((z[:, None] - z[None]) ** 2).sum(-1)) + mnp.exp(p["n"]) * mnp.eye(n)
        c = mnp.linalg.cholesky(k)
        a = mw.scipy.linalg.cho_solve((c, True), y)
        return 0.5 * y @ a + mnp.log(mnp.diagonal(c)).sum()

    return sgd(loss), ({"l": (d,), "s": (), "n": ()}, (n, d), (n,)), (P(), P("d"), P("d")), (P(), P()), mesh_of(d=8)


@program
def svgp():
    """A sparse variational Gaussian process: few inducing points, many split ones."""
    n, d, m = 4096, 8, 128

    def loss(p, x, y):
        def kern(a, b):
            return mnp.exp(-0.5 * ((a[:, None] / mnp.exp(p["l"]) - b[None] / mnp.exp(p["l"])) ** 2).sum(-1))

        kmm = kern(p["z"], p["z"]) + 1e-4 * mnp.eye(m)
        c = mnp.linalg.cholesky(kmm)
        a = mw.scipy.linalg.solve_triangular(c, kern(p["z"], x), lower=True)
        ls = mnp.tril(p["L"])
        mean = a.T @ p["m"]
        var = 1 - (a * a).sum(0) + ((ls.T @ a) ** 2).sum(0)
        kl = 0.5 * ((ls**2).sum() + p["m"] @ p["m"]) - mnp.log(mnp.abs(mnp.diagonal(ls))).sum()
        return ((y - mean) ** 2 + var).mean() + kl / n

    return (
        sgd(loss),
        ({"l": (d,), "z": (m, d), "m": (m,), "L": (m, m)}, (n, d), (n,)),
        (P(), P("d"), P("d")),
        (P(), P()),
        mesh_of(d=8),
    )


@program
def poisson_cg_2d():
    """Conjugate gradients with a five-point stencil over a grid split both ways."""
    n = 512

    def f(b):
        def A(u):
            v = mnp.pad(u, 1)
            return 4 * u - v[2:, 1:-1] - v[:-2, 1:-1] - v[1:-1, 2:] - v[1:-1, :-2]

        def body(i, s):
            x, r, p, rr = s
            ap = A(p)
            al = rr / (p * ap).sum()
            x = x + al * p
            r = r - al * ap
            new = (r * r).sum()
            return x, r, r + new / rr * p, new

        return lax.fori_loop(0, 50, body, (mnp.zeros_like(b), b, b, (b * b).sum()))[0]

    return f, ((n, n),), (P("x", "y"),), P("x", "y"), mesh_of(x=4, y=2)


@program
def adi_heat():
    """Alternating directions: tridiagonal solves along rows, then along columns, of a grid split by rows."""
    n = 256

    def f(u):
        dl = mnp.full((n,), -0.1)
        dd = mnp.full((n,), 1.2)
        du = mnp.full((n,), -0.1)

        def solve(r):  # (n, m): along dimension 0
            return mw.lax.linalg.tridiagonal_solve(dl.at[0].set(0), dd, du.at[-1].set(0), r)

        def step(u, _):
            u = solve(u)
            u = solve(u.T).T
            return u, None

        return lax.scan(step, u, None, length=4)[0]

    return f, ((n, n),), (P(None, "d"),), P(None, "d"), mesh_of(d=8)


@program
def fdtd_3d():
    """Maxwell's equations on a grid split in three dimensions, with a source at a point."""
    n = 64

    def f(e, h):
        def curl(v, s):
            def d(a, ax):
                return (mnp.roll(a, -1, ax) - a) if s > 0 else (a - mnp.roll(a, 1, ax))

            return mnp.stack([d(v[2], 1) - d(v[1], 2), d(v[0], 2) - d(v[2], 0), d(v[1], 0) - d(v[0], 1)])

        def step(s, i):
            e, h = s
            h = h - 0.5 * curl(e, 1)
            e = e + 0.5 * curl(h, -1)
            e = e.at[2, n // 2, n // 2, n // 2].add(mnp.sin(i * 0.1))
            return (e, h), (e**2).sum()

        return lax.scan(step, (e, h), mnp.arange(8.0))

    c = P(None, "x", "y", "z")
    return f, ((3, n, n, n), (3, n, n, n)), (c, c), ((c, c), P()), mesh_of(x=2, y=2, z=2)


@program
def heat_boundaries_at():
    """Boundary conditions written with at[].set each step, rows split."""
    n = 512

    def f(u):
        def step(i, u):
            u = u.at[1:-1, 1:-1].add(
                0.2 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])
            )
            u = u.at[0].set(1.0).at[-1].set(0.0)
            u = u.at[:, 0].set(u[:, 1]).at[:, -1].set(u[:, -2])
            return u

        return lax.fori_loop(0, 20, step, u)

    return f, ((n, n),), (P("x", "y"),), P("x", "y"), mesh_of(x=4, y=2)


@program
def monte_carlo_options():
    """Prices and their derivatives from paths that are drawn inside; nothing is split by an annotation."""
    n, t = 65536, 64

    def f(key, s0, sig, strike):
        z = mw.random.normal(key, (n // 2, t))
        z = mnp.concatenate([z, -z], 0)
        path = s0 * mnp.exp(mnp.cumsum((0.01 - 0.5 * sig**2) / t + sig / np.sqrt(t).astype(F32) * z, 1))
        pay = mnp.maximum(path.mean(1) - strike, 0)
        bar = mnp.where(path.max(1) < 1.5, pay, 0)
        return pay.mean(), pay.std(), bar.mean(), mnp.percentile(pay, 95)

    return (
        (lambda k, s, g, q: mw.value_and_grad(lambda s, g: sum(f(k, s, g, q)[:3]), (0, 1))(s, g)),
        (KEY, (), (), ()),
        (P(),) * 4,
        None,
        mesh_of(d=8),
    )


@program
def pagerank():
    """Ranks of nodes, edges split."""
    n, e = 4096, 65536

    def f(src, dst, deg):
        def step(i, r):
            return 0.15 / n + 0.85 * mw.ops.segment_sum(r[src] / deg[src], dst, n)

        return lax.fori_loop(0, 10, step, mnp.full((n,), 1 / n))

    return f, (ints(e), ints(e), (n,)), (P("d"), P("d"), P()), P(), mesh_of(d=8)


@program
def floyd_warshall():
    """Shortest paths between all nodes, the matrix split both ways."""
    n = 256

    def f(d):
        return lax.fori_loop(0, n, lambda k, d: mnp.minimum(d, d[:, k][:, None] + d[k][None]), d)

    return f, ((n, n),), (P("x", "y"),), P("x", "y"), mesh_of(x=4, y=2)


@program
def smith_waterman_batch():
    """Scores of alignments row by row, pairs of sequences split."""
    b, n, m = 64, 64, 96

    def f(a, c, score):
        s = score[a[:, :, None], c[:, None, :]]

        def row(prev, sr):
            diag = mnp.pad(prev[:, :-1], ((0, 0), (1, 0))) + sr
            up = prev - 1.0
            h = mnp.maximum(mnp.maximum(diag, up), 0)
            k = mnp.arange(m, dtype=F32)
            h = lax.cummax(h + k, 1) - k
            return h, h.max(1)

        return lax.scan(row, mnp.zeros((b, m)), s.transpose(1, 0, 2))[1].max(0)

    return f, (ints(b, n), ints(b, m), (20, 20)), (P("d"), P("d"), P()), P("d"), mesh_of(d=8)


@program
def jpeg_blocks():
    """8x8 blocks of images split by rows and columns: DCT, quantize, inverse."""
    b, n, m = 4, 512, 512
    D = np.cos(np.pi / 8 * (np.arange(8)[None] + 0.5) * np.arange(8)[:, None]).astype(F32)

    def f(x, q):
        y = x.reshape(b, n // 8, 8, m // 8, 8).transpose(0, 1, 3, 2, 4)
        c = mnp.round(mnp.einsum("ui,bnmij,vj->bnmuv", D, y, D) / q) * q
        z = mnp.einsum("ui,bnmuv,vj->bnmij", D, c, D)
        z = z.transpose(0, 1, 3, 2, 4).reshape(b, n, m)
        return z, ((z - x) ** 2).mean((1, 2))

    return f, ((b, n, m), (8, 8)), (P(None, "x", "y"), P()), (P(None, "x", "y"), P()), mesh_of(x=4, y=2)


@program
def pyramid_optical_flow():
    """Lucas and Kanade's flow on three levels of images split by rows."""
    b, n = 8, 256

    def f(a, c):
        def down(x):
            return lax.reduce_window(x, 0.0, lax.add, (1, 2, 2), (1, 2, 2), "VALID") / 4

        def grad(x):
            return (mnp.roll(x, -1, 1) - mnp.roll(x, 1, 1)) / 2, (mnp.roll(x, -1, 2) - mnp.roll(x, 1, 2)) / 2

        def box(x):
            return lax.reduce_window(x, 0.0, lax.add, (1, 5, 5), (1, 1, 1), "SAME")

        out = []
        for _ in range(3):
            gx, gy = grad(a)
            gt = c - a
            A, B, C, u, v = box(gx * gx), box(gx * gy), box(gy * gy), box(gx * gt), box(gy * gt)
            det = A * C - B * B + 1e-3
            out.append(mnp.stack([(B * v - C * u) / det, (B * u - A * v) / det], -1))
            a, c = down(a), down(c)
        return out

    return (
        f,
        ((b, n, n), (b, n, n)),
        (P(None, "x"), P(None, "x")),
        P(None, "x"),
        mesh_of(x=8),
    )


@program
def deformable_attention():
    """Values at positions between pixels, which queries choose; heads split."""
    b, q, n, h, k, w = 8, 256, 32, 8, 4, 256

    def loss(p, x, img, y):
        v = (img @ p["v"]).reshape(b, n, n, h, w // h)
        off = mnp.tanh((x @ p["off"]).reshape(b, q, h, k, 2)) * (n / 2 - 1) + n / 2
        a = nn.softmax((x @ p["a"]).reshape(b, q, h, k))
        i = mnp.floor(off).astype(np.int32)
        fr = off - i
        out = 0
        for dx, dy in itertools.product((0, 1), (0, 1)):
            wx = mnp.where(dx, fr[..., 0], 1 - fr[..., 0])
            wy = mnp.where(dy, fr[..., 1], 1 - fr[..., 1])
            ix, iy = mnp.clip(i[..., 0] + dx, 0, n - 1), mnp.clip(i[..., 1] + dy, 0, n - 1)
            bi = mnp.arange(b)[:, None, None, None]
            hi = mnp.arange(h)[None, None, :, None]
            out = out + v[bi, ix, iy, hi] * (wx * wy * a)[..., None]
        z = out.sum(3).reshape(b, q, w) @ p["o"]
        return mnp.mean((z - y) ** 2)

    shp = {"v": (w, w), "off": (w, h * k * 2), "a": (w, h * k), "o": (w, w)}
    sp = {"v": P(None, "t"), "off": P(None, "t"), "a": P(None, "t"), "o": P("t")}
    return (
        sgd(loss),
        (shp, (b, q, w), (b, n, n, w), (b, q, w)),
        (sp, P("d"), P("d"), P("d")),
        (P(), sp),
        mesh_of(d=4, t=2),
    )


@program
def detr_cost_matching():
    """Boxes matched one after the other by cost, images split."""
    b, q, c, t, w = 16, 100, 91, 20, 256

    def loss(p, x, boxes, labels):
        lg = x @ p["c"]
        bx = nn.sigmoid(nn.relu(x @ p["b0"]) @ p["b1"])
        pr = nn.softmax(lg)
        cost = mnp.abs(bx[:, :, None] - boxes[:, None]).sum(-1) - mnp.take_along_axis(
            pr, mnp.broadcast_to(labels[:, None], (b, q, t)), 2
        )

        def greedy(used, j):
            cj = mnp.where(used, 1e9, lax.dynamic_index_in_dim(cost, j, 2, keepdims=False))
            i = cj.argmin(1)
            return used | (mnp.arange(q)[None] == i[:, None]), i

        _, idx = lax.scan(greedy, mnp.zeros((b, q), bool), mnp.arange(t))
        idx = lax.stop_gradient(idx.T)
        m = mnp.take_along_axis(bx, idx[..., None], 1)
        tgt = mnp.full((b, q), c - 1).at[mnp.arange(b)[:, None], idx].set(labels)
        return mnp.abs(m - boxes).mean() + xent(lg, tgt).mean()

    return (
        sgd(loss),
        ({"c": (w, c), "b0": (w, w), "b1": (w, 4)}, (b, q, w), (b, t, 4), ints(b, t)),
        (P(), P("d"), P("d"), P("d")),
        (P(), P()),
        mesh_of(d=8),
    )


@program
def mixture_of_depths():
    """The router's top tokens alone go through a block; written back by scatter."""
    b, t, w, k = 16, 256, 256, 64

    def loss(p, x, y):
        r = (x @ p["r"])[..., 0]
        g, i = lax.top_k(r, k)
        z = mnp.take_along_axis(x, i[..., None], 1)
        z = z + mha(p["a"], z, 8)
        z = mlp(p["m"], z) * g[..., None]
        x = x.at[mnp.arange(b)[:, None], i].add(z)
        return mnp.mean((x - y) ** 2)

    shp = {"r": (w, 1), "a": att(w), "m": {"up": (w, 4 * w), "down": (4 * w, w)}}
    sp = {"r": P(), "a": ATT(P(None, "t"), P("t")), "m": {"up": P(None, "t"), "down": P("t")}}
    return sgd(loss), (shp, (b, t, w), (b, t, w)), (sp, P("d"), P("d")), (P(), sp), mesh_of(d=2, t=4)


@program
def t5_relative_bias():
    """Layers with a table of biases by distance, heads split."""
    b, t, w, h = 8, 256, 256, 8
    rel = np.clip(np.arange(t)[None] - np.arange(t)[:, None] + 16, 0, 31).astype(np.int32)

    def loss(p, x, y):
        bias = p["rel"][rel].transpose(2, 0, 1)
        for l in p["l"]:
            q, k, v = ((x @ l[n]).reshape(b, t, h, -1) for n in "qkv")
            s = mnp.einsum("bqhd,bkhd->bhqk", q, k) + bias
            x = x + mnp.einsum("bhqk,bkhd->bqhd", nn.softmax(s), v).reshape(b, t, -1) @ l["o"]
            g = nn.gelu(x @ l["g"]) * (x @ l["up"])
            x = x + g @ l["down"]
        return mnp.mean((x - y) ** 2)

    shp = {"rel": (32, h), "l": [{**att(w), "g": (w, 2 * w), "up": (w, 2 * w), "down": (2 * w, w)}] * 2}
    sp = {
        "rel": P(None, "t"),
        "l": [{**ATT(P(None, "t"), P("t")), "g": P(None, "t"), "up": P(None, "t"), "down": P("t")}] * 2,
    }
    return sgd(loss), (shp, (b, t, w), (b, t, w)), (sp, P("d"), P("d")), (P(), sp), mesh_of(d=2, t=4)


@program
def pinn_hessian():
    """Residuals of second derivatives at split points."""
    n, w = 4096, 64

    def net(p, z):
        return (mnp.tanh(mnp.tanh(z @ p["a"] + p["b"]) @ p["c"] + p["d"]) @ p["e"])[0]

    def loss(p, z, zb, ub):
        def res(z):
            hss = mw.hessian(net, 1)(p, z)
            return hss[0, 0] + hss[1, 1] + mnp.sin(z[0]) * mnp.sin(z[1])

        return mnp.mean(mw.vmap(res)(z) ** 2) + mnp.mean((mw.vmap(lambda z: net(p, z))(zb) - ub) ** 2)

    return (
        sgd(loss),
        ({"a": (2, w), "b": (w,), "c": (w, w), "d": (w,), "e": (w, 1)}, (n, 2), (512, 2), (512,)),
        (P(), P("d"), P("d"), P("d")),
        (P(), P()),
        mesh_of(d=8),
    )


@program
def neural_ode_adjoint():
    """Runge and Kutta's steps in a loop with remat, tensor parallel."""
    b, w, h = 64, 256, 1024

    def loss(p, x, y):
        def f(z):
            return mnp.tanh(z @ p["a"]) @ p["b"]

        def step(z, _):
            k1 = f(z)
            k2 = f(z + 0.05 * k1)
            k3 = f(z + 0.05 * k2)
            k4 = f(z + 0.1 * k3)
            return z + 0.1 / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

        z, _ = lax.scan(mw.checkpoint(step), x, None, length=10)
        return mnp.mean((z - y) ** 2)

    sp = {"a": P(None, "t"), "b": P("t")}
    return sgd(loss), ({"a": (w, h), "b": (h, w)}, (b, w), (b, w)), (sp, P("d"), P("d")), (P(), sp), mesh_of(d=2, t=4)


@program
def gan_penalty():
    """A critic with a penalty on its gradient, then a generator, data parallel."""
    b, w, z = 256, 256, 64

    def gen(g, n):
        return mnp.tanh(nn.relu(n @ g["a"]) @ g["b"])

    def critic(c, x):
        return (nn.leaky_relu(nn.leaky_relu(x @ c["a"]) @ c["b"]) @ c["c"])[..., 0]

    def f(g, c, x, n, eps):
        def closs(c):
            fake = gen(g, n)
            mix = eps[:, None] * x + (1 - eps[:, None]) * fake
            gr = mw.vmap(mw.grad(critic, 1), (None, 0))(c, mix)
            pen = ((mnp.sqrt((gr**2).sum(1) + 1e-8) - 1) ** 2).mean()
            return critic(c, fake).mean() - critic(c, x).mean() + 10 * pen

        dc = mw.grad(closs)(c)
        c = mw.tree.map(lambda a, d: a - 0.01 * d, c, dc)
        dg = mw.grad(lambda g: -critic(c, gen(g, n)).mean())(g)
        return mw.tree.map(lambda a, d: a - 0.01 * d, g, dg), c

    return (
        f,
        ({"a": (z, 512), "b": (512, w)}, {"a": (w, 512), "b": (512, 512), "c": (512, 1)}, (b, w), (b, z), (b,)),
        (P(), P(), P("d"), P("d"), P("d")),
        (P(), P()),
        mesh_of(d=8),
    )


@program
def deep_ensemble():
    """Members over one axis, the batch over the other."""
    e, b, w, c = 16, 256, 128, 10

    def loss(p, x, y):
        h = nn.relu(mnp.einsum("bi,eij->ebj", x, p["a"]) + p["ab"][:, None])
        l = mnp.einsum("ebj,ejk->ebk", h, p["b"])
        mean = nn.softmax(l).mean(0)
        return xent(l, mnp.broadcast_to(y, (e, b))).mean() - 0.1 * (mean * mnp.log(mean + 1e-9)).sum(-1).mean()

    return (
        sgd(loss),
        ({"a": (e, w, w), "ab": (e, w), "b": (e, w, c)}, (b, w), ints(b)),
        (P("m"), P("d"), P("d")),
        (P(), P("m")),
        mesh_of(m=4, d=2),
    )


@program
def auc_by_sort():
    """The area under a curve from the ranks of split scores."""
    n = 65536

    def f(s, y):
        o = mnp.argsort(s)
        ys = y[o]
        r = mnp.arange(1, n + 1, dtype=F32)
        pos = ys.sum()
        return ((r * ys).sum() - pos * (pos + 1) / 2) / (pos * (n - pos))

    return f, ((n,), (n,)), (P("d"), P("d")), P(), mesh_of(d=8)


@program
def group_by_stats():
    """Means, variances and maxima of groups, and rows standardized by those."""
    n, g, c = 65536, 512, 8

    def f(x, k):
        s = mw.ops.segment_sum(x, k, g)
        n_ = mw.ops.segment_sum(mnp.ones((n,)), k, g)
        m = s / mnp.maximum(n_, 1)[:, None]
        v = mw.ops.segment_sum((x - m[k]) ** 2, k, g) / mnp.maximum(n_, 1)[:, None]
        mx = mw.ops.segment_max(x, k, g)
        return m, v, mx, (x - m[k]) / mnp.sqrt(v[k] + 1e-6)

    return f, ((n, c), ints(n)), (P("d"), P("d")), (P(), P(), P(), P("d")), mesh_of(d=8)


@program
def rolling_statistics():
    """Windows and exponential means along a split dimension of time, and correlations."""
    n, t, w = 64, 4096, 20

    def f(x):
        c = mnp.cumsum(x, 1)
        c2 = mnp.cumsum(x * x, 1)
        s = (c[:, w:] - c[:, :-w]) / w
        s2 = (c2[:, w:] - c2[:, :-w]) / w
        z = (x[:, w:] - s) / mnp.sqrt(s2 - s * s + 1e-4)
        ew = lax.associative_scan(
            lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (mnp.full_like(x, 0.9), 0.1 * x), axis=1
        )[1]
        return z, ew, mnp.corrcoef(x)

    return f, ((n, t),), (P(None, "d"),), (None, P(None, "d"), P()), mesh_of(d=8)


@program
def radix_select_quantile():
    """Quantiles along split rows, and a histogram."""
    n, c = 65536, 16

    def f(x):
        return mnp.quantile(x, mnp.array([0.05, 0.5, 0.95]), axis=0), mnp.histogram(x[:, 0], 32, (-3, 3))[0]

    return f, ((n, c),), (P("d"),), (P(), P()), mesh_of(d=8)


@program
def lm_prefill_chunked():
    """A chunk of a prompt against a cache split along heads and batch, written by dynamic_update_slice."""
    b, c, t, h, k, v = 8, 128, 1024, 8, 32, 8000
    w = h * k

    def f(p, kc, vc, toks, at):
        x = p["e"][toks]
        outs = []
        for i, l in enumerate(p["l"]):
            q, kn, vn = ((x @ l[n]).reshape(b, c, h, k) for n in "qkv")
            ki = lax.dynamic_update_slice(kc[i], kn, (0, at, 0, 0))
            vi = lax.dynamic_update_slice(vc[i], vn, (0, at, 0, 0))
            s = mnp.einsum("bchk,bthk->bhct", q, ki) / np.float32(k**0.5)
            s = mnp.where(mnp.arange(t)[None] <= at + mnp.arange(c)[:, None], s, -1e9)
            x = x + mnp.einsum("bhct,bthk->bchk", nn.softmax(s), vi).reshape(b, c, w) @ l["o"]
            x = x + mlp(l, x)
            outs.append((ki, vi))
        return mnp.argmax(x[:, -1] @ p["e"].T, -1), mnp.stack([a for a, _ in outs]), mnp.stack([b for _, b in outs])

    L = 2
    shp = {"e": (v, w), "l": [{**att(w), "up": (w, 4 * w), "down": (4 * w, w)}] * L}
    sp = {"e": P("t"), "l": [{**ATT(P(None, "t"), P("t")), "up": P(None, "t"), "down": P("t")}] * L}
    cs = P(None, "d", None, "t")
    return (
        f,
        (shp, (L, b, t, h, k), (L, b, t, h, k), ints(b, c), ints()),
        (sp, cs, cs, P("d"), P()),
        (P("d"), cs, cs),
        mesh_of(d=2, t=4),
    )


@program
def multi_token_prediction():
    """Three heads that predict the next tokens, from one split table."""
    b, t, w, h, v, n = 8, 128, 256, 8, 8000, 3

    def loss(p, x):
        z = p["e"][x]
        z = z + mha(p["l"], z, h, mask=mnp.tril(mnp.ones((t, t), bool)))
        z = z + mlp(p["l"], z)
        tot = 0
        for i in range(n):
            zi = z[:, : t - n] @ p["h"][i]
            tot = tot + xent(zi @ p["e"].T, lax.dynamic_slice_in_dim(x, i + 1, t - n, 1)).mean()
        return tot

    shp = {"e": (v, w), "h": [(w, w)] * n, "l": {**att(w), "up": (w, 4 * w), "down": (4 * w, w)}}
    sp = {"e": P("t"), "h": [P(None, "t")] * n, "l": {**ATT(P(None, "t"), P("t")), "up": P(None, "t"), "down": P("t")}}
    return sgd(loss), (shp, ints(b, t)), (sp, P("d")), (P(), sp), mesh_of(d=2, t=4)


@program
def linear_attention_fsdp_bf16():
    """Sums along time in float32 of products in bfloat16, weights gathered layer by layer."""
    b, t, w, h = 16, 256, 512, 8

    def loss(p, x, y):
        def f(q):
            return nn.elu(q) + 1

        for l in p:
            l = mw.tree.map(lambda a: a.astype(BF16), l)
            xb = x.astype(BF16)
            q, k, v = ((xb @ l[n]).reshape(b, t, h, -1) for n in "qkv")
            kv = mnp.cumsum(mnp.einsum("bthd,bthe->bthde", f(k), v).astype(F32), 1)
            z = 1 / (mnp.einsum("bthd,bthd->bth", f(q).astype(F32), mnp.cumsum(f(k).astype(F32), 1)) + 1e-6)
            o = (mnp.einsum("bthd,bthde->bthe", f(q).astype(F32), kv) * z[..., None]).reshape(b, t, w)
            x = x + (o.astype(BF16) @ l["o"]).astype(F32)
        return mnp.mean((x - y) ** 2)

    shp = [att(w)] * 2
    sp = [dict.fromkeys("qkvo", P("d"))] * 2
    return sgd(loss), (shp, (b, t, w), (b, t, w)), (sp, P("d"), P("d")), (P(), sp), mesh_of(d=8)


@program
def qlora_dequantized():
    """Adapters beside weights of eight bits that are split by columns."""
    b, t, w, r, blk = 16, 128, 512, 8, 64

    def loss(ad, q, sc, x, y):
        for a, qi, si in zip(ad, q, sc):
            wt = (qi.astype(F32).reshape(w, w // blk, blk) * si[..., None]).reshape(w, w)
            x = nn.gelu(x @ wt + (x @ a["a"]) @ a["b"])
        return mnp.mean((x - y) ** 2)

    L = 3
    return (
        sgd(loss),
        ([{"a": (w, r), "b": (r, w)}] * L, [int8s(w, w)] * L, [(w, w // blk)] * L, (b, t, w), (b, t, w)),
        (P(), [P(None, "t")] * L, [P(None, "t")] * L, P("d"), P("d")),
        (P(), P()),
        mesh_of(d=2, t=4),
    )


@program
def grpo_groups():
    """Rewards normalised within groups; the batch of groups x samples is split along merged dimension."""
    g, n, t, w, v = 8, 8, 64, 128, 4000

    def loss(p, toks, rew, old):
        z = p["e"][toks]
        z = z + mlp(p, z)
        lp = -xent(z @ p["e"].T, mnp.roll(toks, -1, 1))
        r = rew.reshape(g, n)
        adv = ((r - r.mean(1, keepdims=True)) / (r.std(1, keepdims=True) + 1e-4)).reshape(g * n)
        ratio = mnp.exp(lp - old)
        o = mnp.minimum(ratio * adv[:, None], mnp.clip(ratio, 0.8, 1.2) * adv[:, None])
        return -o.mean()

    return (
        sgd(loss),
        ({"e": (v, w), "up": (w, 4 * w), "down": (4 * w, w)}, ints(g * n, t), (g * n,), (g * n, t)),
        (P(), P(("d", "s")), P(("d", "s")), P(("d", "s"))),
        (P(), P()),
        mesh_of(d=4, s=4),
    )


@program
def ulysses_explicit():
    """Sequence parallel outside of attention, heads inside, by constraints (DeepSpeed Ulysses)."""
    b, t, w, h = 2, 2048, 256, 8
    mesh = mesh_of(s=8)

    def wsc(x, spec):
        return lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    def loss(p, x, y):
        q, k, v = (wsc((x @ p[n]).reshape(b, t, h, -1), P(None, None, "s")) for n in "qkv")
        s = nn.softmax(mnp.einsum("bqhd,bkhd->bhqk", q, k))
        o = wsc(mnp.einsum("bhqk,bkhd->bqhd", s, v).reshape(b, t, w), P(None, "s"))
        return mnp.mean((x + o @ p["o"] - y) ** 2)

    return sgd(loss), (att(w), (b, t, w), (b, t, w)), (P(), P(None, "s"), P(None, "s")), (P(), P()), mesh


@program
def batched_svd_lowrank_adaptor():
    """Decompositions of matrices that are split by rows."""
    b, n, k = 32, 64, 8

    def f(ws):
        u, s, v = mnp.linalg.svd(ws, full_matrices=False)
        return (u[..., :k] * s[:, None, :k]) @ v[:, :k], s.sum(-1)

    return f, ((b, n, n),), (P(None, "d"),), (P(None, "d"), P()), mesh_of(d=8)


@program
def matrix_exponential_split():
    """Functions of a matrix that is split both ways."""
    n = 256

    def f(a):
        return mw.scipy.linalg.expm(a * 0.01), mnp.linalg.matrix_power(a * 0.01, 5), mnp.linalg.slogdet(a)[1]

    return f, ((n, n),), (P("x", "y"),), (P("x", "y"), P("x", "y"), P()), mesh_of(x=4, y=2)


@program
def convnext_block_2d():
    """Wide depthwise convolutions over images split both ways."""
    b, n, w = 4, 128, 64

    def loss(p, x, y):
        for l in p:
            z = lax.conv_general_dilated(
                x, l["dw"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=w
            )
            z = (z - z.mean(-1, keepdims=True)) / mnp.sqrt(z.var(-1, keepdims=True) + 1e-6)
            x = x + nn.gelu(z @ l["a"]) @ l["b"]
        return mnp.mean((x - y) ** 2)

    L = 2
    return (
        sgd(loss),
        ([{"dw": (7, 7, 1, w), "a": (w, 4 * w), "b": (4 * w, w)}] * L, (b, n, n, w), (b, n, n, w)),
        (P(), P(None, "x", "y"), P(None, "x", "y")),
        (P(), P()),
        mesh_of(x=4, y=2),
    )


@program
def efficientnet_se_dp():
    """Gates from means of images, batch norm and Adam, data parallel."""
    b, n, w = 32, 32, 64

    def loss(p, x, y):
        for l in p["l"]:
            z = nn.silu(x @ l["e"])
            z = nn.silu(
                lax.conv_general_dilated(
                    z, l["dw"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=4 * w
                )
            )
            g = nn.sigmoid(nn.silu(z.mean((1, 2)) @ l["s0"]) @ l["s1"])
            z = (z * g[:, None, None]) @ l["p"]
            m, v = z.mean((0, 1, 2)), z.var((0, 1, 2))
            x = x + (z - m) / mnp.sqrt(v + 1e-5)
        return xent(x.mean((1, 2)) @ p["h"], y).mean()

    l = {"e": (w, 4 * w), "dw": (3, 3, 1, 4 * w), "s0": (4 * w, 16), "s1": (16, 4 * w), "p": (4 * w, w)}
    return (
        adam(loss),
        (*[{"l": [l] * 2, "h": (w, 1000)}] * 3, (b, n, n, w), ints(b)),
        (P(), P(), P(), P("d"), P("d")),
        (P(), P(), P(), P()),
        mesh_of(d=8),
    )
