"""Programs of fields that the other lots leave out, written and then compared: nothing has been tuned for them.

Each function returns what those of ``benchmarks/field_programs.py`` do.
"""

from __future__ import annotations

import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from benchmarks.field_programs import ATT, adam, att, mha, mlp, xent
from benchmarks.shapes import Programs, bf16, ints, mesh_of, sgd
from meshwright import PartitionSpec as P
from meshwright import lax, nn

F32 = np.float32
KEY = mw.ShapeDtypeStruct((), mw.random.key(0).dtype)
PROGRAMS = Programs()
program = PROGRAMS.add


# --- linear algebra by hand ----------------------------------------------------------------------------------
@program
def blocked_cholesky():
    """A right-looking Cholesky factorization of blocks, the trailing matrix split both ways."""
    n, s = 1024, 128

    def f(a):
        for k in range(0, n, s):
            l = mnp.linalg.cholesky(a[k : k + s, k : k + s])
            a = a.at[k : k + s, k : k + s].set(l)
            if k + s < n:
                p = lax.linalg.triangular_solve(l, a[k + s :, k : k + s], left_side=False, lower=True, transpose_a=True)
                a = a.at[k + s :, k : k + s].set(p)
                a = a.at[k + s :, k + s :].add(-p @ p.T)
        return mnp.tril(a)

    return f, ((n, n),), (P("x", "y"),), P("x", "y"), mesh_of(x=4, y=2)


@program
def gauss_jordan_columns():
    """Gauss-Jordan elimination with pivoting, a column a step, rows split."""
    n = 256

    def f(a, b):
        m = mnp.concatenate([a, b], 1)

        def step(k, m):
            col = mnp.where(mnp.arange(n) >= k, mnp.abs(m[:, k]), -1)
            p = mnp.argmax(col)
            rk, rp = m[k], m[p]
            m = m.at[p].set(rk).at[k].set(rp / rp[k])
            return m - mnp.where(mnp.arange(n) == k, 0, m[:, k])[:, None] * m[k]

        return lax.fori_loop(0, n, step, m)[:, n:]

    return f, ((n, n), (n, 16)), (P("d"), P("d")), P("d"), mesh_of(d=8)


@program
def block_lanczos():
    """Lanczos iterations with full orthogonalization, a symmetric matrix split by rows."""
    n, m = 2048, 16

    def f(a, v):
        def step(c, j):
            q, v, prev, beta = c
            w = a @ v - beta * prev
            alpha = w @ v
            w = w - alpha * v
            w = w - q.T @ (q @ w)
            beta = mnp.linalg.norm(w)
            return (q.at[j].set(v), w / beta, v, beta), (alpha, beta)

        (q, *_), (al, be) = lax.scan(step, (mnp.zeros((m, n)), v / mnp.linalg.norm(v), v * 0, F32(0)), mnp.arange(m))
        t = mnp.diag(al) + mnp.diag(be[:-1], 1) + mnp.diag(be[:-1], -1)
        e, u = mnp.linalg.eigh(t)
        return e, q.T @ u

    return f, ((n, n), (n,)), (P("d"), P("d")), (P(), P("d")), mesh_of(d=8)


@program
def nmf_updates():
    """Multiplicative updates of a factorization, the matrix split both ways."""
    n, m, r = 2048, 1024, 32

    def f(x, w, h):
        def step(_, c):
            w, h = c
            h = h * (w.T @ x) / (w.T @ w @ h + 1e-6)
            return w * (x @ h.T) / (w @ (h @ h.T) + 1e-6), h

        return lax.fori_loop(0, 10, step, (w, h))

    s = P("x"), P(None, "y")
    return f, ((n, m), (n, r), (r, m)), (P("x", "y"), *s), s, mesh_of(x=4, y=2)


@program
def muon_fsdp():
    """Muon: Newton-Schulz iterations on gradients of matrices that are split (FSDP)."""
    b, w, h = 256, 512, 2048

    def loss(p, x, y):
        for l in p:
            x = x + nn.gelu(x @ l["a"]) @ l["b"]
        return mnp.mean((x - y) ** 2)

    def orth(g):
        flip = g.shape[0] > g.shape[1]
        x = g.T if flip else g
        x = x / (mnp.linalg.norm(x) + 1e-7)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
        return x.T if flip else x

    def f(p, m, x, y):
        l, g = mw.value_and_grad(loss)(p, x, y)
        m = mw.tree.map(lambda m, g: 0.95 * m + g, m, g)
        return l, mw.tree.map(lambda p, m: p - 0.02 * orth(m), p, m), m

    shp = [{"a": (w, h), "b": (h, w)}] * 2
    sp = P("d")
    return f, (shp, shp, (b, w), (b, w)), (sp, sp, sp, sp), (P(), sp, sp), mesh_of(d=8)


@program
def power_sgd():
    """Gradients of each device (a leading axis) compressed to rank 4, with error feedback."""
    d, b, w, h, r = 8, 32, 512, 1024, 4

    def loss(p, x, y):
        return mnp.mean((nn.relu(x @ p["a"]) @ p["b"] - y) ** 2)

    def f(p, err, q, x, y):
        g = mw.vmap(mw.grad(loss), (None, 0, 0))(p, x, y)
        g = mw.tree.map(lambda a, b: a + b, g, err)

        def compress(g, q):
            m = (g @ q).mean(0)
            m, _ = mnp.linalg.qr(m)
            n = mnp.einsum("dij,ir->djr", g, m).mean(0)
            return m @ n.T, n

        out = {k: compress(g[k], q[k]) for k in g}
        err = {k: g[k] - out[k][0] for k in g}
        return (
            mw.tree.map(lambda p, k: p - 0.1 * k, p, {k: v[0] for k, v in out.items()}),
            err,
            {k: v[1] for k, v in out.items()},
        )

    p = {"a": (w, h), "b": (h, w)}
    e = {"a": (d, w, h), "b": (d, h, w)}
    q = {"a": (h, r), "b": (w, r)}
    return f, (p, e, q, (d, b, w), (d, b, w)), (P(), P("d"), P(), P("d"), P("d")), (P(), P("d"), P()), mesh_of(d=8)


