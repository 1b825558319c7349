"""Programs of other fields and styles, written by an examiner of the partitioner who knew it by its results alone.

Each function returns what those of ``benchmarks/field_programs.py`` do.
"""

from __future__ import annotations

import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from benchmarks.field_programs import xent
from benchmarks.shapes import Programs, bools, int8s, ints, mesh_of, sgd
from meshwright import PartitionSpec as P
from meshwright import lax, nn
from meshwright.scipy import linalg as sla

F32 = np.float32
PROGRAMS = Programs()
program = PROGRAMS.add


def rms(x, weight):
    """Root mean square normalization along the last dimension."""
    return x * lax.rsqrt(mnp.mean(x * x, -1, keepdims=True) + 1e-5) * weight


@program
def gated_deltanet():
    """Gated delta rule in chunks (UT transform by a triangular solve), heads 4 x batch 2."""
    b, t, h, k, v, c, w = 4, 512, 8, 32, 32, 64, 256
    n = t // c

    def loss(q, x, y):
        z = rms(x, q["n0"])

        def heads(m, d):
            return (z @ m).reshape(b, n, c, h, d).transpose(0, 3, 1, 2, 4)

        qq, kk, vv = heads(q["q"], k), heads(q["k"], k), heads(q["v"], v)
        qq = qq * lax.rsqrt((qq * qq).sum(-1, keepdims=True) + 1e-6)
        kk = kk * lax.rsqrt((kk * kk).sum(-1, keepdims=True) + 1e-6)
        beta = nn.sigmoid(z @ q["b"]).reshape(b, n, c, h).transpose(0, 3, 1, 2)
        g = -nn.softplus((z @ q["a"]).reshape(b, n, c, h).transpose(0, 3, 1, 2) + q["dt"][:, None, None])
        g = mnp.cumsum(g, -1)
        low, strict = np.tril(np.ones((c, c), bool)), np.tril(np.ones((c, c), bool), -1)
        dec = mnp.where(low, mnp.exp(mnp.where(low, g[..., :, None] - g[..., None, :], 0)), 0)
        kb = kk * beta[..., None]
        a = mnp.where(strict, mnp.einsum("bhnik,bhnjk->bhnij", kb, kk) * dec, 0)
        tt = lax.linalg.triangular_solve(
            a + np.eye(c, dtype=F32),
            mnp.broadcast_to(np.eye(c, dtype=F32), a.shape),
            left_side=True,
            lower=True,
            unit_diagonal=True,
        )
        u = tt @ (vv * beta[..., None])
        wk = tt @ (kb * mnp.exp(g)[..., None])
        att = mnp.einsum("bhnik,bhnjk->bhnij", qq, kk) * dec

        def step(s, xs):
            q_, k_, u_, w_, g_, at_ = xs
            un = u_ - w_ @ s
            o = (q_ * mnp.exp(g_)[..., None]) @ s + at_ @ un
            s = s * mnp.exp(g_[..., -1])[..., None, None] + mnp.einsum(
                "bhck,bhcv->bhkv", k_ * mnp.exp(g_[..., -1:] - g_)[..., None], un
            )
            return s, o

        def mv(z):
            return mnp.moveaxis(z, 2, 0)

        _, o = lax.scan(step, mnp.zeros((b, h, k, v), F32), tuple(map(mv, (qq, kk, u, wk, g, att))))
        o = mnp.moveaxis(o, 0, 2).transpose(0, 2, 3, 1, 4).reshape(b, t, h, v)
        o = rms(o, q["no"]).reshape(b, t, h * v) * nn.silu(z @ q["g"])
        return mnp.mean((x + o @ q["o"] - y) ** 2)

    s = {
        "n0": (w,),
        "q": (w, h * k),
        "k": (w, h * k),
        "v": (w, h * v),
        "b": (w, h),
        "a": (w, h),
        "dt": (h,),
        "no": (v,),
        "g": (w, h * v),
        "o": (h * v, w),
    }
    col = P(None, "t")
    sp = {"n0": P(), "q": col, "k": col, "v": col, "b": col, "a": col, "dt": P("t"), "no": P(), "g": col, "o": P("t")}
    return sgd(loss), (s, (b, t, w), (b, t, w)), (sp, P("d"), P("d")), (P(), sp), mesh_of(d=2, t=4)


