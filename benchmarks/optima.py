"""Published optima: what a device sends, computes and holds under well-known shardings, against the best known.

The optimal bytes are from the papers (data parallel, ZeRO and FSDP: Rajbhandari et al. 2020; tensor parallel: Shoeybi
et al. 2019; sequence parallel: Korthikanti et al. 2022; pencils: Foster and Worley 1997), for ring algorithms. The
optimal work is an equal part for every device; parallel prefix sums take two passes over it (Blelloch 1990).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.common import table
from benchmarks.megatron import partitioned as megatron_layer
from benchmarks.mlp import SIZES
from benchmarks.mlp import partitioned as mlp_step


@dataclass(frozen=True)
class Case:
    """A program, the least bytes that a device must send (None: unknown), and how many times its work must be done."""

    make: Callable[[], Any]
    bytes: int | None = None
    work: float = 1


def _mesh(**axes: int) -> Any:
    import meshwright as mw

    return mw.AbstractMesh(tuple(axes.values()), tuple(axes))


def _lower(f: Any, mesh: Any, args: Any, specs: Any, outs: Any = None) -> Any:
    """Lower ``f`` for arguments of these shapes, with specs for arguments and results."""
    import meshwright as mw
    from meshwright import PartitionSpec as P

    def leaf(x: Any) -> bool:
        return isinstance(x, P)

    def on(tree: Any) -> Any:
        return mw.tree.map(lambda s: mw.NamedSharding(mesh, s), tree, is_leaf=leaf)

    return mw.jit(f, in_shardings=on(specs), out_shardings=None if outs is None else on(outs)).lower(*args)


def _partition(f: Any, mesh: Any, args: Any, specs: Any, outs: Any = None) -> Any:
    return _lower(f, mesh, args, specs, outs).partition()


# --- transformers -------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Transformer:
    """A stack of layers with its sizes; a ``vocabulary`` adds an embedding table before it and a head after it."""

    layers: int = 2
    width: int = 256
    heads: int = 8
    batch: int = 16
    sequence: int = 128
    vocabulary: int = 0
    tied: bool = True
    remat: bool = False
    scan: bool = False

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of a layer's parameters, by name."""
        d = self.width
        return {
            "ln1": (d,), "q": (d, d), "k": (d, d), "v": (d, d), "out": (d, d), "ln2": (d,), "up": (d, 4 * d),
            "down": (4 * d, d),
        }  # fmt: skip

    @property
    def tokens(self) -> int:
        return self.batch * self.sequence

    def layer(self, p: Mapping[str, Any], x: Any, between: Callable[[Any], Any]) -> Any:
        """One layer; ``between`` places the values that pass from block to block."""
        import meshwright.numpy as mnp
        from meshwright import nn

        b, s, d = x.shape

        def heads(y: Any) -> Any:
            return y.reshape(b, s, self.heads, d // self.heads)

        h = nn.layer_norm(x, p["ln1"])
        q, k, v = (heads(h @ p[n]) for n in "qkv")
        scores = mnp.einsum("bqhd,bkhd->bhqk", q, k) / np.float32(np.sqrt(d // self.heads))
        mixed = mnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores), v).reshape(b, s, d)
        x = between(x + mixed @ p["out"])
        h = nn.layer_norm(x, p["ln2"])
        return between(x + nn.gelu(h @ p["up"]) @ p["down"])

    def loss(self, params: Any, x: Any, between: Callable[[Any], Any]) -> Any:
        """The mean square of the output, or, with a vocabulary, the cross entropy of the next token."""
        import meshwright as mw
        import meshwright.numpy as mnp
        from meshwright import nn

        tokens = x
        if self.vocabulary:
            x = params["table"][tokens]
        x = between(x)

        def layer(p: Any, x: Any) -> Any:
            return self.layer(p, x, between)

        if self.remat:
            layer = mw.checkpoint(layer)
        if self.scan:
            x, _ = mw.lax.scan(lambda x, p: (layer(p, x), None), x, params["layers"])
        else:
            for p in params["layers"]:
                x = layer(p, x)
        if not self.vocabulary:
            return (x * x).mean()
        logp = nn.log_softmax(x @ (params["table"].T if self.tied else params["head"]), axis=-1)
        return -mnp.take_along_axis(logp, tokens[..., None], axis=-1).mean()

    def step(self, mesh: Any, of: Callable[[str], Any], x_spec: Any, between: Any = None) -> Any:
        """Partition value and gradient; ``of`` returns the spec of a parameter, and of its gradient, by name."""
        import meshwright as mw
        from meshwright import PartitionSpec as P

        def place(x: Any) -> Any:
            return x if between is None else mw.with_sharding_constraint(x, mw.NamedSharding(mesh, between))

        def run(params: Any, x: Any) -> Any:
            return mw.value_and_grad(lambda p: self.loss(p, x, place))(params)

        struct, shapes = mw.ShapeDtypeStruct, self.shapes()
        if self.scan:
            layers: Any = {n: struct((self.layers, *s), np.float32) for n, s in shapes.items()}
            specs: Any = {n: P(None, *of(n)) for n in shapes}
        else:
            layers = [{n: struct(s, np.float32) for n, s in shapes.items()} for _ in range(self.layers)]
            specs = [{n: of(n) for n in shapes}] * self.layers
        params, where = {"layers": layers}, {"layers": specs}
        x = struct((self.batch, self.sequence, self.width), np.float32)
        if self.vocabulary:
            params["table"], where["table"] = struct((self.vocabulary, self.width), np.float32), of("table")
            if not self.tied:
                params["head"], where["head"] = struct((self.width, self.vocabulary), np.float32), of("head")
            x = struct((self.batch, self.sequence), np.int32)
        return _partition(run, mesh, (params, x), (where, x_spec), (P(), where))

    def parameter_bytes(self, *, matrices: bool = True) -> int:
        """The bytes of the layers' parameters, or of their vectors only."""
        return 4 * self.layers * sum(int(np.prod(s)) for s in self.shapes().values() if matrices or len(s) == 1)


def _columns(axis: str) -> Callable[[str], Any]:
    from meshwright import PartitionSpec as P

    return lambda n: P(None, axis) if n in ("q", "k", "v", "up") else P(axis) if n in ("out", "down") else P()


def _fsdp(axis: str) -> Callable[[str], Any]:
    from meshwright import PartitionSpec as P

    return lambda n: P(axis)


def transformers() -> dict[str, Case]:
    """Training steps: data parallel, fully sharded, and tensor parallel."""
    from meshwright import PartitionSpec as P

    found: dict[str, Case] = {}
    small, n = Transformer(), 8
    total, vectors = small.parameter_bytes(), small.parameter_bytes(matrices=False)
    loss = 2 * 4 * (n - 1) // n + 1
    data = P("data")
    found["data parallel"] = Case(
        lambda: small.step(_mesh(data=n), lambda _: P(), data), 2 * total * (n - 1) // n + loss
    )
    for name, model, times in (
        ("FSDP", small, 2),
        ("FSDP, scan", Transformer(scan=True), 3),
        ("FSDP, remat", Transformer(remat=True), 3),
        ("FSDP, remat, scan", Transformer(remat=True, scan=True), 3),
    ):
        found[name] = Case(
            lambda model=model: model.step(_mesh(data=n), _fsdp("data"), data),
            times * total * (n - 1) // n + loss,
        )
    # Four all-reduces of the activations per layer; gradients of normalization scales are computed on all devices.
    activations = 4 * small.tokens * small.width
    found["tensor parallel"] = Case(
        lambda: small.step(_mesh(tensor=n), _columns("tensor"), P()), 8 * small.layers * activations * (n - 1) // n
    )
    found["tensor parallel, sequence parallel"] = Case(
        lambda: small.step(_mesh(tensor=n), _columns("tensor"), P(None, "tensor"), P(None, "tensor")),
        8 * small.layers * activations * (n - 1) // n + 2 * vectors * (n - 1) // n + loss,
    )
    local = 4 * small.layers * 12 * small.width**2 // 4 + vectors
    found["data 2 × tensor 4"] = Case(
        lambda: small.step(_mesh(data=2, tensor=4), _columns("tensor"), P("data")),
        8 * small.layers * activations // 2 * 3 // 4 + 2 * local // 2,
    )
    found["data 2 × tensor 4, sequence parallel"] = Case(
        lambda: small.step(_mesh(data=2, tensor=4), _columns("tensor"), P("data", "tensor"), P("data", "tensor")),
        8 * small.layers * activations // 2 * 3 // 4 + 2 * local // 2,
    )

    def mixed(name: str) -> Any:
        spec = _columns("tensor")(name)
        return P("data", "tensor") if spec == P(None, "tensor") else P("tensor", "data") if spec else P()

    local = 4 * small.layers * 12 * small.width**2 // 4
    found["FSDP 2 × tensor 4"] = Case(
        lambda: small.step(_mesh(data=2, tensor=4), mixed, P("data")),
        8 * small.layers * activations // 2 * 3 // 4 + 2 * local // 2 + 2 * vectors // 2,
    )
    for devices, vocabulary, tied in ((8, 8192, True), (8, 8192, False), (8, 50265, True), (8, 50265, False),
                                      (64, 50265, True), (64, 50265, False)):  # fmt: skip
        words = Transformer(layers=4, vocabulary=vocabulary, tied=tied, batch=2 * devices)
        # One vocabulary matrix is gathered; rows looked up in a separate table are exchanged, forward and backward.
        whole = words.parameter_bytes() + 4 * vocabulary * 256
        rows = 0 if tied else 2 * 4 * words.tokens * words.width // devices * (devices - 1) // devices

        def features(name: str) -> Any:
            return P(None, "data") if name == "table" else P("data")

        how = f"{'tied' if tied else 'untied'}, {vocabulary:,} words on {devices}"
        found[f"embedding split by features, FSDP, {how}"] = Case(
            lambda words=words, n=devices: words.step(_mesh(data=n), features, data),
            2 * whole * (devices - 1) // devices + rows + loss,
        )
    return found


# --- other training steps -----------------------------------------------------------------------------------
def _demo() -> Any:
    import meshwright as mw
    from meshwright.cli import digits

    return digits.step_on(mw.AbstractMesh((4, 2), ("data", "model"))).lower(*digits.like(100)).partition()


def _unet() -> Any:
    """Two levels of 3×3 convolutions, data parallel."""
    import meshwright as mw
    from meshwright import PartitionSpec as P
    from meshwright import nn

    mesh = _mesh(data=8)
    shapes = {"in": (3, 3, 4, 32), "down": (3, 3, 32, 64), "mid": (3, 3, 64, 64), "up": (3, 3, 96, 32)}

    def loss(p: Any, x: Any) -> Any:
        a = nn.relu(nn.conv(x, p["in"]))
        b = nn.relu(nn.conv(nn.avg_pool(a, 2), p["down"]))
        b = nn.relu(nn.conv(b, p["mid"]))
        up = b.repeat(2, 1).repeat(2, 2)
        y = nn.conv(mw.numpy.concatenate([up, a], -1), p["up"])
        return (y * y).mean()

    params = {k: mw.ShapeDtypeStruct(s, np.float32) for k, s in shapes.items()}
    x = mw.ShapeDtypeStruct((16, 32, 32, 4), np.float32)
    where = dict.fromkeys(shapes, P())
    return _partition(mw.value_and_grad(loss), mesh, (params, x), (where, P("data")), (P(), where))


def steps() -> dict[str, Case]:
    """Other training steps, without a known optimum of the bytes; their work should be shared."""
    found = {f"MLP {'×'.join(map(str, sizes))}": Case(lambda sizes=sizes: mlp_step(sizes)) for sizes in SIZES}
    unet = 4 * 9 * (4 * 32 + 32 * 64 + 64 * 64 + 96 * 32)
    found["data parallel U-Net"] = Case(_unet, 2 * unet * 7 // 8 + 8)
    return {**found, "digits of the demo": Case(_demo), "Megatron layer": Case(megatron_layer)}


# --- single ops ---------------------------------------------------------------------------------------------
def _one(f: Any, spec: Any, shape: tuple[int, ...], out: Any = None, dtype: Any = np.float32) -> Callable[[], Any]:
    import meshwright as mw

    return lambda: _partition(f, _mesh(d=8), (mw.ShapeDtypeStruct(shape, dtype),), (spec,), out)


def fused(tokens: int, width: int, hidden: int) -> Any:
    """The gradients of a gated layer with one matrix for gate and up projection, tensor parallel."""
    import meshwright as mw
    import meshwright.numpy as mnp
    from meshwright import PartitionSpec as P
    from meshwright import nn

    def loss(w: Any, down: Any, x: Any) -> Any:
        gate, up = mnp.split(x @ w, 2, -1)
        return (((nn.silu(gate) * up) @ down) ** 2).sum()

    specs = P(None, "d"), P("d"), P()
    args = [mw.ShapeDtypeStruct(s, np.float32) for s in ((width, 2 * hidden), (hidden, width), (tokens, width))]
    return _lower(mw.grad(loss, (0, 1, 2)), _mesh(d=8), args, specs, specs)


def _recurrence(gradient: bool) -> Any:
    """``h[t] = a[t] h[t - 1] + b[t]`` by an associative scan, as in state-space models."""
    import meshwright as mw
    from meshwright import PartitionSpec as P
    from meshwright import lax

    def states(a: Any, b: Any) -> Any:
        return lax.associative_scan(lambda p, q: (p[0] * q[0], p[1] * q[0] + q[1]), (a, b))[1]

    def gradients(a: Any, b: Any) -> Any:
        return mw.grad(lambda a, b: (states(a, b) ** 2).sum(), (0, 1))(a, b)

    args = (mw.ShapeDtypeStruct((4096, 64), np.float32),) * 2
    specs = (P("d"), P("d"))
    return _partition(gradients if gradient else states, _mesh(d=8), args, specs, specs if gradient else P("d"))


def ops() -> dict[str, Case]:
    """Ops along a split dimension; the optimum is two all-to-alls if another dimension is free."""
    import meshwright.numpy as mnp
    from meshwright import PartitionSpec as P
    from meshwright import lax

    first, second, n = P("d"), P(None, "d"), 8
    square, batch = (512, 512), (8, 64, 64)
    tile = 4 * 512 * 512 // 8
    stack = 4 * 8 * 64 * 64 // 8
    perm = np.random.default_rng(0).permutation(512)
    moved = tile * (n - 1) // n
    row = 4 * 64 * (n - 1)  # one row of each tile, sent to all devices
    found = {
        "fft along a split dimension": Case(_one(mnp.fft.fft, second, square, second, np.complex64), 4 * moved),
        "fft2, rows to columns": Case(_one(lambda x: mnp.fft.fft2(x), first, square, second, np.complex64), 2 * moved),
        "x[:, perm], split columns": Case(_one(lambda x: x[:, perm], second, square, second), 2 * moved),
        "scan over split rows": Case(
            _one(lambda x: lax.scan(lambda c, r: (c + r, c * r), mnp.zeros(512), x)[1], first, square, first), 2 * moved
        ),
        "sums up to each row, split rows": Case(_one(lambda x: mnp.cumsum(x, 0), P("d"), (4096, 64), P("d")), row, 2),
        "linear recurrence, split rows": Case(lambda: _recurrence(False), 2 * row, 2),
        "linear recurrence and its gradient, split rows": Case(lambda: _recurrence(True), 4 * row + 2 * 4 * 64, 2),
        "cholesky, split rows": Case(
            _one(lambda x: mnp.linalg.cholesky(x), P(None, "d"), batch, P(None, "d")), 2 * stack * (n - 1) // n
        ),
        "qr, split rows": Case(
            _one(lambda x: tuple(mnp.linalg.qr(x)), P(None, "d"), batch, (P(None, "d"),) * 2), 3 * stack * (n - 1) // n
        ),
        "split in halves": Case(_one(lambda x: tuple(mnp.split(x, 2, -1)), second, square, (second,) * 2), tile),
        "split in thirds": Case(
            _one(lambda x: tuple(mnp.split(x, 3, -1)), second, (512, 384), (second,) * 3), tile * 3 // 4
        ),
        "halves exchanged": Case(
            _one(lambda x: mnp.concatenate([*mnp.split(x, 2, -1)][::-1], -1), second, square, second), tile
        ),
        "gate and up of one projection, gradients": Case(
            lambda: fused(2048, 256, 512).partition(), 2 * 4 * 256 * 1024 // 8 + 4 * 4 * 2048 * 256 * 7 // 8
        ),
        "(T, E split) -> (T·E)": Case(_one(lambda x: x.reshape(-1), second, square, P("d")), tile * (n - 1) // n),
    }
    return found


def stencils() -> dict[str, Case]:
    """Stencils on a plane in 4×2 tiles.

    A device sends a row to each of two neighbours and a column to the other device; with corners, columns include the
    rows received. Permutes to the left and to the right both count.
    """
    import meshwright as mw
    import meshwright.numpy as mnp
    from meshwright import PartitionSpec as P

    size, where = 512, P("a", "b")
    rows, column = 2 * 4 * size // 2, 4 * size // 4

    def five(u: Any) -> Any:
        return u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]

    def nine(u: Any) -> Any:
        return sum(u[i : size + i, j : size + j] for i in range(3) for j in range(3))

    def case(f: Callable[[Any], Any], sent: int) -> Case:
        x = mw.ShapeDtypeStruct((size, size), np.float32)
        return Case(lambda: _partition(f, _mesh(a=4, b=2), (x,), (where,), where), sent)

    return {
        "five points, zeros around": case(lambda u: five(mnp.pad(u, 1)), rows + column),
        "five points, edges repeated": case(lambda u: five(mnp.pad(u, 1, mode="edge")), rows + column),
        "five points, on a torus": case(lambda u: five(mnp.pad(u, 1, mode="wrap")), rows + 2 * column),
        "nine points, zeros around": case(lambda u: nine(mnp.pad(u, 1)), rows + 2 * (column + 8)),
        "gradient": case(lambda u: sum(mnp.gradient(u)), rows + column),
    }


def programs() -> dict[str, Case]:
    """All programs."""
    return {**transformers(), **steps(), **ops(), **stencils()}


def measure(case: Case) -> dict[str, Any]:
    """Bytes sent, work of all devices over the ideal, peak bytes, and seconds of tracing and planning."""
    start = time.perf_counter()
    part = case.make()
    seconds = time.perf_counter() - start
    return {
        "bytes": part.bytes_sent,
        "work": part.work.redundancy / case.work,
        "peak": part.peak_bytes,
        "seconds": seconds,
    }


def main() -> None:
    rows = []
    for name, case in programs().items():
        found = measure(case)
        share = f"{found['bytes'] / case.bytes:.3f}" if case.bytes else ""
        seconds = f"{found['seconds']:.2f} s"
        rows.append([name, f"{found['bytes']:,}", share, f"{found['work']:.3f}", f"{found['peak']:,}", seconds])
    table(
        "Against published optima",
        ["program", "bytes sent", "of the optimum", "work/ideal", "peak bytes", "trace and plan"],
        rows,
        "targets: at most 1.05 of the bytes and 1.02 of the work",
    )


if __name__ == "__main__":
    main()
