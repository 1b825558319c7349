"""Programs of a fourth examiner: equivariant and structural networks, lattices, chains of small matrices, borders.

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


def replicated(shapes):
    return {name: P() for name in shapes}


@program
def adafactor_scanned():
    """Scanned gated layers with remat; Adafactor's factored second moments, updates clipped; FSDP x TP."""
    L, b, t, w, f = 4, 16, 64, 128, 512

    def loss(p, x, y):
        def layer(x, q):
            z = rms(x, q["n"])
            return x + (nn.silu(z @ q["g"]) * (z @ q["u"])) @ q["d"], None

        x, _ = lax.scan(mw.checkpoint(layer), x, p)
        return mnp.mean((x - y) ** 2)

    def step(p, vr, vc, x, y):
        l, g = mw.value_and_grad(loss)(p, x, y)
        np_, nr, nc = {}, {}, {}
        for k in p:
            g2 = g[k] ** 2 + 1e-30
            if p[k].ndim == 3:
                nr[k] = 0.9 * vr[k] + 0.1 * g2.mean(-1)
                nc[k] = 0.9 * vc[k] + 0.1 * g2.mean(-2)
                u = g[k] * lax.rsqrt(nr[k] / nr[k].mean(-1, keepdims=True))[..., None] * lax.rsqrt(nc[k])[..., None, :]
            else:
                nr[k] = 0.9 * vr[k] + 0.1 * g2
                nc[k] = vc[k]
                u = g[k] * lax.rsqrt(nr[k])
            u = u / mnp.maximum(1.0, mnp.sqrt((u * u).mean((-2, -1), keepdims=True)))
            sc = mnp.maximum(1e-3, mnp.sqrt((p[k] ** 2).mean((-2, -1), keepdims=True)))
            np_[k] = p[k] - 0.01 * sc * u
        return l, np_, nr, nc

    s = {"n": (L, w), "g": (L, w, f), "u": (L, w, f), "d": (L, f, w)}
    r = {"n": (L, w), "g": (L, w), "u": (L, w), "d": (L, f)}
    c = {"n": (L, 1), "g": (L, f), "u": (L, f), "d": (L, w)}
    sp = {"n": P(), "g": P(None, "d", "t"), "u": P(None, "d", "t"), "d": P(None, "t", "d")}
    rp = {"n": P(), "g": P(None, "d"), "u": P(None, "d"), "d": P(None, "t")}
    cp = {"n": P(), "g": P(None, "t"), "u": P(None, "t"), "d": P(None, "d")}
    return step, (s, r, c, (b, t, w), (b, t, w)), (sp, rp, cp, P("d"), P("d")), (P(), sp, rp, cp), mesh_of(d=4, t=2)


