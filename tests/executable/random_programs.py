"""Random programs as data: hypothesis draws instructions, shapes are tracked, and the result is a function."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax, nn
from meshwright import PartitionSpec as P
from meshwright.ops.window.reductions import reduce_window

SIZES = st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 12])
MESHES = [
    *(((n,), ("x",)) for n in (2, 3, 4)),
    *((sizes, ("x", "y")) for sizes in ((2, 2), (2, 3), (4, 2))),
]
Shape = tuple[int, ...]
#: set to run a program on one device, without its constraints
WITHOUT_MESH: ContextVar[bool] = ContextVar("WITHOUT_MESH", default=False)
#: what sizes of inputs are multiplied with
SCALE: ContextVar[int] = ContextVar("SCALE", default=1)
UNARY = {"tanh": mnp.tanh, "sin": mnp.sin, "neg": lambda x: -x, "square": mnp.square, "sigmoid": nn.sigmoid}
BINARY = {"add": mnp.add, "sub": mnp.subtract, "mul": mnp.multiply, "max": mnp.maximum}
REDUCE = {"sum": mnp.sum, "max": mnp.max, "min": mnp.min, "mean": mnp.mean}


@dataclass
class Program:
    """Instructions on a growing list of values; each takes the values and returns one more."""

    inputs: list[Shape]
    steps: list[tuple[str, Callable[[Sequence[Any]], Any]]] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    #: how deep in bodies of control flow it stands
    depth: int = 0
    #: whether reverse mode goes through it: no loop of unknown length
    reversible: bool = True

    def __call__(self, *args: Any) -> list[Any]:
        values = list(args)
        for _, step in self.steps:
            values.append(step(values))
        return [values[i] for i in self.outputs]

    def __repr__(self) -> str:
        lines = [f"v{i}: input {s}" for i, s in enumerate(self.inputs)]
        lines += [f"v{len(self.inputs) + i} = {text}" for i, (text, _) in enumerate(self.steps)]
        return "\n".join([*lines, "outputs " + ", ".join(f"v{i}" for i in self.outputs)])

    def add(self, text: str, step: Callable[[Sequence[Any]], Any], shape: Shape) -> None:
        self.steps.append((text, step))
        self.shapes.append(shape)


@st.composite
def programs(draw: Any, mesh: mw.AbstractMesh | mw.Mesh) -> Program:
    """A program of 2 to 9 instructions on 1 to 3 inputs."""
    sizes = st.just(draw(SIZES)) if draw(st.booleans()) else SIZES  # of squares, dimensions are easily confused
    sizes = sizes.map(lambda n: n * SCALE.get())
    inputs = [tuple(draw(st.lists(sizes, min_size=1, max_size=3))) for _ in range(draw(st.integers(1, 3)))]
    program = Program(inputs, shapes=list(inputs))
    for _ in range(draw(st.integers(2, 9))):
        makers[draw(st.sampled_from(sorted(makers)))](draw, program, mesh)
    count = len(program.shapes)
    program.outputs = sorted({count - 1, *draw(st.lists(st.integers(0, count - 1), max_size=2))})
    return program


def _pick(draw: Any, program: Program, wanted: Callable[[Shape], bool] = lambda s: True) -> int | None:
    most = 4096 * SCALE.get() ** 2
    fitting = [i for i, s in enumerate(program.shapes) if wanted(s) and 0 < math.prod(s) <= most]
    return draw(st.sampled_from(fitting)) if fitting else None


def _pick_dimension(draw: Any, program: Program, rank: int = 1) -> tuple[int, Shape, int] | tuple[None, Shape, int]:
    """A value of at least that rank, its shape, and one of its dimensions; None if there is none."""
    i = _pick(draw, program, lambda s: len(s) >= rank)
    if i is None:
        return None, (), 0
    return i, program.shapes[i], draw(st.integers(0, len(program.shapes[i]) - 1))


def _unary(draw: Any, program: Program, mesh: Any) -> None:
    i = _pick(draw, program)
    if i is not None:
        name = draw(st.sampled_from(sorted(UNARY)))
        program.add(f"{name} v{i}", lambda v, i=i, f=UNARY[name]: f(v[i]), program.shapes[i])


def _binary(draw: Any, program: Program, mesh: Any) -> None:
    i = _pick(draw, program)
    if i is None:
        return
    shape = program.shapes[i]
    j = _pick(draw, program, lambda s: s == shape or s == shape[len(shape) - len(s) :])
    name = draw(st.sampled_from(sorted(BINARY)))
    program.add(f"{name} v{i} v{j}", lambda v, i=i, j=j, f=BINARY[name]: f(v[i], v[j]), shape)


def _matmul(draw: Any, program: Program, mesh: Any) -> None:
    i, shape, a = _pick_dimension(draw, program)
    if i is None:
        return
    j = _pick(draw, program, lambda s: shape[a] in s)
    if j is None:
        return
    other = program.shapes[j]
    b = draw(st.sampled_from([d for d, n in enumerate(other) if n == shape[a]]))
    out = (*shape[:a], *shape[a + 1 :], *other[:b], *other[b + 1 :])
    if math.prod(out) <= 4096 * SCALE.get() ** 2 and len(out) <= 4:
        scale = 1 / math.sqrt(shape[a])
        program.add(
            f"tensordot v{i} v{j} over {a}, {b}",
            lambda v, i=i, j=j, a=a, b=b: mnp.tensordot(v[i], v[j], ((a,), (b,))) * scale,
            out,
        )


def _reduce(draw: Any, program: Program, mesh: Any) -> None:
    i, shape, axis = _pick_dimension(draw, program)
    if i is not None:
        name = draw(st.sampled_from(sorted(REDUCE)))
        out = shape[:axis] + shape[axis + 1 :]
        program.add(f"{name} v{i} over {axis}", lambda v, i=i, a=axis, f=REDUCE[name]: f(v[i], axis=a), out)


def _transpose(draw: Any, program: Program, mesh: Any) -> None:
    i = _pick(draw, program, lambda s: len(s) >= 2)
    if i is not None:
        shape = program.shapes[i]
        order = tuple(draw(st.permutations(range(len(shape)))))
        out = tuple(shape[d] for d in order)
        program.add(f"transpose v{i} {order}", lambda v, i=i, o=order: mnp.transpose(v[i], o), out)


def _reshape(draw: Any, program: Program, mesh: Any) -> None:
    i = _pick(draw, program, lambda s: len(s) >= 1)
    if i is None:
        return
    size, out = math.prod(program.shapes[i]), []
    while size > 1 and len(out) < 3:
        factor = draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
        out.append(factor)
        size //= factor
    shape = (*out, size)
    program.add(f"reshape v{i} to {shape}", lambda v, i=i, s=shape: mnp.reshape(v[i], s), shape)


def _slice(draw: Any, program: Program, mesh: Any) -> None:
    i, shape, d = _pick_dimension(draw, program)
    if i is None:
        return
    start = draw(st.integers(0, shape[d] - 1))
    stop = draw(st.integers(start + 1, shape[d]))
    step = draw(st.integers(1, 3))
    rows = len(range(start, stop, step))
    program.add(
        f"v{i}[{start}:{stop}:{step}] on {d}",
        lambda v, i=i, a=start, b=stop, s=step, d=d: lax.slice_in_dim(v[i], a, b, s, d),
        (*shape[:d], rows, *shape[d + 1 :]),
    )


def _pad(draw: Any, program: Program, mesh: Any) -> None:
    i, shape, d = _pick_dimension(draw, program)
    if i is None:
        return
    low, high, inner = draw(st.integers(-1, 3)), draw(st.integers(0, 3)), draw(st.integers(0, 2))
    rows = low + high + shape[d] + (shape[d] - 1) * inner
    if rows > 0:
        config = [(0, 0, 0)] * len(shape)
        config[d] = (low, high, inner)
        program.add(
            f"pad v{i} {config[d]} on {d}",
            lambda v, i=i, c=tuple(config): lax.pad(v[i], np.float32(0.5), c),
            (*shape[:d], rows, *shape[d + 1 :]),
        )


def _concatenate(draw: Any, program: Program, mesh: Any) -> None:
    i, shape, d = _pick_dimension(draw, program)
    if i is None:
        return
    rest = shape[:d] + shape[d + 1 :]
    j = _pick(draw, program, lambda s: len(s) == len(shape) and s[:d] + s[d + 1 :] == rest)
    rows = shape[d] + program.shapes[j][d]  # type: ignore[index]
    program.add(
        f"concatenate v{i} v{j} on {d}",
        lambda v, i=i, j=j, d=d: mnp.concatenate([v[i], v[j]], d),
        (*shape[:d], rows, *shape[d + 1 :]),
    )


def _along(name: str, f: Callable[[Any, int], Any]) -> Callable[[Any, Program, Any], None]:
    def make(draw: Any, program: Program, mesh: Any) -> None:
        i = _pick(draw, program, lambda s: len(s) >= 1)
        if i is not None:
            d = draw(st.integers(0, len(program.shapes[i]) - 1))
            program.add(f"{name} v{i} on {d}", lambda v, i=i, d=d: f(v[i], d), program.shapes[i])

    return make


def _take(draw: Any, program: Program, mesh: Any) -> None:
    i, shape, d = _pick_dimension(draw, program)
    if i is None:
        return
    rows = draw(st.lists(st.integers(0, shape[d] - 1), min_size=1, max_size=6))
    index = np.array(rows, np.int32)
    program.add(
        f"take {rows} of v{i} on {d}",
        lambda v, i=i, d=d, r=index: mnp.take(v[i], r, axis=d),
        (*shape[:d], len(rows), *shape[d + 1 :]),
    )


def _scatter(draw: Any, program: Program, mesh: Any) -> None:
    i = _pick(draw, program, lambda s: len(s) >= 1)
    if i is None:
        return
    shape = program.shapes[i]
    rows = np.array(draw(st.lists(st.integers(0, shape[0] - 1), min_size=1, max_size=5)), np.int32)
    program.add(f"v{i}.at[{rows.tolist()}].add", lambda v, i=i, r=rows: v[i].at[r].add(v[i][r] * 0.5 + 1), shape)


def _row(draw: Any, program: Program, mesh: Any) -> None:
    """One row, with its dimension or without."""
    i, shape, d = _pick_dimension(draw, program, 2)
    if i is None:
        return
    row = draw(st.integers(-shape[d], shape[d] - 1))
    kept = (1,) if draw(st.booleans()) else ()
    rest = (*shape[:d], *kept, *shape[d + 1 :])
    program.add(
        f"row {row} of v{i} on {d} as {rest}",
        lambda v, i=i, d=d, r=row, s=rest: mnp.reshape(mw.lax.index_in_dim(v[i], r, d), s),
        rest,
    )


def _wrap(draw: Any, program: Program, mesh: Any) -> None:
    """Joined slices that go on from the end to the start."""
    i, shape, d = _pick_dimension(draw, program)
    if i is None:
        return
    before, after = draw(st.integers(1 - shape[d], shape[d])), draw(st.integers(0, shape[d]))
    pieces = [(shape[d] - before, shape[d]), (0, shape[d])] if before > 0 else [(-before, shape[d])]
    pieces += [(0, after)] if after else []
    program.add(
        f"rows {pieces} of v{i} on {d}",
        lambda v, i=i, d=d, p=tuple(pieces): mnp.concatenate([lax.slice_in_dim(v[i], a, b, 1, d) for a, b in p], d),
        (*shape[:d], sum(b - a for a, b in pieces), *shape[d + 1 :]),
    )


def _cholesky(draw: Any, program: Program, mesh: Any) -> None:
    """The factor of a positive definite matrix made of the last two dimensions."""
    i = _pick(draw, program, lambda s: len(s) >= 2)
    if i is None:
        return
    shape = program.shapes[i]

    def step(v: Sequence[Any], i: int = i, n: int = shape[-2]) -> Any:
        x = mnp.tanh(v[i])
        return mw.linalg.cholesky(x @ mnp.swapaxes(x, -1, -2) + shape[-1] * mnp.eye(n))

    program.add(f"cholesky v{i}", step, (*shape[:-1], shape[-2]))


def _conv(draw: Any, program: Program, mesh: Any) -> None:
    i = _pick(draw, program, lambda s: len(s) == 3)
    if i is None:
        return
    batch, rows, features = program.shapes[i]
    width, outputs = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    strides = draw(st.integers(1, 2))
    kernel = np.linspace(-1, 1, width * features * outputs, dtype=np.float32).reshape(width, features, outputs)
    shape = (batch, -(-rows // strides), outputs)
    program.add(
        f"conv v{i} with {kernel.shape}, strides {strides}",
        lambda v, i=i, k=kernel, s=strides: nn.conv(v[i], k, strides=s),
        shape,
    )


def _pool(draw: Any, program: Program, mesh: Any) -> None:
    i = _pick(draw, program, lambda s: len(s) >= 2)
    if i is None:
        return
    shape = program.shapes[i]
    window = draw(st.integers(1, min(3, shape[1])))
    stride = draw(st.integers(1, 3))
    low, high = draw(st.integers(0, window - 1)), draw(st.integers(0, window - 1))
    rest = (1,) * (len(shape) - 2)
    dims, strides = (1, window, *rest), (1, stride, *rest)
    padding = ((0, 0), (low, high), *((0, 0),) * len(rest))
    init, kind = draw(st.sampled_from([(0.0, "add"), (-np.inf, "max")]))
    rows = (shape[1] + low + high - window) // stride + 1
    program.add(
        f"{kind} of windows of {window}, stride {stride}, padding {low, high} over v{i}",
        lambda v, i=i: reduce_window(v[i], np.float32(init), kind, dims, strides, padding),
        (shape[0], rows, *shape[2:]),
    )


def _softmax(draw: Any, program: Program, mesh: Any) -> None:
    i = _pick(draw, program, lambda s: len(s) >= 1)
    if i is not None:
        program.add(f"softmax v{i}", lambda v, i=i: nn.softmax(v[i]), program.shapes[i])


def _body(draw: Any, program: Program, mesh: Any, inputs: Sequence[Shape], result: Shape) -> Program:
    """A small program with a result of the shape ``result``, which is that of one of its inputs."""
    body = Program(list(inputs), shapes=list(inputs), depth=program.depth + 1)
    for _ in range(draw(st.integers(1, 3))):
        makers[draw(st.sampled_from(sorted(makers)))](draw, body, mesh)
    fitting = [i for i, s in enumerate(body.shapes) if s == result]
    body.outputs = [fitting[-1], draw(st.sampled_from(range(len(body.shapes))))]
    program.reversible &= body.reversible
    return body


#: values stay near 1, however often a loop goes round; with a linear one, it may add up partial sums
_BOUNDED = {"tanh": mnp.tanh, "quarter": lambda x: x * 0.25}


def _cond(draw: Any, program: Program, mesh: Any) -> None:
    i, j = _pick(draw, program), _pick(draw, program)
    if i is None or j is None or program.depth > 1:
        return
    shapes = [program.shapes[i], program.shapes[j]]
    branches = [_body(draw, program, mesh, shapes, shapes[0]) for _ in range(2)]
    program.add(
        f"if sum(v{j}) > 0.1\n{_indented(branches[0])}\nelse\n{_indented(branches[1])}\nof v{i} v{j}",
        lambda v, i=i, j=j, b=branches: lax.cond(
            mnp.sum(v[j]) > 0.1, lambda x, y: b[0](x, y)[0], lambda x, y: b[1](x, y)[0], v[i], v[j]
        ),
        shapes[0],
    )


def _loop(draw: Any, program: Program, mesh: Any) -> None:
    i, j = _pick(draw, program), _pick(draw, program)
    if i is None or j is None or program.depth > 1:
        return
    shapes = [program.shapes[i], program.shapes[j]]
    body, n, counted = _body(draw, program, mesh, shapes, shapes[0]), draw(st.integers(0, 3)), draw(st.booleans())
    program.reversible &= counted
    bounded = draw(st.sampled_from(sorted(_BOUNDED)))

    def step(v: Sequence[Any]) -> Any:
        def once(x: Any) -> Any:
            return _BOUNDED[bounded](body(x, v[j])[0])

        if counted:
            return lax.fori_loop(0, n, lambda _, x: once(x), v[i])
        until = lax.while_loop(
            lambda state: (state[0] < n) & (mnp.sum(state[1]) < 50), lambda state: (state[0] + 1, once(state[1])),
            (0, v[i]),
        )  # fmt: skip
        return until[1]

    program.add(f"{'for' if counted else 'while'} {n} {bounded}\n{_indented(body)}\nof v{i} v{j}", step, shapes[0])


def _scan(draw: Any, program: Program, mesh: Any) -> None:
    i, k = _pick(draw, program), _pick(draw, program)
    j = _pick(draw, program, lambda s: len(s) >= 1 and s[0] <= 5)
    if i is None or j is None or k is None or program.depth > 1:
        return
    rows = program.shapes[j]
    shapes = [program.shapes[i], rows[1:], program.shapes[k]]
    body, reverse = _body(draw, program, mesh, shapes, shapes[0]), draw(st.booleans())
    stacked, bounded = body.shapes[body.outputs[1]], draw(st.sampled_from(sorted(_BOUNDED)))

    def step(v: Sequence[Any]) -> Any:
        def once(carry: Any, x: Any) -> tuple[Any, Any]:
            new, out = body(carry, x, v[k])
            return _BOUNDED[bounded](new), out

        return lax.scan(once, v[i], v[j], reverse=reverse)

    number = len(program.shapes)
    text = f"scan {bounded}{' reversed' * reverse}\n{_indented(body)}\nof v{i} over v{j} with v{k}"
    program.add(f"carry of {text}", lambda v: step(v)[0], shapes[0])
    if math.prod(stacked) * rows[0] <= 4096 * SCALE.get() ** 2 and len(stacked) < 4:
        program.add(f"stack of the scan of v{number}", lambda v: step(v)[1], (rows[0], *stacked))


def _indented(body: Program) -> str:
    return "\n".join("    " + line for line in repr(body).split("\n"))


def _constrain(draw: Any, program: Program, mesh: Any) -> None:
    i = _pick(draw, program, lambda s: len(s) >= 1)
    if i is not None:
        sharding = NamedSharding(mesh, draw(specs(mesh, len(program.shapes[i]))))
        program.add(
            f"constrain v{i} to {sharding.spec}",
            lambda v, i=i, s=sharding: v[i] if WITHOUT_MESH.get() else mw.with_sharding_constraint(v[i], s),
            program.shapes[i],
        )


makers: dict[str, Callable[[Any, Program, Any], None]] = {
    "unary": _unary, "binary": _binary, "binary2": _binary, "matmul": _matmul, "matmul2": _matmul, "reduce": _reduce,
    "transpose": _transpose, "reshape": _reshape, "slice": _slice, "pad": _pad, "concatenate": _concatenate,
    "reverse": _along("reverse", lambda x, d: mnp.flip(x, d)),
    "cumsum": _along("cumsum", lambda x, d: mnp.cumsum(x, d)),
    "sort": _along("sort", lambda x, d: mnp.sort(x, d)), "take": _take, "row": _row, "wrap": _wrap,
    "roll": _along("roll", lambda x, d: mnp.roll(x, 1, d)), "cholesky": _cholesky,
    "fft": _along("fft", lambda x, d: mnp.fft.fft(x, axis=d).real), "scatter": _scatter, "conv": _conv,
    "pool": _pool,
    "softmax": _softmax, "constrain": _constrain, "cond": _cond, "loop": _loop, "scan": _scan,
}  # fmt: skip


@st.composite
def specs(draw: Any, mesh: mw.AbstractMesh | mw.Mesh, ndim: int) -> P:
    """Every axis on some dimension, or on none; in either order where two share one."""
    dims: list[list[str]] = [[] for _ in range(ndim)]
    for axis in draw(st.permutations(mesh.axis_names)):
        d = draw(st.integers(-1, ndim - 1))
        if d >= 0:
            dims[d].append(axis)
    return P(*(tuple(d) if d else None for d in dims))
