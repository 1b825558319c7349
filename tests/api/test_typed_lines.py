"""Lines as one types them in a notebook, evaluated with both libraries: the same values, types and kinds of errors."""

from __future__ import annotations

import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.sparse.linalg
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.errors import MeshwrightError

LINES = {
    "numbers of arrays": (
        "round(jnp.arange(5.) / 3)", "round(jnp.arange(5.) / 3, 1)", "round(jnp.float32(2.5))", "round(jnp.arange(3))",
        "math.floor(jnp.float32(-2.5))", "math.ceil(jnp.float32(2.5))", "range(math.floor(jnp.float32(3.7)))",
        "operator.index(jnp.int8(3))",
    ),
    "array methods": (
        "jnp.ones((3, 4)).platform()", "jnp.ones((3, 4)).on_device_size_in_bytes()",
        "(lambda x: x.unsafe_buffer_pointer() == x.unsafe_buffer_pointer())(jnp.ones(3))",
    ),
    "updates with integers": (
        "jnp.arange(3).at[0].set(2**31)", "jnp.arange(3).at[0].add(-2**31 - 1)", "jnp.arange(3).at[0].set(2**31 - 1)",
        "jnp.zeros(3, 'uint8').at[0].set(-1)", "jnp.zeros(3, 'int8').at[0].set(200)",
    ),
    "types": (
        "len(jax.ShapeDtypeStruct((2, 3), 'int8'))", "len(jax.ShapeDtypeStruct((), 'int8'))",
        "jax.eval_shape(lambda x: x, 2).weak_type", "jax.eval_shape(lambda x: x + 1, jnp.ones(2)).weak_type",
        "jax.make_jaxpr(lambda x: x, return_shape=True)(2.)[1].weak_type",
    ),
    "placement": (
        "jax.device_get({'a': jnp.ones(2), 'b': [1, 'x', None, 2.5, np.float32(1), np.ones(2)]})",
        "type(jax.device_get(1)).__name__",
        "jax.make_array_from_process_local_data(S('x'), {'a': np.ones((8, 2)), 'b': [np.arange(8.)]})",
        "jax.make_array_from_process_local_data(S('x'), [np.ones((8, 2)), np.arange(8)], [(8, 2), (8,)])",
        "jax.make_array_from_process_local_data({'a': S('x'), 'b': S()}, {'a': np.ones(8), 'b': np.ones(3)})",
        "S('x').update(spec=P('x', None)).spec == P('x', None)", "S('x').check_compatible_aval((8, 4))",
        "S('x', None).check_compatible_aval((8,))", "P('x') + P(None, 'y') == P('x', None, 'y')",
        "P('x') + ('y',) == P('x', 'y')", "type(P('x') + P('y')) is P",
    ),
    "functions": (
        "jnp.array(range(4))", "jnp.asarray(range(2, 8, 3), 'int8')",
        "lax.cond(True, 3., lambda x: x + 1, 4., lambda x: -x)",
        "lax.cond(False, 3., lambda x: x + 1, 4., lambda x: -x)",
        "jax.jit(lambda p: lax.cond(p, 3., lambda x: x + 1, 4., lambda x: -x))(False)",
        "lax.cond(True, lambda x, y: x, lambda x, y: y, 1., 2.)", "lax.cond(True, 3., lambda x: x, lambda x: x, 4.)",
        "Held() + jnp.ones(2)", "jnp.ones(2) - Held()", "jax.jit(lambda x: Held() - x)(jnp.ones(2))",
        "isinstance(jax.jit(lambda x: x), jax.stages.Wrapped)",
    ),
    "in order": (
        "jax.jit(lambda p: lax.cond(p, lambda: note(1.), lambda: note(2.)))(True)", "noted()",
        "jax.jit(lambda i: lax.switch(i, [lambda: note(1.), lambda: note(2.), lambda: note(3.)]))(2)", "noted()",
        "jax.scipy.sparse.linalg.gmres(jnp.eye(2), jnp.ones(2))[1]",
        "jax.scipy.sparse.linalg.cg(jnp.eye(2), jnp.ones(2))[1]",
        "jax.scipy.sparse.linalg.gmres(jnp.eye(2), jnp.array([1., jnp.nan]))[1]",
    ),
    "transposes": (
        "jax.linear_transpose(lambda x: 2 * x, 1.)(3.)", "jax.linear_transpose(lambda x: 2 * x, 1)(3)",
        "jax.linear_transpose(lambda x: 2 * x, jnp.ones(2))(jnp.ones(2))",
        "jax.vjp(lambda x: x * x, 2.)[1]()", "jax.vjp(lambda x: x * x, 2.)[1](1., 1.)",
        "jax.vjp(lambda x, y: x * y, 2., 3.)[1](1.)",
    ),
    "associative_scan": (
        "lax.associative_scan(jnp.add, jnp.arange(5), axis=1)", "lax.associative_scan(jnp.add, jnp.arange(5), axis=-2)",
        "lax.associative_scan(jnp.add, jnp.arange(6).reshape(2, 3), axis=-1)",
    ),
}  # fmt: skip


class _Held:
    """Stands for an array, as parameters of modules do."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __jax_array__(self) -> Any:
        return self.array


def _scope(library: Any, numpy: Any) -> dict[str, Any]:
    mesh = library.make_mesh((1, 1), ("x", "y"), axis_types=(library.sharding.AxisType.Auto,) * 2)
    spec = library.sharding.PartitionSpec
    noted: list[float] = []

    def note(x: float) -> float:
        noted.append(x)
        return x

    return {
        "note": note, "noted": lambda: list(noted),
        "jax": library, "jnp": numpy, "lax": library.lax, "np": np, "math": math, "operator": operator, "P": spec,
        "Held": lambda: _Held(numpy.arange(2.)),
        "S": lambda *entries: library.sharding.NamedSharding(mesh, spec(*entries)),
    }  # fmt: skip


def _described(x: Any) -> Any:
    """A leaf as something that can be compared."""
    if hasattr(x, "sharding") and hasattr(x, "dtype"):
        return "array", str(x.dtype), x.shape, x.weak_type, np.asarray(x).tolist()
    if isinstance(x, (np.ndarray, np.generic)):
        return "NumPy", str(x.dtype), x.shape, x.tolist()
    return x


def _outcome(line: str, scope: dict[str, Any]) -> Any:
    library = scope["jax"]
    try:
        leaves, tree = library.tree.flatten(eval(line, scope))
    except Exception as error:
        return error
    return [_described(x) for x in leaves], str(tree).partition("(")[2].split(", namespace")[0]


@pytest.mark.parametrize("kind", LINES)
def test_lines_mean_the_same(kind: str) -> None:
    wrong, ours, theirs = [], _scope(mw, mnp), _scope(jax, jnp)
    for line in LINES[kind]:
        got, want = _outcome(line, ours), _outcome(line, theirs)
        if isinstance(want, Exception):
            same = isinstance(got, MeshwrightError) and isinstance(got, (TypeError, ValueError, OverflowError))
        else:
            same = not isinstance(got, Exception) and got == want
        if not same:
            wrong.append(f"{line}: {got!r}, not {want!r}")
    assert not wrong, "\n".join(wrong)