@program
def so2_convolution_edges():
    """An equivariant network by rotations to each edge's frame, forces, and a loss on these; edges split."""
    n, e, c = 256, 4096, 16

    def energy(p, pos, z, src, dst):
        v = pos[src] - pos[dst]
        r = mnp.sqrt((v * v).sum(-1) + 1e-6)
        u = v / r[:, None]
        y = mnp.concatenate([mnp.ones((e, 1), F32), u, u * mnp.roll(u, 1, 1), u * u], 1)[:, :9]
        rot = y[:, :, None] * y[:, None] * 0.1 + np.eye(y.shape[1], dtype=F32)
        x = mnp.zeros((n, y.shape[1], c), F32) + p["emb"][z][:, None]
        bes = mnp.sin(r[:, None] * np.arange(1, 9, dtype=F32)) / r[:, None]
        for q in p["l"]:
            m = mnp.einsum("eij,ejc->eic", rot, x[src])
            m0 = (m[:, :4].reshape(e, 4 * c) @ q["w0"]).reshape(e, 4, c)
            a, b_ = m[:, 4:7], m[:, 7:]
            b_ = mnp.pad(b_, ((0, 0), (0, 3 - b_.shape[1]), (0, 0)))
            re = mnp.einsum("eic,cd->eid", a, q["wr"]) - mnp.einsum("eic,cd->eid", b_, q["wi"])
            im = mnp.einsum("eic,cd->eid", a, q["wi"]) + mnp.einsum("eic,cd->eid", b_, q["wr"])
            m = mnp.concatenate([m0, re, im], 1)[:, : y.shape[1]] * nn.silu(bes @ q["rad"])[:, None]
            m = mnp.einsum("eij,eic->ejc", rot, m)
            x = x + mw.ops.segment_sum(m, dst, n) / 16
            gate = nn.sigmoid(x[:, :1] @ q["g"])
            x = mnp.concatenate([nn.silu(x[:, :1]), x[:, 1:] * gate], 1)
        return (x[:, 0] @ p["out"]).sum()

    def loss(p, pos, z, src, dst, f):
        en, gr = mw.value_and_grad(energy, 1)(p, pos, z, src, dst)
        return ((gr + f) ** 2).mean() + 0.01 * en

    q = {"w0": (4 * c, 4 * c), "wr": (c, c), "wi": (c, c), "rad": (8, c), "g": (c, c)}
    s = {"emb": (20, c), "l": [q, q], "out": (c,)}
    return (
        sgd(loss),
        (s, (n, 3), ints(n), ints(e), ints(e), (n, 3)),
        (P(), P(), P(), P("e"), P("e"), P()),
        None,
        mesh_of(e=8),
    )


@program
def invariant_point_attention():
    """AlphaFold's structure module: points in frames of residues, frames updated; residues and pairs split."""
    n, w, pw, h, qp = 96, 64, 32, 4, 4

    def loss(p, s, z, R, t, y):
        for q in p["l"]:
            qq, k, v = mnp.split((s @ q["qkv"]).reshape(n, h, 48), 3, -1)
            pts = (s @ q["pts"]).reshape(n, h, 3 * qp, 3)
            pts = mnp.einsum("nij,nhpj->nhpi", R, pts) + t[:, None, None]
            qpt, kpt, vpt = pts[:, :, :qp], pts[:, :, qp : 2 * qp], pts[:, :, 2 * qp :]
            d = ((qpt[:, None] - kpt[None]) ** 2).sum((-1, -2))
            lg = mnp.einsum("ihc,jhc->ijh", qq, k) / 4 + z @ q["b"] - 0.1 * nn.softplus(q["gam"]) * d
            a = nn.softmax(lg, axis=1)
            o = mnp.einsum("ijh,jhc->ihc", a, v).reshape(n, -1)
            op = mnp.einsum("ijh,jhpc->ihpc", a, vpt) - t[:, None, None]
            op = mnp.einsum("nji,nhpj->nhpi", R, op).reshape(n, -1)
            oz = mnp.einsum("ijh,ijc->ihc", a, z).reshape(n, -1)
            s = nn.layer_norm(s + mnp.concatenate([o, op, oz], -1) @ q["o"])
            upd = s @ q["fr"]
            qt = mnp.concatenate([mnp.ones((n, 1), F32), upd[:, :3]], -1)
            qt = qt * lax.rsqrt((qt * qt).sum(-1, keepdims=True))
            a_, b_, c_, d_ = (qt[:, i] for i in range(4))
            dR = mnp.stack(
                [
                    mnp.stack([1 - 2 * (c_ * c_ + d_ * d_), 2 * (b_ * c_ - a_ * d_), 2 * (b_ * d_ + a_ * c_)], -1),
                    mnp.stack([2 * (b_ * c_ + a_ * d_), 1 - 2 * (b_ * b_ + d_ * d_), 2 * (c_ * d_ - a_ * b_)], -1),
                    mnp.stack([2 * (b_ * d_ - a_ * c_), 2 * (c_ * d_ + a_ * b_), 1 - 2 * (b_ * b_ + c_ * c_)], -1),
                ],
                -2,
            )
            t = t + mnp.einsum("nij,nj->ni", R, upd[:, 3:])
            R = mnp.einsum("nij,njk->nik", R, dR)
        x = mnp.einsum("nji,nmj->nmi", R, t[None] - t[:, None])
        x0 = y[None] - y[:, None]
        return mnp.minimum(mnp.sqrt(((x - x0) ** 2).sum(-1) + 1e-4), 10).mean()

    q = {
        "qkv": (w, h * 48),
        "pts": (w, h * 3 * qp * 3),
        "b": (pw, h),
        "gam": (h,),
        "o": (h * 16 + h * qp * 3 + h * pw, w),
        "fr": (w, 6),
    }
    s = {"l": [q, q]}
    r = P("i")
    return (
        sgd(loss),
        (s, (n, w), (n, n, pw), (n, 3, 3), (n, 3), (n, 3)),
        (P(), r, P("i", "j"), r, r, r),
        None,
        mesh_of(i=4, j=2),
    )


