"""Random programs as Python text, which means the same to JAX and to us: a line is a call on earlier values.

What a line may be is found by running it with JAX, which so decides what is valid. Every value is kept, so that a
failing program can be cut down to the one line that fails.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as onp
from forms import AROUND, CONTROL, INDEXED, PLACES, SHAPED
from library_forms import LIBRARY, LOWER
from walk import Typed, by_jax, typed

Rng = onp.random.Generator
SHAPES = ((), (), (1,), (3,), (4,), (2, 3), (3, 4), (4, 2), (3, 3), (2, 3, 4), (1, 4), (0,), (2, 0))
DTYPES = (
    ("float32",) * 6
    + ("float64",) * 5
    + ("bfloat16", "float16", "complex64", "complex128", "int32", "int32", "bool")
    + ("uint8", "int8", "int16", "uint16", "uint32", "int64", "uint64")
)
SPECIAL = (0.0, -0.0, onp.inf, -onp.inf, onp.nan, 1.0, -1.0, 0.5, 2.0, 1e-30, 1e30)
#: numbers beside which others are lost in narrow types
HUGE = 1e6
#: most elements of a value
LARGEST = 200
#: so many programs in a row share a palette of shapes and dtypes
BLOCK = 400

UNARY = """
abs acos acosh arccos arcsin arcsinh arctan arctanh asinh atanh cbrt ceil conj cos cosh deg2rad exp exp2 expm1
fabs fix floor i0 imag isfinite isinf isnan isneginf isposinf log log10 log1p log2 logical_not negative positive
rad2deg real reciprocal rint sign signbit sin sinc sinh spacing sqrt square tan tanh trunc nan_to_num angle
invert
""".split()
BINARY = """
add subtract multiply divide maximum minimum power arctan2 hypot logaddexp logaddexp2 copysign fmax fmin fmod
mod remainder floor_divide heaviside nextafter equal not_equal less less_equal greater greater_equal logical_and
logical_or logical_xor bitwise_and bitwise_or bitwise_xor left_shift right_shift gcd lcm ldexp float_power
true_divide
""".split()
REDUCE = """
sum prod mean max min any all std var median ptp nansum nanmean nanmax nanmin nanprod nanstd nanvar argmax
argmin count_nonzero amax amin nanmedian
""".split()
CUMULATIVE = "cumsum cumprod nancumsum nancumprod sort argsort flip".split()
MATRIX = "tril triu diag trace diagonal transpose flipud fliplr rot90".split()
NN = """
celu elu gelu hard_sigmoid hard_silu hard_tanh leaky_relu log_sigmoid mish relu relu6 selu sigmoid silu
soft_sign softplus sparse_plus sparse_sigmoid squareplus
""".split()
ALONG = "softmax log_softmax logsumexp standardize".split()
LAX = """
rsqrt erf erfc erf_inv lgamma digamma logistic is_finite round cbrt sign population_count clz tan asinh
bessel_i0e bessel_i1e reciprocal
""".split()
LAX_CUMULATIVE = "cummax cummin cumsum cumprod cumlogsumexp".split()
NUMBERS = ("2", "0", "-1", "3", "0.5", "2.0", "-1.5", "True", "1j")


@dataclass(frozen=True)
class Case:
    """A program: named inputs, lines ``(name, expression)``, and the names of its results. ``x64``: with wide types."""

    inputs: Mapping[str, Any]
    lines: tuple[tuple[str, str], ...]
    outputs: tuple[str, ...]
    x64: bool
    seed: int = 0
    #: the value of every name, by JAX
    values: Mapping[str, Typed] = field(default_factory=dict, repr=False)
    #: whether its inputs are those with which ``values`` were computed, as weakly typed
    drawn: bool = False

    def function(self, namespace: Mapping[str, Any]) -> Callable[..., tuple[Any, ...]]:
        """The program with the modules of ``namespace``, a function of the inputs."""
        body = "".join(f"    {name} = {expression}\n" for name, expression in self.lines)
        text = f"def program({', '.join(self.inputs)}):\n{body}    return {', '.join(self.outputs)},\n"
        scope = dict(namespace)
        exec(text, scope)
        return scope["program"]

    def __str__(self) -> str:
        inputs = "".join(f"{name} = {_literal(value)}\n" for name, value in self.inputs.items())
        lines = "".join(f"{name} = {expression}\n" for name, expression in self.lines)
        return f"# seed {self.seed}, enable_x64({self.x64})\n{inputs}{lines}print({', '.join(self.outputs)})"

    @property
    def is_wide(self) -> bool:
        """Whether it has no numbers narrower than float64."""
        return all(_wide(v) is v for v in (*self.inputs.values(), *map(onp.asarray, self.values.values())))

    def widened(self) -> Case:
        """The program of float64 inputs."""
        return replace(self, inputs={n: _wide(v) for n, v in self.inputs.items()}, x64=True, values={}, drawn=False)

    def of_floats(self) -> Case:
        """The program of its numbers as float64, integers too."""
        floats = {n: v.astype(onp.float64) if _whole(v) else v for n, v in self.widened().inputs.items()}
        return replace(self.widened(), inputs=floats)

    def tamed(self) -> Case:
        """The program with 3 for numbers that are huge, and 1/3 for those that hardly differ from 0."""
        return replace(self, inputs={n: _tame(v) for n, v in self.inputs.items()}, drawn=False)

    def rounded(self, rng: Rng, steps: int) -> Case:
        """The program of floats that are rounded otherwise, by up to so many steps."""
        inputs = {n: _rounded(v, rng, steps) for n, v in self.inputs.items()}
        return replace(self, inputs=inputs, drawn=False)

    # --- smaller ones ---------------------------------------------------------------------------------------
    def of_output(self, name: str) -> Case:
        """The part that makes one value."""
        needed, lines = {name}, []
        for made, expression in reversed(self.lines):
            if made in needed:
                lines.append((made, expression))
                needed |= {n for n in (*self.inputs, *self.values) if _mentions(expression, n)}
        inputs = {n: v for n, v in self.inputs.items() if n in needed}
        return replace(self, inputs=inputs, lines=tuple(reversed(lines)), outputs=(name,))

    def with_input(self, name: str) -> Case:
        """The program with one of its values as an input."""
        value = onp.asarray(self.values[name])
        lines = tuple(line for line in self.lines if line[0] != name)
        inputs = {**self.inputs, name: value}
        return replace(self, inputs=inputs, lines=lines, drawn=False).of_output(self.outputs[0])

    def smaller(self) -> list[Case]:
        """Programs to try in its place: of one result, with less before it."""
        if len(self.outputs) > 1 or (self.lines and self.outputs[0] != self.lines[-1][0]):
            return [self.of_output(name) for name, _ in self.lines]
        inner = [self.with_input(name) for name, _ in self.lines[:-1]]
        return [*inner, *(self.of_output(name) for name, _ in self.lines[:-1])]


def shrunk(case: Case, fails: Callable[[Case], bool]) -> Case:
    """The smallest program found that still fails."""
    while True:
        better = next((c for c in case.smaller() if c != case and c.lines and fails(c)), None)
        if better is None:
            return case
        case = better


def _mentions(expression: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", expression) is not None


def _wide(value: Any) -> Any:
    """An array of floats in float64; anything else as it is."""
    kind = value.dtype if isinstance(value, onp.ndarray) else onp.dtype(int)
    if not jnp.issubdtype(kind, jnp.inexact) or kind.itemsize == (16 if kind.kind == "c" else 8):
        return value
    return value.astype(onp.complex128 if kind.kind == "c" else onp.float64)


def _rounded(value: Any, rng: Rng, steps: int) -> Any:
    if not (isinstance(value, onp.ndarray) and jnp.issubdtype(value.dtype, jnp.inexact)):
        return value
    return (value * (1 + steps * float(jnp.finfo(value.dtype).eps) * rng.uniform(-1, 1, value.shape))).astype(
        value.dtype
    )


def _tame(value: Any) -> Any:
    if not (isinstance(value, onp.ndarray) and jnp.issubdtype(value.dtype, jnp.inexact)):
        return value
    size = onp.abs(value.astype(onp.complex128))
    value = onp.where(onp.isfinite(size) & (size > HUGE), value.dtype.type(3), value)
    return onp.where((size > 0) & (size < 1 / HUGE), value.dtype.type(1 / 3), value)


def _whole(value: Any) -> bool:
    return isinstance(value, onp.ndarray) and value.dtype.kind in "iu"


def _literal(value: Any) -> str:
    if not isinstance(value, onp.ndarray):
        return repr(value)
    numbers = value.astype(
        complex if value.dtype.kind == "c" else float if value.dtype.kind not in "biu" else value.dtype
    )
    return f"np.array({numbers.tolist()!r}, {value.dtype.name!r})".replace("nan", "np.nan").replace("inf", "np.inf")


def namespace(jax_: Any, np_: Any, lax_: Any, nn_: Any) -> dict[str, Any]:
    """What lines may name, for one of the two libraries: functions with rules of their own among it."""

    @jax_.custom_jvp
    def custom_sine(x: Any) -> Any:
        return np_.sin(x)

    custom_sine.defjvp(lambda primals, tangents: (custom_sine(*primals), 3 * np_.cos(primals[0]) * tangents[0]))

    @jax_.custom_vjp
    def custom_product(x: Any, y: Any) -> Any:
        return x * y

    custom_product.defvjp(
        lambda x, y: (x * y, (x, y)), lambda kept, ct: (np_.sum(ct) * 0 + kept[0] * 2, kept[1] * np_.mean(ct))
    )

    @jax_.custom_jvp
    def custom_branch(x: Any) -> Any:
        return lax_.cond(np_.sum(x) > 0, lambda a: a * 2, lambda a: a, x)

    @custom_branch.defjvp
    def _branch(primals: Any, tangents: Any) -> Any:
        return custom_branch(primals[0]), lax_.cond(np_.sum(primals[0]) > 0, lambda t: t * 5, lambda t: -t, tangents[0])

    return {
        "np": np_, "lax": lax_, "nn": nn_, "jax": jax_, "custom_sine": custom_sine, "custom_product": custom_product,
        "custom_branch": custom_branch,
    }  # fmt: skip


# --- drawing ------------------------------------------------------------------------------------------------
def random_case(seed: int) -> Case:
    """Program number ``seed``."""
    rng = onp.random.default_rng(seed)
    x64 = seed // BLOCK % 2 == 1
    with jax.enable_x64(x64), warnings.catch_warnings(), onp.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        inputs = {f"x{i}": _input(rng, _palette(seed)) for i in range(rng.integers(1, 4))}
        values = {n: typed(v) for n, v in inputs.items()}
        lines: list[tuple[str, str]] = []
        scope = namespace(jax, jnp, jax.lax, jax.nn)
        for _ in range(60):
            if len(lines) == 1 + seed % 4:
                break
            expression = _expression(rng, values)
            value = _evaluated(rng, expression, scope, values)
            if value is not None:
                expression, result = value
                lines.append((f"v{len(lines)}", expression))
                values[lines[-1][0]] = result
    return Case(inputs, tuple(lines), tuple(n for n, _ in lines) or ("x0",), x64, seed, values, True)


def _evaluated(rng: Rng, expression: str, scope: dict[str, Any], values: Mapping[str, Typed]) -> Any:
    """The expression (of one of its parts, if it is a tuple), and its value; None where JAX refuses it."""
    names = [n for n in values if _mentions(expression, n)]
    parts = 0

    def line(*args: Any) -> Any:
        nonlocal parts
        result = eval(expression, {**scope, **dict(zip(names, args))})
        parts = len(result) if isinstance(result, (tuple, list)) else 0
        return result

    try:
        results = by_jax(line, *(values[n] for n in names))
    except Exception:
        return None
    if len(results) != (parts or 1) or any(r.value.size > LARGEST for r in results):
        return None
    if not parts:
        return expression, results[0]
    part = int(rng.integers(parts))
    return f"({expression})[{part}]", results[part]


def _palette(seed: int) -> tuple[list[Any], list[str]]:
    """The few shapes and dtypes that neighbouring programs share: what was compiled for one serves the next."""
    rng = onp.random.default_rng((seed // BLOCK, 2))
    shapes = [SHAPES[i] for i in rng.choice(len(SHAPES), 3, replace=False)]
    return shapes, [DTYPES[i] for i in rng.integers(len(DTYPES), size=3)]


def _input(rng: Rng, palette: tuple[list[Any], list[str]]) -> Any:
    if rng.random() < 0.1:
        return eval(NUMBERS[rng.integers(len(NUMBERS))])
    shapes, kinds = palette
    shape, dtype = shapes[rng.integers(len(shapes))], jnp.dtype(kinds[rng.integers(len(kinds))])
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    if dtype.kind in "iu":
        return onp.asarray(rng.integers(0 if dtype.kind == "u" else -4, 7, shape)).astype(dtype)
    value = rng.normal(size=shape) * (2 if rng.random() < 0.5 else 1)
    if rng.random() < 0.25:
        value = onp.where(rng.random(shape) < 0.4, rng.choice(SPECIAL, shape), value)
    if rng.random() < 0.15:
        value = onp.round(value)
    if dtype.kind == "b":
        return onp.asarray(value > 0)
    return onp.asarray(value + 1j * rng.normal(size=shape) if dtype.kind == "c" else value).astype(dtype)


def _pick(rng: Rng, names: Any) -> str:
    return names[int(rng.integers(len(names)))]


def _expression(rng: Rng, values: Mapping[str, Any]) -> str:
    names = list(values)
    x = names[-1] if rng.random() < 0.5 else _pick(rng, names)
    y = _pick(rng, NUMBERS) if rng.random() < 0.25 else _pick(rng, names)
    ndim = values[x].value.ndim
    axis = int(rng.integers(-ndim, ndim)) if ndim else None
    return _pick(rng, MAKERS)(rng, x, y, axis, values)


Maker = Callable[[Rng, str, str, Any, Mapping[str, Any]], str]


def _of(module: str, table: list[str], form: str) -> Maker:
    """A function of a table, applied as ``form`` says."""
    return lambda rng, x, y, axis, values: f"{module}.{_pick(rng, table)}({form.format(x=x, y=y, axis=axis)})"


def _operator(rng: Rng, x: str, y: str, axis: Any, values: Any) -> str:
    op = _pick(rng, ["+", "-", "*", "/", "//", "%", "**", "@", "<", "==", "&", "|", "^"])
    return f"{x} {op} {y}" if rng.random() < 0.7 else f"{y} {op} {x}"


def _reduction(rng: Rng, x: str, y: str, axis: Any, values: Any) -> str:
    kept = ", keepdims=True" if rng.random() < 0.3 else ""
    return f"np.{_pick(rng, REDUCE)}({x}, axis={axis if rng.random() < 0.8 else None}{kept})"


def _from(table: list[str]) -> Maker:
    return lambda rng, x, y, axis, values: _pick(rng, table).format(x=x, y=y, axis=axis)


MAKERS: list[Maker] = [
    _of("np", UNARY, "{x}"), _of("np", UNARY, "{x}"), _of("np", BINARY, "{x}, {y}"), _of("np", BINARY, "{y}, {x}"),
    _operator, _reduction, _of("np", CUMULATIVE, "{x}, axis={axis}"), _of("np", MATRIX, "{x}"), _of("nn", NN, "{x}"),
    _of("nn", ALONG, "{x}, axis={axis}"), _of("lax", LAX, "{x}"), _of("lax", LAX_CUMULATIVE, "{x}, axis=0"),
    _from(INDEXED), _from(INDEXED), _from(SHAPED), _from(SHAPED), _from(CONTROL), _from(PLACES), _from(LIBRARY),
    _from(LIBRARY), _from(LOWER), _from(AROUND), _from(AROUND),
]  # fmt: skip