# --- graphs, geometry and data -------------------------------------------------------------------------------
@program
def connected_components():
    """Labels propagated along split edges until nothing changes, with pointer jumping."""
    n, e = 8192, 65536

    def f(src, dst):
        def step(c):
            lab, _ = c
            m = mnp.minimum(lab[src], lab[dst])
            new = lab.at[src].min(m).at[dst].min(m)
            new = new[new]
            return new, mnp.any(new != lab)

        return lax.while_loop(lambda c: c[1], step, (mnp.arange(n), mnp.bool_(True)))[0]

    return f, (ints(e), ints(e)), (P("d"), P("d")), P(), mesh_of(d=8)


@program
def triangle_counts():
    """Triangles and clustering coefficients from a dense adjacency that is split by rows."""
    n = 1024

    def f(a):
        deg = a.sum(1)
        tri = mnp.einsum("ij,jk,ki->i", a, a, a) / 2
        return tri, 2 * tri / mnp.maximum(deg * (deg - 1), 1)

    return f, ((n, n),), (P("d"),), (P("d"), P("d")), mesh_of(d=8)


@program
def schnet_neighbours():
    """Continuous-filter convolutions over neighbour lists, atoms split; energies and forces."""
    n, k, w, g = 1024, 24, 64, 32

    def energy(p, x, z, nb):
        h = p["e"][z]
        r = x[:, None] - x[nb]
        d = mnp.sqrt((r * r).sum(-1) + 1e-6)
        rbf = mnp.exp(-10 * (d[..., None] - mnp.linspace(0, 5, g)) ** 2)
        cut = 0.5 * (mnp.cos(d * np.pi / 5) + 1) * (d < 5)
        for l in p["l"]:
            filt = nn.softplus(rbf @ l["f0"]) @ l["f1"] * cut[..., None]
            h = h + nn.softplus(((h @ l["i"])[nb] * filt).sum(1) @ l["o0"]) @ l["o1"]
        return (nn.softplus(h @ p["r0"]) @ p["r1"]).sum()

    def f(p, x, z, nb):
        return mw.value_and_grad(energy, 1)(p, x, z, nb)

    layer = {"f0": (g, w), "f1": (w, w), "i": (w, w), "o0": (w, w), "o1": (w, w)}
    shp = {"e": (20, w), "l": [layer] * 3, "r0": (w, 32), "r1": (32, 1)}
    return f, (shp, (n, 3), ints(n), ints(n, k)), (P(), P("d"), P("d"), P("d")), (P(), P("d")), mesh_of(d=8)


@program
def lennard_jones_cells():
    """Forces between particles of neighbouring cells, cells split in two dimensions."""
    c, k = 32, 16

    def f(x, v, mask):
        def force(x):
            out = 0.0
            for dx in (-1, 0, 1):
                for dy in (-1, 0, 1):
                    o = mnp.roll(x, (dx, dy), (0, 1))
                    m = mnp.roll(mask, (dx, dy), (0, 1))
                    r = x[:, :, :, None] - o[:, :, None]
                    r = r - mnp.round(r / c) * c
                    d2 = (r * r).sum(-1) + 1e-2
                    ok = (d2 < 1) & (mask[..., None] * m[:, :, None] > 0)
                    if dx == dy == 0:
                        ok &= ~mnp.eye(k, dtype=bool)
                    i6 = 1 / d2**3
                    out = out + (mnp.where(ok, 24 * (2 * i6 * i6 - i6) / d2, 0)[..., None] * r).sum(3)
            return out

        def step(s, _):
            x, v = s
            v = v + 1e-4 * force(x)
            return (x + 1e-4 * v, v), (v * v).sum()

        return lax.scan(step, (x, v), None, length=5)

    s = P("x", "y")
    return f, ((c, c, k, 2), (c, c, k, 2), (c, c, k)), (s, s, s), ((s, s), P()), mesh_of(x=4, y=2)


@program
def tsne_gradient():
    """A step of t-SNE with all pairs, rows of affinities split."""
    n = 2048

    def f(y, p, m):
        d = 1 / (1 + ((y[:, None] - y[None]) ** 2).sum(-1))
        d = d * (1 - mnp.eye(n))
        q = d / d.sum()
        g = 4 * mnp.einsum("ij,ijk->ik", (p - q) * d, y[:, None] - y[None])
        m = 0.8 * m - 100 * g
        y = y + m
        return y - y.mean(0), m, (p * mnp.log((p + 1e-9) / (q + 1e-9))).sum()

    return f, ((n, 2), (n, n), (n, 2)), (P("d"), P("d"), P("d")), (P("d"), P("d"), P()), mesh_of(d=8)