@program
def video_2plus1d():
    """Separate convolutions in space and time, group norm, pooling by threes, attention; frames and rows split."""
    b, f, s_, c = 2, 18, 24, 16
    dn = ("NDHWC", "DHWIO", "NDHWC")

    def cv(x, w, st=(1, 1, 1)):
        return lax.conv_general_dilated(x, w, st, "SAME", dimension_numbers=dn)

    def gn(x, g):
        z = x.reshape(*x.shape[:4], 4, -1)
        m = z.mean((1, 2, 3, 5), keepdims=True)
        return ((z - m) * lax.rsqrt(((z - m) ** 2).mean((1, 2, 3, 5), keepdims=True) + 1e-5)).reshape(x.shape) * g

    def loss(p, x, y):
        z = cv(x, p["stem"], (1, 2, 2))
        for q in p["b"]:
            h = nn.relu(gn(cv(z, q["s"]), q["g1"]))
            h = gn(cv(h, q["t"]), q["g2"])
            z = nn.relu(z + h)
        z = lax.reduce_window(z, 0.0, lax.add, (1, 3, 2, 2, 1), (1, 3, 2, 2, 1), "VALID") / 12
        a = nn.softmax((z @ p["q"])[..., 0].reshape(b, -1))
        return xent(mnp.einsum("bn,bnc->bc", a, z.reshape(b, -1, c)) @ p["h"], y).mean()

    blk = {"s": (1, 3, 3, c, c), "t": (3, 1, 1, c, c), "g1": (c,), "g2": (c,)}
    s = {"stem": (3, 7, 7, 3, c), "b": [blk, blk], "q": (c, 1), "h": (c, 10)}
    return sgd(loss), (s, (b, f, s_, s_, 3), ints(b)), (P(), P(None, "f", "h"), P()), None, mesh_of(f=4, h=2)