@program
def moe_capacity_shared_aux():
    """Top-2 of 16 experts with capacity by cumulative counts, dropped tokens, a shared expert, balance and z losses."""
    b, t, w, e, f, k = 16, 128, 256, 16, 512, 2
    n = b * t
    cap = int(1.25 * k * n / e)

    def ffn(x, g, u, d):
        return (nn.silu(x @ g) * (x @ u)) @ d

    def loss(p, x, y):
        z = rms(x, p["n"]).reshape(n, w)
        l = z @ p["r"]
        pr = nn.softmax(l)
        gate, idx = lax.top_k(pr, k)
        gate = gate / gate.sum(-1, keepdims=True)
        hot = nn.one_hot(idx.T.reshape(-1), e, dtype=np.int32)  # first choices first
        pos = ((mnp.cumsum(hot, 0) - 1) * hot).sum(-1)
        ids = idx.T.reshape(-1)
        keep = pos < cap
        slot = mnp.where(keep, pos, cap)
        buf = mnp.zeros((e, cap + 1, w), F32).at[ids, slot].add(mnp.tile(z, (k, 1)))[:, :cap]
        h = mnp.einsum(
            "ecf,efw->ecw",
            nn.silu(mnp.einsum("ecw,ewf->ecf", buf, p["g"])) * mnp.einsum("ecw,ewf->ecf", buf, p["u"]),
            p["d"],
        )
        out = h[ids, mnp.minimum(slot, cap - 1)] * (keep * gate.T.reshape(-1))[:, None]
        out = out.reshape(k, n, w).sum(0) + ffn(z, p["sg"], p["su"], p["sd"])
        frac = hot.astype(F32).reshape(k, n, e).sum((0, 1)) / n
        aux = e * (frac * pr.mean(0)).sum() + 1e-3 * (nn.logsumexp(l, -1) ** 2).mean()
        return mnp.mean((x + out.reshape(b, t, w) - y) ** 2) + 0.01 * aux

    s = {
        "n": (w,),
        "r": (w, e),
        "g": (e, w, f),
        "u": (e, w, f),
        "d": (e, f, w),
        "sg": (w, f),
        "su": (w, f),
        "sd": (f, w),
    }
    sp = {"n": P(), "r": P(), "g": P("e"), "u": P("e"), "d": P("e"), "sg": P(), "su": P(), "sd": P()}
    return sgd(loss), (s, (b, t, w), (b, t, w)), (sp, P("e"), P("e")), (P(), sp), mesh_of(e=8)