@program
def knn_graph_blocks():
    """Exact nearest neighbours of all rows among all rows, in blocks."""
    n, w, k, c = 4096, 64, 10, 512

    def f(x):
        sq = (x * x).sum(1)

        def block(i):
            a = lax.dynamic_slice_in_dim(x, i * c, c)
            d = (a * a).sum(1)[:, None] + sq - 2 * a @ x.T
            v, j = lax.top_k(-d, k + 1)
            return v[:, 1:], j[:, 1:]

        v, j = lax.map(block, mnp.arange(n // c))
        return v.reshape(n, k), j.reshape(n, k)

    return f, ((n, w),), (P("d"),), (P("d"), P("d")), mesh_of(d=8)


@program
def lasso_fista_admm():
    """FISTA, then consensus ADMM over blocks of rows."""
    n, m, g = 4096, 512, 8

    def f(a, b):
        L = mnp.linalg.norm(a, "fro") ** 2 / 100

        def step(c, _):
            x, z, t = c
            y = z - a.T @ (a @ z - b) / L
            y = mnp.sign(y) * mnp.maximum(mnp.abs(y) - 0.1 / L, 0)
            s = (1 + mnp.sqrt(1 + 4 * t * t)) / 2
            return (y, y + (t - 1) / s * (y - x), s), None

        (x, *_), _ = lax.scan(step, (mnp.zeros(m), mnp.zeros(m), F32(1)), None, length=10)
        ab, bb = a.reshape(g, n // g, m), b.reshape(g, n // g)
        chol = mnp.linalg.cholesky(mnp.einsum("gij,gik->gjk", ab, ab) + mnp.eye(m))
        atb = mnp.einsum("gij,gi->gj", ab, bb)

        def admm(c, _):
            z, u = c
            r = atb + z - u
            xg = mw.vmap(lambda l, r: mw.scipy.linalg.cho_solve((l, True), r))(chol, r)
            z = (xg + u).mean(0)
            z = mnp.sign(z) * mnp.maximum(mnp.abs(z) - 0.01, 0)
            return (z, u + xg - z), None

        (z, _), _ = lax.scan(admm, (x, mnp.zeros((g, m))), None, length=5)
        return x, z

    return f, ((n, m), (n,)), (P("d"), P("d")), (P(), P()), mesh_of(d=8)


# --- signals and images ------------------------------------------------------------------------------------
@program
def stft_griffin_lim():
    """Phases found by alternating short-time transforms and overlap-add, frames of split clips."""
    b, t, w, s = 16, 8192, 512, 128
    k = (t - w) // s + 1

    def f(mag):
        win = 0.5 - 0.5 * mnp.cos(2 * np.pi * mnp.arange(w) / w)
        at = np.arange(k)[:, None] * s + np.arange(w)
        norm = mnp.zeros(t).at[at].add(mnp.broadcast_to(win**2, (k, w))) + 1e-3

        def inverse(z):
            fr = mnp.fft.irfft(z, w) * win
            return mnp.zeros((b, t)).at[:, at].add(fr) / norm

        def step(_, z):
            x = inverse(z)
            q = mnp.fft.rfft(x[:, at] * win)
            return mag * q / (mnp.abs(q) + 1e-6)

        return inverse(lax.fori_loop(0, 4, step, mag.astype(np.complex64)))

    return f, ((b, k, w // 2 + 1),), (P("d"),), P("d"), mesh_of(d=8)


@program
def wavelet_pyramid():
    """Three levels of a two-dimensional wavelet transform and back, the image split both ways."""
    n = 1024
    h = np.array([0.4829629, 0.8365163, 0.2241439, -0.1294095], F32)
    g = h[::-1] * np.array([1, -1, 1, -1], F32)

    def down(x, axis):
        x = mnp.moveaxis(x, axis, -1)
        p = [mnp.roll(x, -i, -1)[..., ::2] for i in range(4)]
        lo, hi = (sum(c * v for c, v in zip(q, p)) for q in (h, g))
        return mnp.moveaxis(lo, -1, axis), mnp.moveaxis(hi, -1, axis)

    def f(x):
        out = []
        for _ in range(3):
            lo, hi = down(x, 1)
            (ll, lh), (hl, hh) = down(lo, 0), down(hi, 0)
            out.append([mnp.sign(v) * mnp.maximum(mnp.abs(v) - 0.1, 0) for v in (lh, hl, hh)])
            x = ll
        return x, out

    return f, ((n, n),), (P("x", "y"),), P("x", "y"), mesh_of(x=4, y=2)


@program
def stereo_cost_volume():
    """Disparities from box-filtered costs by running sums, rows split."""
    hh, ww, dd, r = 512, 640, 32, 4

    def f(a, b):
        def cost(d):
            c = mnp.abs(a - mnp.where(mnp.arange(ww) >= d, mnp.roll(b, d, 1), 0))
            for ax in (0, 1):
                s = mnp.cumsum(mnp.pad(c, [(2 * r + 1, 0) if i == ax else (0, 0) for i in (0, 1)]), ax)
                c = lax.slice_in_dim(s, 2 * r + 1, None, axis=ax) - lax.slice_in_dim(s, 0, -2 * r - 1, axis=ax)
            return c

        v = mw.vmap(cost)(mnp.arange(dd))
        best = mnp.argmin(v, 0)
        conf = mnp.sort(v, 0)[1] - v.min(0)
        return best, conf

    return f, ((hh, ww), (hh, ww)), (P("d"), P("d")), (P("d"), P("d")), mesh_of(d=8)


@program
def filtered_backprojection():
    """A sinogram filtered by its transform and smeared back over an image whose rows are split."""
    n, a = 256, 180

    def f(sino):
        ramp = mnp.abs(mnp.fft.rfftfreq(2 * n)).astype(F32)
        q = mnp.fft.irfft(mnp.fft.rfft(sino, 2 * n) * ramp, 2 * n)[:, :n]
        yx = mnp.arange(n) - n / 2

        def angle(acc, i):
            th = i * np.pi / a
            t = yx[None] * mnp.cos(th) + yx[:, None] * mnp.sin(th) + n / 2
            lo = mnp.clip(mnp.floor(t).astype(np.int32), 0, n - 2)
            w = t - lo
            row = q[i]
            return acc + row[lo] * (1 - w) + row[lo + 1] * w, None

        return lax.scan(angle, mnp.zeros((n, n)), mnp.arange(a))[0] * np.pi / a

    return f, ((a, n),), (P(),), P("d"), mesh_of(d=8)


@program
def richardson_lucy():
    """Deconvolution by transforms over a split image."""
    n = 512

    def f(img, psf):
        k = mnp.fft.rfft2(nn.softmax(psf, axis=(0, 1)))

        def conv(x, k):
            return mnp.fft.irfft2(mnp.fft.rfft2(x) * k, (n, n))

        def step(_, u):
            return u * conv(img / (conv(u, k) + 1e-3), mnp.conj(k))

        return lax.fori_loop(0, 5, step, mnp.full((n, n), 0.5))

    return f, ((n, n), (n, n)), (P("d"), P()), P("d"), mesh_of(d=8)


@program
def nms_boxes():
    """Non-maximum suppression of the best boxes of each image, images split."""
    b, n, k = 16, 4096, 256

    def one(box, score):
        s, i = lax.top_k(score, k)
        x = box[i]
        area = (x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1])
        lo = mnp.maximum(x[:, None, :2], x[None, :, :2])
        hi = mnp.minimum(x[:, None, 2:], x[None, :, 2:])
        inter = mnp.prod(mnp.maximum(hi - lo, 0), -1)
        iou = inter / (area[:, None] + area - inter + 1e-9)

        def step(i, keep):
            return keep & ~((iou[i] > 0.5) & (mnp.arange(k) > i) & keep[i])

        return x, s, lax.fori_loop(0, k, step, mnp.ones(k, bool))

    return lambda a, s: mw.vmap(one)(a, s), ((b, n, 4), (b, n)), (P("d"), P("d")), P("d"), mesh_of(d=8)


# --- physics ---------------------------------------------------------------------------------------------------
@program
def quantum_circuit():
    """A circuit on 16 qubits whose state is split by its first three; expectation and gradient of its angles."""
    q, layers = 16, 3

    def f(theta, h):
        def energy(theta):
            s = mnp.zeros((2,) * q, np.complex64).at[(0,) * q].set(1)
            s = lax.with_sharding_constraint(s, mw.NamedSharding(mesh_of(a=2, b=2, c=2), P("a", "b", "c")))
            for l in range(layers):
                for i in range(q):
                    c, d = mnp.cos(theta[l, i]), mnp.sin(theta[l, i])
                    g = mnp.stack([mnp.stack([c, -d]), mnp.stack([d, c])]).astype(np.complex64)
                    s = mnp.moveaxis(mnp.tensordot(g, s, ((1,), (i,))), 0, i)
                for i in range(q - 1):
                    a = mnp.moveaxis(s, (i, i + 1), (0, 1))
                    a = mnp.stack([a[0], a[1, ::-1]])
                    s = mnp.moveaxis(a, (0, 1), (i, i + 1))
            p = mnp.abs(s.reshape(-1)) ** 2
            return (p * h).sum()

        return mw.value_and_grad(energy)(theta)

    return f, ((layers, q), (2**q,)), (P(), P(("a", "b", "c"))), (P(), P()), mesh_of(a=2, b=2, c=2)


@program
def hartree_fock():
    """Self-consistent fields from two-electron integrals that are split."""
    n, e = 48, 10

    def f(h, s, eri):
        w, u = mnp.linalg.eigh(s)
        x = u / mnp.sqrt(mnp.abs(w) + 1e-3) @ u.T

        def step(d, _):
            j = mnp.einsum("pqrs,rs->pq", eri, d)
            k = mnp.einsum("prqs,rs->pq", eri, d)
            fk = h + 2 * j - k
            _, c = mnp.linalg.eigh(x.T @ fk @ x)
            c = (x @ c)[:, :e]
            return c @ c.T, ((h + fk) * d).sum()

        return lax.scan(step, mnp.zeros((n, n)), None, length=6)

    return f, ((n, n), (n, n), (n, n, n, n)), (P(), P(), P("x", "y")), (P(), P()), mesh_of(x=4, y=2)


@program
def vmc_slater():
    """Metropolis steps of walkers under a Slater-Jastrow wave function, and local energies by derivatives."""
    b, n = 512, 8

    def logpsi(p, x):
        d = mnp.sqrt((x * x).sum(-1) + 1e-3)
        orb = mnp.exp(-d[:, None] * nn.softplus(p["z"])) * (mnp.tanh(x @ p["w"]) @ p["v"])
        r = mnp.sqrt(((x[:, None] - x[None]) ** 2).sum(-1) + 1e-2)
        return mnp.linalg.slogdet(orb)[1] - (p["j"] / (1 + r)).sum() / 2

    def f(p, x, key):
        def step(c, k):
            x, l = c
            a, u = mw.random.split(k)
            y = x + 0.1 * mw.random.normal(a, x.shape)
            ly = mw.vmap(logpsi, (None, 0))(p, y)
            ok = mnp.log(mw.random.uniform(u, (b,))) < 2 * (ly - l)
            return (mnp.where(ok[:, None, None], y, x), mnp.where(ok, ly, l)), ok.mean()

        (x, _), acc = lax.scan(step, (x, mw.vmap(logpsi, (None, 0))(p, x)), mw.random.split(key, 5))

        def local(x):
            g = mw.grad(lambda v: logpsi(p, v.reshape(n, 3)))
            v = x.reshape(-1)
            eye = mnp.eye(3 * n)
            gr = g(v)
            lap = mw.vmap(lambda t: (mw.jvp(g, (v,), (t,))[1] * t).sum())(eye).sum()
            return -0.5 * (lap + (gr * gr).sum()) - (n / mnp.sqrt((x * x).sum(-1) + 1e-3)).sum()

        el = mw.vmap(local)(x)
        mean = el.mean()
        grads = mw.grad(lambda p: 2 * ((el - mean) * mw.vmap(logpsi, (None, 0))(p, x)).mean())(p)
        return mean, grads, x, acc.mean()

    shp = {"z": (n,), "w": (3, 32), "v": (32, n), "j": ()}
    return f, (shp, (b, n, 3), KEY), (P(), P("d"), P()), (P(), P(), P("d"), P()), mesh_of(d=8)


@program
def shallow_water_staggered():
    """A staggered grid with a mask of land, split both ways; the adjoint through ten steps."""
    n, m = 256, 512

    def run(h0, u0, v0, land):
        def step(s, _):
            h, u, v = s
            hx = (mnp.roll(h, -1, 1) - h) * land
            hy = mnp.pad(h[1:] - h[:-1], ((0, 1), (0, 0))) * land
            vbar = 0.25 * (v + mnp.roll(v, 1, 0) + mnp.roll(v, -1, 1) + mnp.roll(v, (1, -1), (0, 1)))
            ubar = 0.25 * (u + mnp.roll(u, -1, 0) + mnp.roll(u, 1, 1) + mnp.roll(u, (-1, 1), (0, 1)))
            u = u + 0.1 * (vbar - 9.8 * hx)
            v = v - 0.1 * (ubar + 9.8 * hy)
            fx = u * 0.5 * (h + mnp.roll(h, -1, 1))
            fy = v * 0.5 * (h + mnp.concatenate([h[1:], h[-1:]], 0))
            h = h - 0.01 * (fx - mnp.roll(fx, 1, 1) + fy - mnp.pad(fy[:-1], ((1, 0), (0, 0)))) * land
            return (h, u, v), None

        (h, u, _), _ = lax.scan(mw.checkpoint(step), (h0, u0, v0), None, length=10)
        return (h * h).sum() + (u * u).sum()

    s = P("y", "x")
    return mw.value_and_grad(run), ((n, m),) * 4, (s,) * 4, (P(), s), mesh_of(y=2, x=4)


@program
def discontinuous_galerkin():
    """Elements with their faces' neighbours by index, elements split."""
    e, k = 4096, 10

    def f(u, nb, d, lift):
        def rhs(u):
            flux = 0.5 * u * u
            left, right = u[:, 0], u[:, -1]
            nl, nr = u[nb[:, 0], -1], u[nb[:, 1], 0]

            def num(a, b):
                return 0.25 * (a * a + b * b) - 0.5 * mnp.maximum(mnp.abs(a), mnp.abs(b)) * (b - a)

            jump = mnp.stack([num(nl, left) - 0.5 * left**2, num(right, nr) - 0.5 * right**2], 1)
            return -(flux @ d.T) + jump @ lift.T

        def step(u, _):
            a = u + 1e-3 * rhs(u)
            b = 0.75 * u + 0.25 * (a + 1e-3 * rhs(a))
            return u / 3 + 2 / 3 * (b + 1e-3 * rhs(b)), None

        return lax.scan(step, u, None, length=4)[0]

    return f, ((e, k), ints(e, 2), (k, k), (k, 2)), (P("d"), P("d"), P(), P()), P("d"), mesh_of(d=8)


@program
def sphere_tracing():
    """Rays marched through a distance field until all have hit, pixels split; the normal by gradients."""
    n = 256

    def sdf(p, q):
        d = mnp.linalg.norm(p[None] - q[:, :3], axis=-1) - q[:, 3]
        return -nn.logsumexp(-8 * d) / 8

    def f(q, dirs):
        def one(d):
            def go(c):
                t, i = c
                return t + sdf(t * d, q), i + 1

            t, i = lax.while_loop(lambda c: (sdf(c[0] * d, q) > 1e-3) & (c[1] < 64), go, (F32(0), 0))
            nrm = mw.grad(sdf)(t * d, q)
            return t, mnp.maximum(nrm @ mnp.array([0.5, 0.5, -0.7]), 0), i

        return mw.vmap(mw.vmap(one))(dirs)

    return f, ((12, 4), (n, n, 3)), (P(), P("y", "x")), P("y", "x"), mesh_of(y=4, x=2)


@program
def binomial_american():
    """American options of many contracts by a tree; contracts and time levels."""
    b, n = 1024, 256

    def f(s0, k, vol):
        u = mnp.exp(vol * F32(1 / n) ** 0.5)
        p = (1.0002 - 1 / u) / (u - 1 / u)
        j = mnp.arange(n + 1)
        v = mnp.maximum(k[:, None] - s0[:, None] * u[:, None] ** (2 * j - n), 0)

        def step(v, i):
            cont = 0.9998 * (p[:, None] * mnp.roll(v, -1, 1) + (1 - p[:, None]) * v)
            ex = k[:, None] - s0[:, None] * u[:, None] ** (2 * j - (n - 1 - i))
            return mnp.maximum(cont, ex), None

        return lax.scan(step, v, mnp.arange(n))[0][:, 0]

    return f, ((b,), (b,), (b,)), (P("d"),) * 3, P("d"), mesh_of(d=8)


@program
def longstaff_schwartz():
    """Exercise decided by regressions over split paths, backward in time."""
    n, t = 65536, 32

    def f(key):
        z = mw.random.normal(key, (t, n))
        z = lax.with_sharding_constraint(z, mw.NamedSharding(mesh_of(d=8), P(None, "d")))
        s = mnp.exp(mnp.cumsum(0.02 * z, 0))

        def step(cash, s):
            x = mnp.stack([mnp.ones_like(s), s, s * s], 1)
            itm = s < 1.0
            xm = x * itm[:, None]
            beta = mnp.linalg.solve(xm.T @ xm + 1e-3 * mnp.eye(3), xm.T @ cash)
            ex = mnp.maximum(1.0 - s, 0)
            cash = mnp.where(itm & (ex > x @ beta), ex, 0.999 * cash)
            return cash, None

        cash, _ = lax.scan(step, mnp.maximum(1.0 - s[-1], 0), s[-2::-1])
        return cash.mean(), cash.std()

    return f, (KEY,), (P(),), (P(), P()), mesh_of(d=8)


# --- sequence and vision models ------------------------------------------------------------------------------
@program
def reformer_lsh():
    """Attention within buckets of sorted hashes, batch and heads split."""
    b, t, h, k, c = 4, 1024, 4, 32, 64
    w = h * k

    def loss(p, x, y):
        z = nn.layer_norm(x, p["g"], p["c"])
        qk = (z @ p["q"]).reshape(b, t, h, k).swapaxes(1, 2)
        v = (z @ p["v"]).reshape(b, t, h, k).swapaxes(1, 2)
        r = qk @ p["r"]
        bucket = mnp.argmax(mnp.concatenate([r, -r], -1), -1)
        order = mnp.argsort(bucket * t + mnp.arange(t), -1)
        undo = mnp.argsort(order, -1)
        sq = mnp.take_along_axis(qk, order[..., None], 2).reshape(b, h, t // c, c, k)
        sv = mnp.take_along_axis(v, order[..., None], 2).reshape(b, h, t // c, c, k)
        kk = sq / (mnp.linalg.norm(sq, axis=-1, keepdims=True) + 1e-6)
        kk = mnp.concatenate([mnp.roll(kk, 1, 2), kk], 3)
        vv = mnp.concatenate([mnp.roll(sv, 1, 2), sv], 3)
        a = nn.softmax(mnp.einsum("bhnik,bhnjk->bhnij", sq, kk) / F32(k**0.5))
        o = mnp.einsum("bhnij,bhnjk->bhnik", a, vv).reshape(b, h, t, k)
        o = mnp.take_along_axis(o, undo[..., None], 2).swapaxes(1, 2).reshape(b, t, w)
        return mnp.mean((x + o @ p["o"] - y) ** 2)

    shp = {"g": (w,), "c": (w,), "q": (w, w), "v": (w, w), "o": (w, w), "r": (k, 8)}
    sp = {"g": P(), "c": P(), "q": P(None, "t"), "v": P(None, "t"), "o": P("t"), "r": P()}
    return sgd(loss), (shp, (b, t, w), (b, t, w)), (sp, P("d"), P("d")), (P(), sp), mesh_of(d=4, t=2)


@program
def transformer_xl_memory():
    """Segments in a scan with a memory of the last one, relative shifts of logits, tensor parallel."""
    s, b, t, h, k = 4, 8, 64, 8, 32
    w = h * k

    def loss(p, xs, ys):
        def shift(a):
            z = mnp.pad(a, ((0, 0), (0, 0), (0, 0), (1, 0)))
            return z.reshape(b, h, 2 * t + 1, t)[:, :, 1:].reshape(b, h, t, 2 * t)

        def seg(mem, a):
            x, y = a
            new = []
            for l, m in zip(p["l"], mem):
                new.append(lax.stop_gradient(x))
                c = mnp.concatenate([m, x], 1)
                q = (x @ l["q"]).reshape(b, t, h, k)
                kk = (c @ l["k"]).reshape(b, 2 * t, h, k)
                v = (c @ l["v"]).reshape(b, 2 * t, h, k)
                r = (p["pos"] @ l["r"]).reshape(2 * t, h, k)
                ac = mnp.einsum("bihk,bjhk->bhij", q + l["u"], kk)
                bd = shift(mnp.einsum("bihk,jhk->bhij", q + l["w"], r))
                mask = mnp.tril(mnp.ones((t, 2 * t), bool), t)
                at = nn.softmax(mnp.where(mask, (ac + bd) / F32(k**0.5), -1e9))
                x = x + mnp.einsum("bhij,bjhk->bihk", at, v).reshape(b, t, w) @ l["o"]
                x = x + mlp(l, x)
            return new, mnp.mean((x - y) ** 2)

        mem = [mnp.zeros((b, t, w)) for _ in p["l"]]
        return lax.scan(seg, mem, (xs, ys))[1].mean()

    layer = {**att(w), "r": (w, w), "u": (h, k), "w": (h, k), "up": (w, 4 * w), "down": (4 * w, w)}
    col, row = P(None, "t"), P("t")
    ls = {**ATT(col, row), "r": col, "u": row, "w": row, "up": col, "down": row}
    shp = {"l": [layer] * 2, "pos": (2 * t, w)}
    sp = {"l": [ls] * 2, "pos": P()}
    a = P(None, "d")
    return sgd(loss), (shp, (s, b, t, w), (s, b, t, w)), (sp, a, a), (P(), sp), mesh_of(d=2, t=4)


@program
def packed_documents_fsdp():
    """A decoder on packed documents: segment masks, positions that start anew, FSDP by scan with remat."""
    b, t, w, h, v, L = 16, 256, 256, 8, 8192, 4

    def loss(p, x, seg):
        starts = seg != mnp.pad(seg[:, :-1], ((0, 0), (1, 0)))
        pos = mnp.arange(t) - lax.cummax(mnp.where(starts, mnp.arange(t), 0), axis=1)
        mask = (seg[:, :, None] == seg[:, None]) & mnp.tril(mnp.ones((t, t), bool))
        z = p["e"][x] + p["pos"][pos]

        def layer(z, l):
            z = z + mha(l, z, h, mask=mask[:, None])
            return z + mlp(l, z), None

        z, _ = lax.scan(mw.checkpoint(layer), z, p["l"])
        l = xent(z[:, :-1] @ p["e"].T, x[:, 1:])
        ok = seg[:, 1:] == seg[:, :-1]
        return (l * ok).sum() / ok.sum()

    one = {**att(w), "up": (w, 4 * w), "down": (4 * w, w)}
    shp = {"e": (v, w), "pos": (t, w), "l": {k: (L, *s) for k, s in one.items()}}
    sp = {"e": P("d"), "pos": P(), "l": {k: P(None, "d") for k in one}}
    ps = (sp, sp, sp)
    return adam(loss), (shp, shp, shp, ints(b, t), ints(b, t)), (*ps, P("d"), P("d")), (P(), *ps), mesh_of(d=8)


@program
def retro_chunked_cross():
    """Chunks attend to retrieved neighbours, two axes."""
    b, t, c, n, r, w, h = 8, 256, 64, 2, 128, 256, 8
    k = w // h

    def loss(p, x, nb, y):
        z = x + mha(p["s"], x, h, mask=mnp.tril(mnp.ones((t, t), bool)))
        ch = mnp.pad(z[:, c - 1 :], ((0, 0), (0, c - 1), (0, 0))).reshape(b, t // c, c, w)
        q = (ch @ p["c"]["q"]).reshape(b, t // c, c, h, k)
        kk = (nb @ p["c"]["k"]).reshape(b, t // c, n * r, h, k)
        v = (nb @ p["c"]["v"]).reshape(b, t // c, n * r, h, k)
        a = nn.softmax(mnp.einsum("bgihk,bgjhk->bghij", q, kk) / F32(k**0.5))
        o = mnp.einsum("bghij,bgjhk->bgihk", a, v).reshape(b, t, w) @ p["c"]["o"]
        z = z + mnp.pad(o, ((0, 0), (c - 1, 0), (0, 0)))[:, :t]
        z = z + mlp(p, z)
        return mnp.mean((z - y) ** 2)

    a = att(w)
    shp = {"s": a, "c": a, "up": (w, 4 * w), "down": (4 * w, w)}
    A = ATT(P(None, "t"), P("t"))
    sp = {"s": A, "c": A, "up": P(None, "t"), "down": P("t")}
    d = P("d")
    return (
        sgd(loss),
        (shp, (b, t, w), (b, t // c, n * r, w), (b, t, w)),
        (sp, d, d, d),
        (P(), sp),
        mesh_of(d=2, t=4),
    )


@program
def siglip_ring_loss():
    """A sigmoid loss over all pairs of a split batch, in chunks by rolls."""
    b, w, k = 1024, 512, 256

    def loss(p, x, y):
        a, c = x @ p["a"], y @ p["c"]
        a = a / mnp.linalg.norm(a, axis=1, keepdims=True)
        c = c / mnp.linalg.norm(c, axis=1, keepdims=True)

        def chunk(carry, i):
            c, tot = carry
            s = mnp.einsum("gik,gjk->gij", a.reshape(8, -1, k), c) * mnp.exp(p["t"]) + p["b"]
            z = mnp.where(i == 0, 2 * mnp.eye(b // 8) - 1, -1)
            return (mnp.roll(c, 1, 0), tot - nn.log_sigmoid(z * s).sum()), None

        (_, tot), _ = lax.scan(chunk, (c.reshape(8, -1, k), F32(0)), mnp.arange(8))
        return tot / b

    shp = {"a": (w, k), "c": (w, k), "t": (), "b": ()}
    return sgd(loss), (shp, (b, w), (b, w)), (P(), P("d"), P("d")), (P(), P()), mesh_of(d=8)


@program
def dreamer_rssm():
    """A recurrent state-space model with discrete latents: posterior scan, imagination, returns."""
    b, t, a, d, s, c, w = 32, 16, 6, 256, 16, 16, 128

    def gru(p, x, h):
        z = mnp.concatenate([x, h], -1) @ p
        r, u, n = mnp.split(z, 3, -1)
        u = nn.sigmoid(u - 1)
        return u * mnp.tanh(nn.sigmoid(r) * n) + (1 - u) * h

    def loss(p, obs, act, rew, key):
        def sample(k, logit):
            logit = logit.reshape(*logit.shape[:-1], s, c)
            pr = nn.softmax(logit)
            i = mw.random.categorical(k, logit)
            oh = nn.one_hot(i, c)
            return (oh + pr - lax.stop_gradient(pr)).reshape(*logit.shape[:-2], s * c), nn.log_softmax(logit)

        def step(cr, i):
            h, z = cr
            o, ac, k = i
            h = gru(p["gru"], nn.silu(mnp.concatenate([z, ac], -1) @ p["in"]), h)
            prior = h @ p["prior"]
            post = nn.silu(mnp.concatenate([h, o], -1) @ p["q0"]) @ p["q1"]
            z, lq = sample(k, post)
            lp = nn.log_softmax(prior.reshape(b, s, c))
            kl = (mnp.exp(lq) * (lq - lp)).sum((1, 2))
            return (h, z), (h, z, kl)

        keys = mw.random.split(key, t)
        init = (mnp.zeros((b, d)), mnp.zeros((b, s * c)))
        _, (h, z, kl) = lax.scan(step, init, (obs.swapaxes(0, 1), act.swapaxes(0, 1), keys))
        f = mnp.concatenate([h, z], -1)
        rec = nn.silu(f @ p["d0"]) @ p["d1"]
        r = (f @ p["r"])[..., 0]
        return mnp.mean((rec - obs.swapaxes(0, 1)) ** 2) + mnp.mean((r - rew.T) ** 2) + mnp.maximum(kl.mean(), 1.0)

    shp = {
        "gru": (w + d, 3 * d), "in": (s * c + a, w), "prior": (d, s * c), "q0": (d + w, 128), "q1": (128, s * c),
        "d0": (d + s * c, 128), "d1": (128, w), "r": (d + s * c, 1),
    }  # fmt: skip
    dd = P("d")
    return (
        sgd(loss),
        (shp, (b, t, w), (b, t, a), (b, t), KEY),
        (P(), dd, dd, dd, P()),
        (P(), P()),
        mesh_of(d=8),
    )


@program
def capsule_routing():
    """Routing by agreement between capsules, batch and output capsules split."""
    b, i, o, ki, ko = 64, 512, 16, 8, 16

    def loss(w, u, y):
        uh = mnp.einsum("bik,iokl->biol", u, w)
        l = mnp.zeros((b, i, o))
        for _ in range(3):
            c = nn.softmax(l, axis=2)
            s = mnp.einsum("bio,biol->bol", c, uh)
            n2 = (s * s).sum(-1, keepdims=True)
            v = n2 / (1 + n2) * s / mnp.sqrt(n2 + 1e-6)
            l = l + mnp.einsum("biol,bol->bio", lax.stop_gradient(uh), v)
        n = mnp.sqrt((v * v).sum(-1) + 1e-9)
        t = nn.one_hot(y, o)
        return (t * nn.relu(0.9 - n) ** 2 + 0.5 * (1 - t) * nn.relu(n - 0.1) ** 2).sum(1).mean()

    return (
        sgd(loss),
        ((i, o, ki, ko), (b, i, ki), ints(b)),
        (P(None, "t"), P("d"), P("d")),
        (P(), P(None, "t")),
        mesh_of(d=4, t=2),
    )


@program
def wavenet_dilated():
    """Dilated causal convolutions over a long clip split in time and batch."""
    b, t, w = 4, 8192, 64

    def conv(x, k, d):
        return lax.conv_general_dilated(
            x, k, (1,), [(d, 0)], rhs_dilation=(d,), dimension_numbers=("NWC", "WIO", "NWC")
        )

    def loss(p, x, y):
        z, skip = x @ p["in"], 0.0
        for i, l in enumerate(p["l"]):
            a = conv(z, l["f"], 2**i)
            g = mnp.tanh(a[..., :w]) * nn.sigmoid(a[..., w:])
            skip = skip + g @ l["s"]
            z = z + g @ l["r"]
        return xent(nn.relu(skip) @ p["out"], y).mean()

    shp = {"in": (1, w), "l": [{"f": (2, w, 2 * w), "s": (w, w), "r": (w, w)}] * 6, "out": (w, 256)}
    s = P("d", "t")
    return sgd(loss), (shp, (b, t, 1), ints(b, t)), (P(), s, s), (P(), P()), mesh_of(d=2, t=4)


@program
def neural_cellular_automaton():
    """Cells perceive their neighbours by fixed filters and update at random, trained through sixteen steps."""
    b, n, c, h = 8, 64, 16, 128

    def loss(p, x, key, y):
        sob = np.outer([1, 2, 1], [-1, 0, 1]).astype(F32) / 8
        ident = np.zeros((3, 3), F32)
        ident[1, 1] = 1
        ker = np.stack([ident, sob, sob.T], -1)[:, :, None]
        ker = mnp.tile(mnp.asarray(ker), (1, 1, 1, c))

        def step(x, k):
            z = lax.conv_general_dilated(
                x, ker, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=c
            )
            d = nn.relu(z @ p["a"]) @ p["b"]
            alive = lax.reduce_window(x[..., 3:4], -np.inf, lax.max, (1, 3, 3, 1), (1, 1, 1, 1), "SAME") > 0.1
            x = x + d * (mw.random.uniform(k, (b, n, n, 1)) < 0.5)
            return x * alive, None

        x, _ = lax.scan(mw.checkpoint(step), x, mw.random.split(key, 16))
        return mnp.mean((x[..., :4] - y) ** 2)

    shp = {"a": (3 * c, h), "b": (h, c)}
    s = P("d", "y")
    return sgd(loss), (shp, (b, n, n, c), KEY, (b, n, n, 4)), (P(), s, P(), s), (P(), P()), mesh_of(d=4, y=2)


@program
def word2vec_negatives():
    """Skip-grams with drawn negatives; both tables split by rows, sparse updates by scatter."""
    v, w, b, n = 50000, 128, 2048, 8

    def f(i, o, c, t, key):
        neg = mw.random.randint(key, (b, n), 0, v)
        ctx = mnp.concatenate([t[:, None], neg], 1)
        h, u = i[c], o[ctx]
        s = mnp.einsum("bk,bnk->bn", h, u)
        g = nn.sigmoid(s) - (mnp.arange(n + 1) == 0)
        i = i.at[c].add(-0.05 * mnp.einsum("bn,bnk->bk", g, u))
        o = o.at[ctx].add(-0.05 * g[..., None] * h[:, None])
        return i, o, nn.softplus(mnp.where(mnp.arange(n + 1) == 0, -s, s)).mean()

    d = P("d")
    return f, ((v, w), (v, w), ints(b), ints(b), KEY), (d, d, d, d, P()), (d, d, P()), mesh_of(d=8)


@program
def griffin_rg_lru_2d():
    """Gated linear recurrences by an associative scan, channels over one axis, time over another, in bf16."""
    b, t, w, h = 4, 2048, 256, 768

    def loss(p, x, y):
        z = x
        for l in p:
            u = z @ l["x"]
            g = nn.gelu(z @ l["g"])
            u = sum(mnp.pad(u[:, : t - i], ((0, 0), (i, 0), (0, 0))) * l["c"][i] for i in range(4))
            r, i = nn.sigmoid(u * l["r"]), nn.sigmoid(u * l["i"])
            la = -8 * r * nn.softplus(l["a"])
            a = mnp.exp(la)
            v = mnp.sqrt(1 - mnp.exp(2 * la) + 1e-6) * i * u
            _, s = lax.associative_scan(lambda m, n: (m[0] * n[0], n[0] * m[1] + n[1]), (a, v), axis=1)
            z = z + (s * g) @ l["o"]
        return mnp.mean((z - y).astype(F32) ** 2)

    one = {"x": bf16(w, h), "g": bf16(w, h), "c": bf16(4, h), "r": bf16(h), "i": bf16(h), "a": bf16(h), "o": bf16(h, w)}
    s = {"x": P(None, "m"), "g": P(None, "m"), "c": P(None, "m"), "r": P("m"), "i": P("m"), "a": P("m"), "o": P("m")}
    x = P(None, "t")
    return sgd(loss), ([one] * 2, bf16(b, t, w), bf16(b, t, w)), ([s] * 2, x, x), (P(), [s] * 2), mesh_of(t=4, m=2)


@program
def alphazero_search():
    """Batched tree search: a fixed number of simulations of descents, expansions and backups, games split."""
    b, n, a, w = 64, 32, 16, 64

    def f(p, root):
        def net(s):
            h = nn.relu(s @ p["h"])
            return nn.softmax(h @ p["pi"]), mnp.tanh((h @ p["v"])[..., 0])

        pri, _ = net(root)
        tree = {
            "N": mnp.zeros((b, n, a)), "W": mnp.zeros((b, n, a)), "P": mnp.zeros((b, n, a)).at[:, 0].set(pri),
            "child": mnp.full((b, n, a), -1), "parent": mnp.full((b, n), -1), "act": mnp.zeros((b, n), np.int32),
            "s": mnp.zeros((b, n, w)).at[:, 0].set(root),
        }  # fmt: skip
        bi = mnp.arange(b)

        def simulate(i, tr):
            def pick(node):
                N, W, Q = tr["N"][bi, node], tr["W"][bi, node], tr["P"][bi, node]
                u = W / mnp.maximum(N, 1) + 1.5 * Q * mnp.sqrt(N.sum(-1, keepdims=True) + 1) / (1 + N)
                return mnp.argmax(u, -1)

            def down(c):
                node, act, _ = c
                nxt = tr["child"][bi, node, act]
                go = nxt >= 0
                node = mnp.where(go, nxt, node)
                act2 = pick(node)
                return node, mnp.where(go, act2, act), go

            node0 = mnp.zeros(b, np.int32)
            node, act, _ = lax.while_loop(lambda c: c[2].any(), down, (node0, pick(node0), mnp.ones(b, bool)))
            s = mnp.tanh(tr["s"][bi, node] @ p["dyn"] + p["emb"][act])
            pri, v = net(s)
            tr = {
                **tr,
                "child": tr["child"].at[bi, node, act].set(i), "parent": tr["parent"].at[:, i].set(node),
                "act": tr["act"].at[:, i].set(act), "P": tr["P"].at[:, i].set(pri), "s": tr["s"].at[:, i].set(s),
            }  # fmt: skip

            def up(c):
                N, W, node, act = c
                ok = node >= 0
                at = mnp.maximum(node, 0)
                N = N.at[bi, at, act].add(ok * 1.0)
                W = W.at[bi, at, act].add(mnp.where(ok, v, 0))
                return N, W, mnp.where(ok, tr["parent"][bi, at], -1), tr["act"][bi, at]

            N, W, *_ = lax.while_loop(lambda c: (c[2] >= 0).any(), up, (tr["N"], tr["W"], node, act))
            return {**tr, "N": N, "W": W}

        tr = lax.fori_loop(1, n, simulate, tree)
        return tr["N"][:, 0] / tr["N"][:, 0].sum(-1, keepdims=True)

    shp = {"h": (w, 128), "pi": (128, a), "v": (128, 1), "dyn": (w, w), "emb": (a, w)}
    return f, (shp, (b, w)), (P(), P("d")), P("d"), mesh_of(d=8)


@program
def phylogeny_pruning():
    """Likelihoods of sites under a tree by pruning, sites split; the gradient by branch lengths."""
    s, n = 4096, 64

    def f(t, q, leaves, left, right):
        def lik(t):
            w, u = mnp.linalg.eigh(q)
            pm = mnp.einsum("ij,nj,kj->nik", u, mnp.exp(t[:, None] * w), u)
            part = mnp.zeros((2 * n - 1, s, 4)).at[:n].set(leaves)

            def step(part, i):
                k, a, b = i
                new = (part[a] @ pm[a].T) * (part[b] @ pm[b].T)
                return part.at[k].set(new), None

            part, _ = lax.scan(step, part, (mnp.arange(n, 2 * n - 1), left, right))
            return mnp.log(part[-1].mean(-1) + 1e-30).sum()

        return mw.value_and_grad(lik)(t)

    return (
        f,
        ((2 * n - 1,), (4, 4), (n, s, 4), ints(n - 1), ints(n - 1)),
        (P(), P(), P(None, "d"), P(), P()),
        (P(), P()),
        mesh_of(d=8),
    )


@program
def sir_agents():
    """Agents who meet within households and at random, states drawn each day, people split."""
    n, h = 65536, 16384

    def f(key, house, state):
        def day(s, k):
            ill = (s == 1).astype(F32)
            at_home = mw.ops.segment_sum(ill, house, h)[house]
            a, b, c = mw.random.split(k, 3)
            met = mw.random.randint(a, (n, 4), 0, n)
            risk = 1 - mnp.exp(-0.1 * at_home - 0.05 * ill[met].sum(1))
            new = (s == 0) & (mw.random.uniform(b, (n,)) < risk)
            rec = (s == 1) & (mw.random.uniform(c, (n,)) < 0.1)
            s = mnp.where(new, 1, mnp.where(rec, 2, s))
            return s, mnp.bincount(s, length=3)

        return lax.scan(day, state, mw.random.split(key, 8))

    return f, (KEY, ints(n), ints(n)), (P(), P("d"), P("d")), (P("d"), P()), mesh_of(d=8)