@program
def tile_sorted_splats():
    """Gaussians sorted by tile and depth, each tile's by binary search, blended; Gaussians split."""
    n, tiles, px, cap = 2000, 64, 8, 64

    def loss(p, img):
        z = p["xy"] * 64
        depth = p["z"]
        tile = mnp.clip(mnp.floor(z / px).astype(np.int32), 0, 7)
        tid = tile[:, 0] * 8 + tile[:, 1]
        o = mnp.lexsort((lax.stop_gradient(depth), tid))
        tid = tid[o]
        start = mnp.searchsorted(tid, np.arange(tiles))
        end = mnp.searchsorted(tid, np.arange(tiles), side="right")
        j = start[:, None] + np.arange(cap)
        ok = j < end[:, None]
        g = o[mnp.minimum(j, n - 1)]
        xy, col, op, sc = z[g], p["c"][g], nn.sigmoid(p["o"])[g], mnp.exp(p["s"])[g]
        ii = np.stack(np.meshgrid(np.arange(px), np.arange(px), indexing="ij"), -1).reshape(-1, 2)
        org = np.stack([np.arange(tiles) // 8, np.arange(tiles) % 8], -1) * px
        pix = (org[:, None] + ii).astype(F32) + 0.5
        d = pix[:, :, None] - xy[:, None]
        a = mnp.where(ok[:, None], op[:, None] * mnp.exp(-0.5 * (d * d / (sc[:, None] + 0.3)).sum(-1)), 0)
        a = mnp.minimum(a, 0.99)
        T = mnp.exp(mnp.cumsum(mnp.log1p(-a), -1))
        T = mnp.concatenate([mnp.ones((tiles, px * px, 1), F32), T[..., :-1]], -1)
        out = mnp.einsum("tpk,tkc->tpc", a * T, nn.sigmoid(col))
        out = out.reshape(8, 8, px, px, 3).transpose(0, 2, 1, 3, 4).reshape(64, 64, 3)
        return mnp.abs(out - img).mean()

    s = {"xy": (n, 2), "z": (n,), "c": (n, 3), "o": (n,), "s": (n, 2)}
    return sgd(loss), (s, (64, 64, 3)), (P("d"), P("d")), None, mesh_of(d=8)


@program
def wilson_dslash_cg():
    """Lattice QCD: Wilson's operator on SU(3) links in four dimensions, and conjugate gradients."""
    L, T = 8, 16
    g = np.zeros((4, 4, 4), np.complex64)
    g[0] = [[0, 0, 0, 1j], [0, 0, 1j, 0], [0, -1j, 0, 0], [-1j, 0, 0, 0]]
    g[1] = [[0, 0, 0, -1], [0, 0, 1, 0], [0, 1, 0, 0], [-1, 0, 0, 0]]
    g[2] = [[0, 0, 1j, 0], [0, 0, 0, -1j], [-1j, 0, 0, 0], [0, 1j, 0, 0]]
    g[3] = [[0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0]]
    I = np.eye(4, dtype=np.complex64)

    def run(ur, ui, br, bi):
        U, b = lax.complex(ur, ui), lax.complex(br, bi)

        def dslash(psi, sgn):
            out = 0
            for mu in range(4):
                f = mnp.einsum("xyztab,xyztsb->xyztsa", U[mu], mnp.roll(psi, -1, mu))
                bk = mnp.roll(mnp.einsum("xyztba,xyztsb->xyztsa", mnp.conj(U[mu]), psi), 1, mu)
                out = (
                    out
                    + mnp.einsum("rs,xyztsa->xyztra", I - sgn * g[mu], f)
                    + mnp.einsum("rs,xyztsa->xyztra", I + sgn * g[mu], bk)
                )
            return psi - 0.11 * out

        def normal(v):
            return dslash(dslash(v, 1), -1)

        def body(_, s):
            x, r, p, rr = s
            q = normal(p)
            al = rr / mnp.real(mnp.vdot(p, q))
            x, r = x + al * p, r - al * q
            n = mnp.real(mnp.vdot(r, r))
            return x, r, r + n / rr * p, n

        x, r, *_ = lax.fori_loop(0, 5, body, (mnp.zeros_like(b), b, b, mnp.real(mnp.vdot(b, b))))
        return mnp.real(x), mnp.imag(x), mnp.real(mnp.vdot(r, r))

    us = P(None, "x", None, None, "t")
    bs = P("x", None, None, "t")
    return run, ((4, L, L, L, T, 3, 3),) * 2 + ((L, L, L, T, 4, 3),) * 2, (us, us, bs, bs), None, mesh_of(x=2, t=4)


@program
def fdtd_cpml_2d():
    """Maxwell's equations on staggered grids, with memory of absorbing layers at two sides; both dimensions split."""
    n, m, steps = 128, 10, 4
    sg = (np.arange(m, 0, -1) / m).astype(F32) ** 3
    b = np.exp(-sg)
    c = b - 1

    def run(hx, hy, ez, pex, pey):
        def step(s, k):
            hx, hy, ez, pex, pey = s
            hx = hx - 0.5 * (ez[:, 1:] - ez[:, :-1])
            hy = hy + 0.5 * (ez[1:] - ez[:-1])
            dhy = hy[1:, 1:-1] - hy[:-1, 1:-1]
            dhx = hx[1:-1, 1:] - hx[1:-1, :-1]
            pex = b[:, None] * pex + c[:, None] * dhy[:m]
            pey = b * pey + c * dhx[:, :m]
            cur = 0.5 * (dhy - dhx)
            cur = cur.at[:m].add(0.5 * pex)
            cur = cur.at[:, :m].add(-0.5 * pey)
            ez = ez.at[1:-1, 1:-1].add(cur)
            ez = ez.at[n // 2, n // 2].add(mnp.sin(0.1 * k))
            return (hx, hy, ez, pex, pey), (ez**2).sum()

        return lax.scan(step, (hx, hy, ez, pex, pey), mnp.arange(steps, dtype=F32))

    S = P("x", "y")
    return (
        run,
        ((n, n - 1), (n - 1, n), (n, n), (m, n - 2), (n - 2, m)),
        (S, S, S, P(None, "y"), P("x")),
        None,
        mesh_of(x=4, y=2),
    )


@program
def kalman_associative_scan():
    """A Kalman filter as an associative scan over split time."""
    t, n, m = 256, 4, 2

    def run(ys, F, H, Q, R):
        I = np.eye(n, dtype=F32)
        S = H @ Q @ H.T + R
        K = Q @ H.T @ mnp.linalg.inv(S)
        A = mnp.broadcast_to((I - K @ H) @ F, (t, n, n))
        b = ys @ K.T
        C = mnp.broadcast_to((I - K @ H) @ Q, (t, n, n))
        eta = ys @ (F.T @ H.T @ mnp.linalg.inv(S)).T
        J = mnp.broadcast_to(F.T @ H.T @ mnp.linalg.inv(S) @ H @ F, (t, n, n))

        def comb(a, c):
            A1, b1, C1, e1, J1 = a
            A2, b2, C2, e2, J2 = c
            M = mnp.linalg.inv(I + C1 @ J2)
            N = A2 @ M
            W = M.mT @ J2
            return (
                N @ A1,
                (N @ (b1 + (C1 @ e2[..., None])[..., 0])[..., None])[..., 0] + b2,
                N @ C1 @ A2.mT + C2,
                (A1.mT @ (mnp.linalg.inv(I + J2 @ C1) @ (e2 - (J2 @ b1[..., None])[..., 0])[..., None]))[..., 0] + e1,
                A1.mT @ W @ A1 + J1,
            )

        _, mu, cov, *_ = lax.associative_scan(comb, (A, b, C, eta, J))
        return mu, cov

    return run, ((t, m), (n, n), (m, n), (n, n), (m, m)), (P("t"), P(), P(), P(), P()), None, mesh_of(t=8)


@program
def heston_adi():
    """Option prices by alternating directions: tridiagonal solves by scans along each of two split dimensions."""
    ns, nv, steps, b = 96, 48, 3, 4

    def thomas(a, d, c, r):
        def f(s, x):
            a, d, c, r = x
            w = d - a * s[0]
            c_, r_ = c / w, (r - a * s[1]) / w
            return (c_, r_), (c_, r_)

        z = mnp.zeros_like(r[0])
        _, (c2, r2) = lax.scan(f, (z, z), (a, d, c, r))

        def g(x, s):
            x = s[1] - s[0] * x
            return x, x

        return lax.scan(g, z, (c2, r2), reverse=True)[1]

    S = np.linspace(0, 2, ns).astype(F32)
    V = np.linspace(0, 1, nv).astype(F32)

    def run(u, kappa):
        def dS(u):
            return mnp.pad(u[:, 2:] - u[:, :-2], ((0, 0), (1, 1), (0, 0)))

        def dV(u):
            return mnp.pad(u[:, :, 2:] - u[:, :, :-2], ((0, 0), (0, 0), (1, 1)))

        def step(u, _):
            r = u + 0.001 * dV(dS(u)) * S[:, None] * V
            a = -0.01 * (S**2)[:, None, None] * V[None, :, None] + 0 * u.transpose(1, 2, 0)
            w = thomas(a, 1 - 2 * a, a, r.transpose(1, 2, 0))
            w = w.transpose(1, 0, 2)
            k = -0.01 * V[:, None, None] * kappa + 0 * w
            return thomas(k, 1 - 2 * k, k, w).transpose(2, 1, 0), None

        u, _ = lax.scan(step, u, None, length=steps)
        return u, u[:, ns // 2, nv // 3]

    return run, ((b, ns, nv), (b,)), (P(None, "s", "v"), P()), None, mesh_of(s=4, v=2)


@program
def shake_constraints_md():
    """Angles' forces by derivatives, bond lengths kept by iterated corrections; atoms and bonds split."""
    n, m, ang = 1200, 800, 1600

    def run(x, v, bi, bj, d, ai, aj, ak):
        def energy(x):
            a, b = x[ai] - x[aj], x[ak] - x[aj]
            c = (a * b).sum(-1) * lax.rsqrt((a * a).sum(-1) * (b * b).sum(-1) + 1e-6)
            return (mnp.arccos(mnp.clip(c, -0.99, 0.99)) ** 2).sum() + 0.01 * (x * x).sum()

        def step(s, _):
            x, v = s
            xn = x + 0.01 * v - 1e-4 * mw.grad(energy)(x)
            ref = x[bi] - x[bj]

            def it(_, xn):
                r = xn[bi] - xn[bj]
                g = ((r * r).sum(-1) - d * d) / (4 * (r * ref).sum(-1) + 1e-3)
                dl = 0.5 * g[:, None] * ref
                return xn.at[bi].add(-dl).at[bj].add(dl)

            xn = lax.fori_loop(0, 3, it, xn)
            return (xn, (xn - x) / 0.01), energy(xn)

        return lax.scan(step, (x, v), None, length=2)

    return (
        run,
        ((n, 3), (n, 3), ints(m), ints(m), (m,), ints(ang), ints(ang), ints(ang)),
        (P("d"),) * 8,
        None,
        mesh_of(d=8),
    )


@program
def mps_two_site_lanczos():
    """A step of DMRG: the effective Hamiltonian of two sites, Lanczos, a decomposition; both bonds split."""
    D, d, w = 96, 4, 6

    def run(L, R, W1, W2, th):
        def H(v):
            v = v.reshape(D, d, d, D)
            x = mnp.einsum("awb,bstc->awstc", L, v)
            x = mnp.einsum("awstc,wxus->axutc", x, W1)
            x = mnp.einsum("axutc,xyvt->ayuvc", x, W2)
            return mnp.einsum("ayuvc,eyc->auve", x, R).reshape(-1)

        v = th.reshape(-1)
        v = v / mnp.sqrt(v @ v)
        vs, al, be = [v], [], []
        for _ in range(4):
            q = H(vs[-1])
            a = q @ vs[-1]
            al.append(a)
            for u in vs:
                q = q - (u @ q) * u
            bb = mnp.sqrt(q @ q + 1e-12)
            be.append(bb)
            vs.append(q / bb)
        T = mnp.diag(mnp.stack(al)) + mnp.diag(mnp.stack(be[:-1]), 1) + mnp.diag(mnp.stack(be[:-1]), -1)
        e, y = mnp.linalg.eigh(T)
        psi = sum(y[i, 0] * vs[i] for i in range(4)).reshape(D * d, d * D)
        q, _ = mnp.linalg.qr(psi[:, :D])
        return e[0], psi, q

    return (
        run,
        ((D, w, D), (D, w, D), (w, w, d, d), (w, w, d, d), (D, d, d, D)),
        (P("a"), P("b"), P(), P(), P("a", None, None, "b")),
        None,
        mesh_of(a=4, b=2),
    )