@program
def ddim_guidance_loop():
    """Twelve DDIM steps with classifier-free guidance of a transformer, batch over d, heads over t."""
    b, n, w, h, T = 4, 64, 128, 4, 12

    def net(p, x, t, c):
        f = t * mnp.exp(-np.arange(w // 2, dtype=F32) / 10)
        e = mnp.concatenate([mnp.sin(f), mnp.cos(f)]) @ p["t"] + c
        z = x @ p["in"] + p["pos"]
        for l in p["l"]:
            sh, sc, ga = mnp.split((nn.silu(e) @ l["ada"])[:, None], 3, -1)
            y = rms(z, l["n"]) * (1 + sc) + sh
            q, k, v = ((y @ l[m]).reshape(2 * b, n, h, w // h) for m in "qkv")
            a = nn.softmax(mnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(w // h).astype(F32))
            z = z + ga * (mnp.einsum("bhqk,bkhd->bqhd", a, v).reshape(2 * b, n, w) @ l["o"])
            z = z + nn.gelu(rms(z, l["n"]) @ l["u"]) @ l["d"]
        return z @ p["out"]

    def sample(p, x, label):
        ab = mnp.cumprod(1 - mnp.linspace(1e-4, 0.02, T, dtype=F32))
        c = p["c"][mnp.concatenate([label, mnp.full_like(label, 10)])]

        def step(i, x):
            t = T - 1 - i
            eps = net(p, mnp.concatenate([x, x]), t.astype(F32), c)
            ec, eu = mnp.split(eps, 2)
            eps = eu + 4.0 * (ec - eu)
            a, an = ab[t], mnp.where(t > 0, ab[mnp.maximum(t - 1, 0)], 1.0)
            x0 = mnp.clip((x - mnp.sqrt(1 - a) * eps) / mnp.sqrt(a), -1, 1)
            return mnp.sqrt(an) * x0 + mnp.sqrt(1 - an) * eps

        return lax.fori_loop(0, T, step, x)

    col = P(None, "t")
    l = {
        "ada": (w, 3 * w),
        "n": (w,),
        "q": (w, w),
        "k": (w, w),
        "v": (w, w),
        "o": (w, w),
        "u": (w, 4 * w),
        "d": (4 * w, w),
    }
    ls = {"ada": P(), "n": P(), "q": col, "k": col, "v": col, "o": P("t"), "u": col, "d": P("t")}
    s = {"t": (w, w), "in": (16, w), "pos": (n, w), "l": [l] * 2, "out": (w, 16), "c": (11, w)}
    sp = {"t": P(), "in": P(), "pos": P(), "l": [ls] * 2, "out": P(), "c": P()}
    return sample, (s, (b, n, 16), ints(b)), (sp, P("d"), P("d")), P("d"), mesh_of(d=4, t=2)


@program
def kv_int8_greedy_decode():
    """Sixteen greedy tokens in a scan; caches in eight bits with scales; 6 heads of keys over 4, batch over 2."""
    b, t, g, r, d, w, v, n = 8, 256, 6, 2, 32, 384, 5000, 16

    def q8(x):
        s = mnp.max(mnp.abs(x), -1, keepdims=True) / 127 + 1e-6
        return mnp.round(x / s).astype(np.int8), s

    def f(p, kc, ks, vc, vs, tok, start):
        def step(c, i):
            kc, ks, vc, vs, tok = c
            pos = start + i
            x = p["e"][tok]
            for j, l in enumerate(p["l"]):
                z = rms(x, l["n"])
                q = (z @ l["q"]).reshape(b, g, r, d)
                k, s1 = q8((z @ l["k"]).reshape(b, g, d))
                vv, s2 = q8((z @ l["v"]).reshape(b, g, d))

                def up(c, u, j=j):
                    return lax.dynamic_update_slice(c, u[None, :, :, None], (j, 0, 0, pos, 0))

                kc, ks, vc, vs = up(kc, k), up(ks, s1), up(vc, vv), up(vs, s2)
                kk, vv_ = kc[j].astype(F32) * ks[j], vc[j].astype(F32) * vs[j]
                s = mnp.einsum("bgrd,bgtd->bgrt", q, kk) / np.sqrt(d).astype(F32)
                s = mnp.where(mnp.arange(t) <= pos, s, -1e9)
                x = x + mnp.einsum("bgrt,bgtd->bgrd", nn.softmax(s), vv_).reshape(b, -1) @ l["o"]
                x = x + nn.silu(rms(x, l["m"]) @ l["u"]) @ l["dn"]
            tok = mnp.argmax(x @ p["head"], -1).astype(np.int32)
            return (kc, ks, vc, vs, tok), tok

        c, out = lax.scan(step, (kc, ks, vc, vs, tok), mnp.arange(n))
        return out.T, c[:4]

    l = {
        "n": (w,),
        "q": (w, g * r * d),
        "k": (w, g * d),
        "v": (w, g * d),
        "o": (g * r * d, w),
        "m": (w,),
        "u": (w, 4 * w),
        "dn": (4 * w, w),
    }
    c = P(None, "t")
    ls = {"n": P(), "q": c, "k": c, "v": c, "o": P("t"), "m": P(), "u": c, "dn": P("t")}
    cs = P(None, "d", "t")
    C, S = int8s(2, b, g, t, d), (2, b, g, t, 1)
    return (
        f,
        ({"e": (v, w), "l": [l] * 2, "head": (w, v)}, C, S, C, S, ints(b), ints()),
        ({"e": P(), "l": [ls] * 2, "head": c}, cs, cs, cs, cs, P("d"), P()),
        (P("d"), (cs, cs, cs, cs)),
        mesh_of(d=2, t=4),
    )


@program
def soap_stack():
    """SOAP: Adam in the eigenbases of Shampoo's statistics (one power step and QR), layers stacked, FSDP by rows."""
    L, m, n, b = 4, 256, 128, 512

    def loss(p, x, y):
        for i in range(L):
            x = x + mnp.tanh(x @ p["w"][i]) @ p["v"][i]
        return mnp.mean((x - y) ** 2)

    def one(p, s, g):
        q1, q2, l, r, mo, v = s
        l = 0.95 * l + 0.05 * g @ g.T
        r = 0.95 * r + 0.05 * g.T @ g
        gp = q1.T @ g @ q2
        mo = 0.9 * mo + 0.1 * g
        mp = q1.T @ mo @ q2
        v = 0.95 * v + 0.05 * gp * gp
        up = q1 @ (mp / (mnp.sqrt(v) + 1e-8)) @ q2.T
        q1, _ = mnp.linalg.qr(l @ q1)
        q2, _ = mnp.linalg.qr(r @ q2)
        return p - 1e-2 * up, (q1, q2, l, r, mo, v)

    def step(p, s, x, y):
        l, g = mw.value_and_grad(loss)(p, x, y)
        new = {k: mw.vmap(one)(p[k], s[k], g[k]) for k in p}
        return l, {k: a for k, (a, _) in new.items()}, {k: a for k, (_, a) in new.items()}

    def st(i, j):
        return ((L, i, i), (L, j, j), (L, i, i), (L, j, j), (L, i, j), (L, i, j))

    s = {"w": (L, n, m), "v": (L, m, n)}
    R = P(None, "f")
    ss = {"w": (R,) * 6, "v": (R,) * 6}
    return (
        step,
        (s, {"w": st(n, m), "v": st(m, n)}, (b, n), (b, n)),
        ({"w": R, "v": R}, ss, P("f"), P("f")),
        (P(), {"w": R, "v": R}, ss),
        mesh_of(f=8),
    )


@program
def kfac_whole_factors():
    """K-FAC: factors from activations and output gradients, damped solves by Cholesky, data over d, a two-layer net."""
    b, w, h, c = 1024, 256, 384, 40

    def fwd(p, x, e1, e2):
        a1 = mnp.concatenate([x, mnp.ones((b, 1), F32)], 1)
        h_ = nn.relu(a1 @ p["w1"] + e1)
        a2 = mnp.concatenate([h_, mnp.ones((b, 1), F32)], 1)
        return a2 @ p["w2"] + e2, (a1, a2)

    def step(p, f, x, y):
        def loss(p, e1, e2):
            l, acts = fwd(p, x, e1, e2)
            return xent(l, y).mean(), acts

        (l, acts), (g, d1, d2) = mw.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(
            p, mnp.zeros((b, h)), mnp.zeros((b, c))
        )
        new, out = {}, {}
        for k, a, d in (("w1", acts[0], d1), ("w2", acts[1], d2)):
            A = 0.95 * f[k][0] + 0.05 * a.T @ a / b
            G = 0.95 * f[k][1] + 0.05 * d.T @ d * b
            ca = sla.cho_factor(A + 1e-1 * mnp.eye(A.shape[0]))
            cg = sla.cho_factor(G + 1e-1 * mnp.eye(G.shape[0]))
            u = sla.cho_solve(ca, sla.cho_solve(cg, g[k].T).T)
            new[k], out[k] = p[k] - 0.1 * u, (A, G)
        return l, new, out

    s = {"w1": (w + 1, h), "w2": (h + 1, c)}
    fs = {"w1": ((w + 1, w + 1), (h, h)), "w2": ((h + 1, h + 1), (c, c))}
    return step, (s, fs, (b, w), ints(b)), (P(), P(), P("d"), P("d")), (P(), P(), P()), mesh_of(d=8)


@program
def mace_products():
    """Equivariant messages and products of three, energies and forces; edges over d, channels over t."""
    n, m, c = 512, 6144, 32
    lm = 9
    rng = np.random.default_rng(0)
    cg = (rng.standard_normal((lm, lm, lm)) * (rng.random((lm, lm, lm)) < 0.1)).astype(F32)

    def sh(u):
        x, y, z = u[..., 0], u[..., 1], u[..., 2]
        return mnp.stack([mnp.ones_like(x), x, y, z, x * y, y * z, 3 * z * z - 1, x * z, x * x - y * y], -1)

    def energy(p, pos, src, dst, z):
        d = pos[src] - pos[dst] + 1e-3
        r = mnp.sqrt((d * d).sum(-1) + 1e-6)
        Y = sh(d / r[:, None])
        rb = mnp.sin(r[:, None] * np.arange(1, 9, dtype=F32)) / r[:, None] * mnp.exp(-r[:, None])
        h = p["z"][z]
        R = nn.silu(rb @ p["r1"]) @ p["r2"]
        msg = (R * h[src])[:, None] * Y[..., None]
        A = mnp.zeros((n, lm, c), F32).at[dst].add(msg)
        B = A @ p["u1"]
        A2 = mnp.einsum("nac,nbc,abl->nlc", A, A, cg)
        A3 = mnp.einsum("nac,nbc,abl->nlc", A2, A, cg)
        B = B + A2 @ p["u2"] + A3 @ p["u3"]
        return (nn.silu(B[:, 0] @ p["e1"]) @ p["e2"]).sum()

    def loss(p, pos, src, dst, z, f):
        e, g = mw.value_and_grad(energy, 1)(p, pos, src, dst, z)
        return mnp.mean((g + f) ** 2) + e * 1e-3

    s = {
        "z": (10, c),
        "r1": (8, 64),
        "r2": (64, c),
        "u1": (c, c),
        "u2": (c, c),
        "u3": (c, c),
        "e1": (c, 64),
        "e2": (64, 1),
    }
    sp = {"z": P(None, "t"), "r1": P(), "r2": P(None, "t"), "u1": P(), "u2": P(), "u3": P(), "e1": P(), "e2": P()}
    return (
        sgd(loss),
        (s, (n, 3), ints(m), ints(m), ints(n), (n, 3)),
        (sp, P(), P("d"), P("d"), P(), P()),
        (P(), sp),
        mesh_of(d=4, t=2),
    )


@program
def slab_volume_render():
    """A volume in slabs of depth, seen along depth: emission and absorption, and the gradient of the volume."""
    z, y, x = 96, 128, 128

    def loss(v, img):
        s = nn.softplus(v[..., 0]) * 0.1
        tr = mnp.exp(-(mnp.cumsum(s, 0) - s))
        wgt = tr * (1 - mnp.exp(-s))
        c = (wgt[..., None] * nn.sigmoid(v[..., 1:])).sum(0)
        depth = (wgt * mnp.arange(z, dtype=F32)[:, None, None]).sum(0)
        tv = mnp.mean((v[1:] - v[:-1]) ** 2) + mnp.mean((v[:, 1:] - v[:, :-1]) ** 2)
        return mnp.mean((c - img) ** 2) + 0.1 * tv, depth

    def step(v, img):
        (l, depth), g = mw.value_and_grad(loss, has_aux=True)(v, img)
        return l, depth, v - 0.1 * g

    return step, ((z, y, x, 4), (y, x, 3)), (P("d"), P()), (P(), P(), P("d")), mesh_of(d=8)


@program
def lattice_boltzmann_3d():
    """D3Q19 with obstacles (bounce back), a body force; grid split in three dimensions."""
    n = 32
    c = np.array(
        [[i, j, k] for i in (-1, 0, 1) for j in (-1, 0, 1) for k in (-1, 0, 1) if abs(i) + abs(j) + abs(k) <= 2],
        np.int32,
    )
    wt = np.array([{0: 1 / 3, 1: 1 / 18, 2: 1 / 36}[int(abs(v).sum())] for v in c], F32)
    opp = np.array([int(np.where((c == -v).all(1))[0][0]) for v in c])

    def f(g, solid):
        def step(g, _):
            rho = g.sum(0)
            u = mnp.einsum("qa,qxyz->axyz", c.astype(F32), g) / rho
            u = u.at[0].add(1e-4)
            cu = mnp.einsum("qa,axyz->qxyz", c.astype(F32), u)
            eq = wt[:, None, None, None] * rho * (1 + 3 * cu + 4.5 * cu * cu - 1.5 * (u * u).sum(0))
            post = mnp.where(solid, g[opp], g + 1.2 * (eq - g))
            g = mnp.stack([mnp.roll(post[q], c[q], (0, 1, 2)) for q in range(19)])
            return g, (u * u).sum()

        return lax.scan(step, 1 + 0.01 * g, None, length=5)

    S = P(None, "x", "y", "z")
    return f, ((19, n, n, n), bools(n, n, n)), (S, P("x", "y", "z")), (S, P()), mesh_of(x=2, y=2, z=2)


@program
def channel_flow_chebyshev():
    """A channel: Fourier along two dimensions, Chebyshev matrices across, Helmholtz solves by mode; pencils."""
    nx, ny, nz = 64, 33, 32
    k = np.arange(ny)
    y = np.cos(np.pi * k / (ny - 1))
    cc = np.where((k == 0) | (k == ny - 1), 2.0, 1.0) * (-1.0) ** k
    with np.errstate(divide="ignore"):
        D = np.outer(cc, 1 / cc) / (np.subtract.outer(y, y) + np.eye(ny))
    D = (D - np.diag(D.sum(1))).astype(F32)
    kx, kz = np.fft.fftfreq(nx, 1 / nx).astype(F32), np.fft.fftfreq(nz, 1 / nz).astype(F32)
    D2 = (D @ D)[1:-1, 1:-1]
    lam = kx[:, None] ** 2 + kz[None] ** 2 + 200.0
    inv = np.linalg.inv(D2[None, None].astype(np.float64) - lam[..., None, None] * np.eye(ny - 2)).astype(F32)

    def step(u):  # 3 nx ny nz
        h = mnp.fft.fft2(u, axes=(1, 3))
        dx, dz = 1j * kx[:, None, None] * h, 1j * kz * h
        dy = mnp.einsum("ij,axjz->axiz", D.astype(np.complex64), h)
        grad = [mnp.fft.ifft2(q, axes=(1, 3)).real for q in (dx, dy, dz)]
        conv = u[:1] * grad[0] + u[1:2] * grad[1] + u[2:] * grad[2]
        rhs = -200.0 * h + mnp.fft.fft2(conv, axes=(1, 3))
        new = mnp.einsum("xzij,axjz->axiz", inv.astype(np.complex64), rhs[:, :, 1:-1])
        new = mnp.pad(new, ((0, 0), (0, 0), (1, 1), (0, 0)))
        return mnp.fft.ifft2(new, axes=(1, 3)).real

    S = P(None, "a", None, "b")
    return step, ((3, nx, ny, nz),), (S,), S, mesh_of(a=4, b=2)


@program
def semi_lagrangian():
    """Advection back along winds of at most three cells, periodic east-west; rows and columns split."""
    h, w = 128, 256

    def f(q, u, v):
        i, j = mnp.meshgrid(mnp.arange(h, dtype=F32), mnp.arange(w, dtype=F32), indexing="ij")

        def step(q, _):
            y = mnp.clip(i - mnp.clip(v, -3, 3), 0, h - 1)
            x = j - mnp.clip(u, -3, 3)
            y0, x0 = mnp.floor(y), mnp.floor(x)
            fy, fx = y - y0, x - x0
            y0, x0 = y0.astype(np.int32), x0.astype(np.int32)
            y1 = mnp.minimum(y0 + 1, h - 1)
            a, b = q[y0, x0 % w], q[y0, (x0 + 1) % w]
            c, d = q[y1, x0 % w], q[y1, (x0 + 1) % w]
            q = (a * (1 - fx) + b * fx) * (1 - fy) + (c * (1 - fx) + d * fx) * fy
            return q, q.mean()

        return lax.scan(step, q, None, length=4)

    S = P("y", "x")
    return f, ((h, w),) * 3, (S, S, S), (S, P()), mesh_of(y=4, x=2)


@program
def cnf_hutchinson():
    """A continuous flow with Hutchinson's trace, adjoint gradients by integrating back; batch over d, width over t."""
    b, w, h, n = 256, 32, 256, 8

    def net(p, x, t):
        z = mnp.tanh(x @ p["a"] + t * p["ta"])
        z = mnp.tanh(z @ p["b"] + t * p["tb"])
        return z @ p["c"]

    def dyn(p, s, t, eps):
        x, _ = s
        y, j = mw.jvp(lambda x: net(p, x, t), (x,), (eps,))
        return y, -(j * eps).sum(-1)

    def rk4(g, s, t, dt):
        def add(s, k, c):
            return mw.tree.map(lambda a, b: a + c * b, s, k)

        k1 = g(s, t)
        k2 = g(add(s, k1, dt / 2), t + dt / 2)
        k3 = g(add(s, k2, dt / 2), t + dt / 2)
        k4 = g(add(s, k3, dt), t + dt)
        return mw.tree.map(lambda s, a, b, c, d: s + dt / 6 * (a + 2 * b + 2 * c + d), s, k1, k2, k3, k4)

    @mw.custom_vjp
    def flow(p, x, eps):
        return lax.fori_loop(
            0, n, lambda i, s: rk4(lambda s, t: dyn(p, s, t, eps), s, i / n, 1.0 / n), (x, mnp.zeros(b, F32))
        )

    def fwd(p, x, eps):
        out = flow(p, x, eps)
        return out, (p, out, eps)

    def bwd(res, ct):
        p, out, eps = res

        def aug(s, t):
            st, a, _ = s
            y, vjp = mw.vjp(lambda p, st: dyn(p, st, t, eps), p, st)
            dp, ds = vjp(a)

            def neg(z):
                return mw.tree.map(lambda v: -v, z)

            return y, neg(ds), neg(dp)

        s = (out, ct, mw.tree.map(mnp.zeros_like, p))
        s = lax.fori_loop(0, n, lambda i, s: rk4(aug, s, 1 - i / n, -1.0 / n), s)
        return s[2], s[1][0], mnp.zeros_like(eps)

    flow.defvjp(fwd, bwd)

    def loss(p, x, eps):
        z, l = flow(p, x, eps)
        return (0.5 * (z * z).sum(-1) - l).mean()

    s = {"a": (w, h), "ta": (h,), "b": (h, h), "tb": (h,), "c": (h, w)}
    sp = {"a": P(None, "t"), "ta": P("t"), "b": P("t"), "tb": P(), "c": P()}
    return sgd(loss), (s, (b, w), (b, w)), (sp, P("d"), P("d")), (P(), sp), mesh_of(d=4, t=2)
