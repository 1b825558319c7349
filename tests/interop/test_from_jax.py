"""JAX's programs in every form, with trees, names, shardings, donation and unused arguments; ours as JAX's."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402
from jax import export  # noqa: E402
from jax.experimental import io_callback  # noqa: E402
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec  # noqa: E402

import meshwright as mw  # noqa: E402
import meshwright.numpy as mnp  # noqa: E402
from meshwright import errors  # noqa: E402


class State:
    """A node that JAX knows and we do not, as the states of flax and equinox are."""

    def __init__(self, w, u):
        self.w, self.u = w, u


jax.tree_util.register_pytree_with_keys(
    State,
    lambda s: (((jax.tree_util.GetAttrKey("w"), s.w), (jax.tree_util.GetAttrKey("u"), s.u)), None),
    lambda _, children: State(*children),
)


def step(state, x, *, scale):
    return State(state.w * scale, state.w @ x), {"norm": (x * x).sum()}


STATE = State(jnp.arange(64.0).reshape(8, 8) / 64, jnp.zeros(3))
X = jnp.arange(16.0).reshape(8, 2)


def check(program):
    got, aux = program(STATE, X, scale=jnp.float32(2))
    want, other = step(STATE, X, scale=2.0)
    assert isinstance(got, State) and isinstance(got.w, mw.Array)
    np.testing.assert_allclose(got.w, want.w, rtol=1e-6)
    np.testing.assert_allclose(got.u, want.u, rtol=1e-6)
    np.testing.assert_allclose(aux["norm"], other["norm"], rtol=1e-6)


FORMS = {
    "function": lambda: mw.from_jax(step),
    "traced function": lambda: mw.from_jax(step, STATE, X, scale=jnp.float32(2)),
    "jitted": lambda: mw.from_jax(jax.jit(step)),
    "lowered": lambda: mw.from_jax(jax.jit(step).lower(STATE, X, scale=jnp.float32(2))),
    "exported": lambda: mw.from_jax(_exported()),
    "bytes": lambda: mw.from_jax(bytes(_exported().serialize())),
}


def _exported():
    leaves = jax.tree_util.tree_leaves(((STATE, X), {"scale": jnp.float32(2)}))

    def flat(w, u, x, scale):
        new, aux = step(State(w, u), x, scale=scale)
        return new.w, new.u, aux

    return export.export(jax.jit(flat))(*leaves)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_keeps_trees_and_unused_arguments(form):
    if form == "bytes":
        pytest.importorskip("flatbuffers", reason="JAX needs flatbuffers to serialize")
    program = FORMS[form]()
    if form in ("exported", "bytes"):
        _, u, _ = program(STATE.w, STATE.u, X, jnp.float32(2))
        np.testing.assert_allclose(u, STATE.w @ X, rtol=1e-6)
        return
    check(program)


def test_modules_and_texts():
    lowered = jax.jit(lambda x: x + 1).lower(X)
    for form in (lowered.as_text(), lowered.compiler_ir("stablehlo")):
        np.testing.assert_array_equal(mw.from_jax(form)(np.asarray(X)), X + 1)


def test_what_jax_would_be_given_is_given_away(refuses):
    f = jax.jit(lambda state, x: ({"w": state["w"] + x}, x.sum()), donate_argnums=0)
    want, x = np.arange(4096.0, dtype="f4"), np.ones(4096, "f4")
    for step in (mw.from_jax(f), mw.from_jax(f, {"w": want}, x), mw.from_jax(f.lower({"w": want}, x))):
        state = {"w": mnp.asarray(want)}
        place = np.from_dlpack(state["w"]).ctypes.data
        new, total = step(state, x)
        assert state["w"].is_deleted() and np.from_dlpack(new["w"]).ctypes.data == place and total == 4096
        np.testing.assert_array_equal(new["w"], want + 1)
        with refuses(errors.MeshwrightError, "donated"):
            step(state, x)
        inside = mnp.asarray(want)
        np.testing.assert_array_equal(mw.jit(lambda w: step({"w": w}, x)[0]["w"])(inside), want + 1)  # noqa: B023
        theirs = jnp.asarray(want)
        step({"w": theirs}, x)
        np.testing.assert_array_equal(theirs, want)
        np.testing.assert_array_equal(inside, want)
    kept = mnp.asarray(want)
    mw.from_jax(export.export(f)({"w": want}, x))({"w": kept}, x)
    mw.load(f.lower({"w": want}, x).as_text())(kept, x)
    np.testing.assert_array_equal(kept, want)


def test_shardings_names_and_donation():
    mesh = AbstractMesh((4, 2), ("data", "model"))
    by = lambda *spec: NamedSharding(mesh, PartitionSpec(*spec))  # noqa: E731
    f = jax.jit(
        lambda params, x: {"y": x @ params["w"]},
        in_shardings=({"unused": None, "w": by(None, "model")}, by("data", None)),
        donate_argnums=1,
    )
    params = {"unused": jax.ShapeDtypeStruct((3,), "float32"), "w": jax.ShapeDtypeStruct((8, 8), "float32")}
    program = mw.from_jax(f.trace(params, jax.ShapeDtypeStruct((8, 8), "float32")).lower(lowering_platforms=("cpu",)))
    assert [p.name for p in program.parameters] == ["params['w']", "x"]
    assert program.donated == [1]
    part = program.partition()
    assert [s.spec[0] for s in part.in_shardings] == [None, "data"]
    assert part.mesh.axis_names == ("data", "model") and part.collectives == []
    part = program.partition(mw.make_mesh((4, 2), ("data", "model")))
    w, x = np.eye(8, dtype="f4") * 2, np.ones((8, 8), "f4")
    np.testing.assert_array_equal(part({"unused": np.zeros(3, "f4"), "w": w}, x)["y"], 2 * x)
    part.verify()
    ours = mw.interop.jax.from_sharding(by("data", None))
    assert ours.spec == mw.P("data", None) and ours.mesh.axis_sizes == (4, 2)


def test_typed_keys_and_shared_memory():
    program = mw.from_jax(lambda key, x: (jax.random.split(key)[0], jax.random.normal(key, (3,)) + x))
    key = jax.random.key(7)
    new, y = program(key, jnp.zeros(3))
    np.testing.assert_allclose(y, jax.random.normal(key, (3,)), rtol=1e-6)
    np.testing.assert_array_equal(mw.random.key_data(new), jax.random.key_data(jax.random.split(key)[0]))
    mw.jit(lambda *args: program(*args)).trace(mw.random.key(7), mnp.zeros(3))  # although JAX counts in 64 bits
    again, _ = mw.from_jax(lambda key: (jax.random.split(key)[0], key))(mw.random.key(7))
    np.testing.assert_array_equal(mw.random.key_data(again), mw.random.key_data(new))
    x = jnp.arange(64, dtype=jnp.bfloat16)
    ours = mw.interop.jax.from_arrays([x, key])
    assert ours[0].dtype == x.dtype and mw.random.key_data(ours[1]).tolist() == jax.random.key_data(key).tolist()
    assert mnp.from_dlpack(x).buffer.unsafe_buffer_pointer() == x.unsafe_buffer_pointer()
    np.testing.assert_array_equal(jnp.from_dlpack(ours[0]), x)


#: what JAX draws with, of every generator that counts in its own way
DRAWS = {
    "threefry": (lambda k: jax.random.normal(k, (3, 5)), "threefry2x32"),
    "split in a loop": (
        lambda k: jax.lax.scan(lambda k, _: (jax.random.split(k)[0], jax.random.uniform(k, (4,))), k, length=3)[1],
        "threefry2x32",
    ),
    "XLA's": (lambda k: jax.random.normal(k, (3, 5)), "rbg"),
    "XLA's, with keys from it": (lambda k: jax.random.uniform(jax.random.fold_in(k, 2), (5,)), "unsafe_rbg"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWS)
def test_draws_in_traced_functions(name):
    """JAX counts what it draws in 64 bits, which traced functions do not have without ``enable_x64``."""
    draw, impl = DRAWS[name]
    key, ours = jax.random.key(3, impl=impl), mw.random.key(3, impl=impl)
    noisy = mw.from_jax(lambda x, k: (jnp.sin(x) * draw(k)).sum())
    want = jax.grad(lambda x: (jnp.sin(x) * draw(key)).sum())(0.5)
    np.testing.assert_allclose(mw.jit(mw.grad(lambda x, k: noisy(x, k)))(0.5, ours), want, rtol=1e-6)
    split = mw.NamedSharding(mw.make_mesh((2,), ("x",)), mw.P("x"))
    drawn = mw.jit(mw.vmap(lambda k: mw.from_jax(draw)(k)), in_shardings=split)(mw.random.split(ours, 4))
    # XLA's generator draws all of them from the first key, in JAX and here.
    np.testing.assert_allclose(drawn, jax.vmap(draw)(jax.random.split(key, 4)), rtol=1e-6)


def test_what_is_no_program_is_refused(refuses):
    with refuses(errors.ArgumentTypeError, "from_jax", "int"):
        mw.from_jax(3)
    with refuses((errors.ImportProgramError, errors.MissingExtraError), "from_jax"):
        mw.from_jax(b"no program")
    with refuses(errors.ArgumentError, "structure"):
        mw.from_jax(step, STATE, X, scale=jnp.float32(2))(STATE, X)


def test_ours_as_jaxs_with_its_derivative():
    def loss(params, ids, x):
        return {"loss": mnp.sum(mnp.tanh(x @ params["w"])[ids] ** 2), "ids": ids}

    f = mw.to_jax(loss)
    w, ids, x = jnp.arange(12.0).reshape(4, 3) / 12, jnp.array([0, 1, 1]), jnp.ones((2, 4)) / 4
    want = jax.value_and_grad(lambda w: jnp.sum(jnp.tanh(x @ w)[ids] ** 2))(w)
    got = jax.jit(jax.value_and_grad(lambda w: f({"w": w}, ids, x)["loss"]))(w)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-6)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-5)


def test_static_arguments_are_those_of_jit():
    g = jax.jit(lambda x, n, mode="sum": getattr(jnp, mode)(x**n), static_argnums=1, static_argnames="mode")
    f = mw.from_jax(g)
    for n in (2, 3):
        np.testing.assert_allclose(f(X, n), (X**n).sum(), rtol=1e-6)
        np.testing.assert_allclose(f(X, n, mode="max"), (X**n).max(), rtol=1e-6)

    class Layer:
        w = jnp.arange(2.0)

        @partial(jax.jit, static_argnums=0)
        def __call__(self, x):
            return x @ self.w

    layer = Layer()
    np.testing.assert_allclose(mw.from_jax(layer.__call__)(X[:, :2]), layer(X[:, :2]), rtol=1e-6)


def test_weak_types_are_part_of_a_program():
    weak, strong = 1.0 * jnp.asarray(np.int32(3)), jnp.asarray(3.0, jnp.float32)
    f = lambda a, b: a * b  # noqa: E731
    ours, half = mw.from_jax(f), jnp.ones(3, jnp.bfloat16)
    for a in (weak, strong, 3.0, np.float32(3), mnp.asarray(3, "int16") * 1.0):
        theirs = weak if isinstance(a, mw.Array) else a
        assert ours(a, half).dtype == f(theirs, half).dtype
    assert mw.from_jax(lambda x: x * 2)(3.0).weak_type and not mw.from_jax(lambda x: x * 2)(strong).weak_type


def test_shardings_of_arguments_are_part_of_a_program():
    mesh = jax.sharding.AbstractMesh((4, 2), ("a", "b"))
    f = mw.from_jax(lambda x: x @ x.T)
    by = [jax.ShapeDtypeStruct((8, 8), "float32", sharding=NamedSharding(mesh, PartitionSpec(*s))) for s in ("a", "b")]
    first, second = (f.lower(x).parameters[0].sharding for x in by)
    assert first != second


def test_python_functions_that_a_program_calls_are_called():
    seen = []

    def f(x):
        io_callback(lambda v: seen.append(("io", float(v))), None, x[0, 0], ordered=True)

        def body(c, _):
            io_callback(lambda v: seen.append(("loop", float(v))), None, c, ordered=True)
            return c + 1, c

        last, _ = jax.lax.scan(body, x[0, 1], None, 2)
        jax.debug.callback(lambda v: seen.append(("debug", float(v))), last)
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential") + last

    x = np.arange(6, dtype="f4").reshape(2, 3)
    np.testing.assert_allclose(mw.from_jax(f)(x), np.sin(x) + 3, rtol=1e-6)
    assert [s for s in seen if s[0] != "debug"] == [("io", 0.0), ("loop", 1.0), ("loop", 2.0)]
    assert ("debug", 3.0) in seen
    g = mw.from_jax(lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x) * 2)
    part = g.lower(x).partition(num_devices=2)
    np.testing.assert_allclose(part(x), np.sin(x) * 2, rtol=1e-6)
    part.verify()


def test_python_functions_that_did_not_come_with_the_program_are_refused(refuses):
    def text(f):
        return jax.jit(f).lower(X).as_text()

    g = mw.load(text(lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)))
    with refuses(errors.CallbackError, "from_jax", "text"):
        g(np.asarray(X))
    with pytest.warns(errors.ReplicationWarning, match="left out"):
        g = mw.load(text(lambda x: (jax.debug.print("{}", x[0, 0]), x * 2)[1]))
    np.testing.assert_array_equal(g(np.asarray(X)), X * 2)
    ours = mw.to_jax(lambda x: mw.pure_callback(np.sin, mw.ShapeDtypeStruct(x.shape, x.dtype), x))
    with refuses(errors.ImportProgramError, "to_jax", "pure_callback", "test_from_jax.py"):
        ours(X)


def test_what_lives_with_jax_is_refused(refuses):
    ref = jax.new_ref(jnp.zeros(3))

    def add(x):
        ref[...] += x
        return x

    with refuses(errors.ImportProgramError, "jax.Ref"):
        mw.from_jax(add)(jnp.ones(3))


def test_exported_programs_of_symbolic_sizes_are_programs_for_each():
    sizes = export.symbolic_shape("n, 4")
    f = jax.jit(lambda x: (x * x.shape[0], x.reshape(-1).cumsum()))
    ours = mw.from_jax(export.export(f)(jax.ShapeDtypeStruct(sizes, "float32")))
    for n in (3, 5):
        x = np.arange(4 * n, dtype="f4").reshape(n, 4)
        for got, want in zip(ours(x), f(x)):
            np.testing.assert_allclose(got, want, rtol=1e-6)
    ours.partition(x, num_devices=5).verify()


def test_partitioned_programs_run_where_there_are_devices():
    mesh = AbstractMesh((4, 2), ("a", "b"))
    f = jax.jit(lambda x: x.sum(0), in_shardings=NamedSharding(mesh, PartitionSpec("a")))
    program = mw.from_jax(f.trace(jax.ShapeDtypeStruct((8, 3), "float32")).lower(lowering_platforms=("cpu",)))
    x = np.arange(24, dtype="f4").reshape(8, 3)
    for part in (program.partition(), program.partition(mesh)):
        np.testing.assert_allclose(part(x), x.sum(0))


def test_ours_as_jaxs_are_batched_and_differentiated_again():
    x = jnp.arange(1.0, 5.0) / 4
    f = mw.to_jax(lambda x: mnp.sin(x).prod())
    want = jax.hessian(lambda x: jnp.sin(x).prod())(x)
    np.testing.assert_allclose(jax.jacrev(jax.jacrev(f))(x), want, rtol=1e-5)
    sine = mw.to_jax(mnp.sin)
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(jax.grad(sine))))(x), -jnp.sin(x), rtol=1e-5)
    np.testing.assert_allclose(jax.grad(lambda x: jax.vmap(sine)(x).sum())(x), jnp.cos(x), rtol=1e-5)
    product = mw.to_jax(lambda a, b: a @ b)
    a, b = jnp.arange(24.0).reshape(2, 3, 4), jnp.arange(8.0).reshape(4, 2)
    np.testing.assert_allclose(jax.vmap(product, (2, None), 1)(jnp.moveaxis(a, 0, 2), b), jnp.moveaxis(a @ b, 0, 1))
    # whose backward program needs no operand but the integers
    chosen = jax.grad(lambda x: mw.to_jax(lambda i, x: x[i])(jnp.array([0, 2, 2]), x).sum())(x)
    np.testing.assert_allclose(chosen, [1, 0, 2, 0])


def test_ours_as_jaxs_take_keys_weak_numbers_and_static_arguments():
    key, half = jax.random.key(3), jnp.ones(3, jnp.bfloat16)
    new, y = mw.to_jax(lambda k, x: (mw.random.split(k)[0], mw.random.normal(k, (3,)) + x))(key, 1.0)
    np.testing.assert_allclose(y, jax.random.normal(key, (3,)) + 1, rtol=1e-6)
    assert new.dtype == key.dtype
    np.testing.assert_array_equal(jax.random.key_data(new), jax.random.key_data(jax.random.split(key)[0]))
    product = mw.to_jax(lambda a, b: a * b)
    assert product(3.0, half).dtype == jnp.bfloat16 and product(jnp.float32(3), half).dtype == jnp.float32
    reduced = mw.to_jax(lambda x, how, axis=None: getattr(mnp, how)(x, axis))
    np.testing.assert_allclose(reduced(X, "max", axis=None), X.max())
    with jax.enable_x64(True):
        third = mw.to_jax(lambda x: x / 3)(jnp.float64(1))
        assert third.dtype == jnp.float64 and abs(float(third) - 1 / 3) < 1e-15


def test_derivatives_are_by_jaxs_rules():
    @jax.custom_vjp
    def tripled(x):
        return jnp.sin(x)

    tripled.defvjp(lambda x: (tripled(x), x), lambda x, ct: (3 * ct * x,))
    for f in (tripled, lambda x: jax.lax.stop_gradient(x) * x, jax.nn.relu, lambda x: jax.nn.relu6(x) ** 2):
        for at in (0.0, 0.25):
            ours, x = mw.from_jax(f), mnp.asarray(at)
            np.testing.assert_allclose(mw.grad(ours)(x), jax.grad(f)(at), rtol=1e-6)
            np.testing.assert_allclose(mw.jit(mw.grad(ours))(x), jax.grad(f)(at), rtol=1e-6)
            np.testing.assert_allclose(mw.grad(mw.grad(ours))(x), jax.grad(jax.grad(f))(at), rtol=1e-6)

    kernel = lambda x: jnp.linalg.cholesky(x * jnp.eye(2) + 1)[1, 1]  # noqa: E731
    np.testing.assert_allclose(mw.grad(mw.from_jax(kernel))(2.0), jax.grad(kernel)(2.0), rtol=1e-6)

    def net(params, x, labels):
        logits = jax.nn.relu(x @ params["w"])
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()

    params, labels = {"w": jnp.sin(jnp.arange(6.0)).reshape(2, 3)}, jnp.array([0, 1, 2, 1])
    want = jax.grad(net)(params, X[:4] / 8, labels)["w"]
    args = {"w": np.asarray(params["w"])}, np.asarray(X[:4] / 8), np.asarray(labels)
    step = mw.jit(mw.grad(mw.from_jax(net)))
    np.testing.assert_allclose(step(*args)["w"], want, rtol=1e-5, atol=1e-7)
    mesh = mw.make_mesh((2,), ("data",))
    step.lower(*args).partition(mesh).verify()
    mapped = mw.vmap(mw.grad(mw.from_jax(tripled)))(mnp.arange(3.0))
    np.testing.assert_allclose(mapped, [0, 3, 6])


def _tripling():
    @jax.custom_jvp
    def tripling(x):
        return jnp.sin(x)

    tripling.defjvp(lambda primals, tangents: (tripling(*primals), 3 * tangents[0] * primals[0]))
    return tripling


def test_forward_mode_is_by_jaxs_rules():
    f, x = _tripling(), np.array([0.25, 1.5], np.float32)
    push, pushed = (lambda x: mw.jvp(mw.from_jax(f), (x,), (2 * x,))[1]), lambda x: jax.jvp(f, (x,), (2 * x,))[1]
    _close(mw.jit(mw.vmap(push))(x[None]), jax.vmap(pushed)(x[None]))
    _close(mw.jit(mw.hessian(lambda x: mw.from_jax(f)(x).sum()))(x), jax.hessian(lambda x: f(x).sum())(x))
    _close(mw.grad(lambda x: push(x).sum())(x), jax.grad(lambda x: pushed(x).sum())(x))
    step = mw.jit(push, in_shardings=mw.NamedSharding(mw.make_mesh((2,), ("i",)), mw.PartitionSpec("i")))
    part = step.lower(x).partition()
    assert not part.collectives
    _close(part(x), pushed(x))


@pytest.mark.slow
@pytest.mark.parametrize("which", ["looped", "kernels", "scanned"])
def test_forward_mode_of_what_has_rules_within(which):
    tripling, x = _tripling(), np.array([0.25, 1.5], np.float32)
    f = {
        "looped": lambda x: jax.lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, tripling(c[1])), (0, x))[1],
        "kernels": lambda x: (jax.scipy.special.gammainc(2.0, x), jnp.linalg.cholesky(x * jnp.eye(2) + 1)),
        "scanned": lambda x: jax.lax.scan(lambda c, u: (tripling(c) * u, jax.nn.relu(c)), 1.0, x),
    }[which]
    push, pushed = (lambda x: mw.jvp(mw.from_jax(f), (x,), (2 * x,))), lambda x: jax.jvp(f, (x,), (2 * x,))
    _close(push(x), pushed(x))
    _close(mw.jit(mw.vmap(push))(x[None]), jax.vmap(pushed)(x[None]))
    _close(mw.jvp(mw.jit(lambda x: push(x)[1]), (x,), (x,)), jax.jvp(lambda x: pushed(x)[1], (x,), (x,)))


def _close(ours, theirs):
    for y, want in zip(mw.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert y.dtype == want.dtype
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


def _divides():
    """A primitive of a library that keeps what it prepared of ``a``, and says nothing of that in its derivative."""
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    divide = Primitive("divide_prepared")
    divide.def_impl(lambda a, prepared, b: b / prepared)
    divide.def_abstract_eval(lambda a, prepared, b: b)

    def jvp(primals, tangents):
        (a, prepared, _), (ta, tprepared, tb) = primals, tangents
        assert type(tprepared) is ad.Zero
        out = divide.bind(*primals)
        moved = ad.instantiate_zeros(tb) - ad.instantiate_zeros(ta) * out
        return out, divide.bind(a, prepared, moved)

    ad.primitive_jvps[divide] = jvp
    ad.primitive_transposes[divide] = lambda ct, a, prepared, b: [None, None, divide.bind(a, prepared, ct)]
    batching.defbroadcasting(divide)
    mlir.register_lowering(divide, mlir.lower_fun(lambda a, prepared, b: b / prepared, multiple_results=False))
    return lambda a, b: divide.bind(a, jax.lax.stop_gradient(a), b)


@pytest.mark.parametrize("order", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_derivatives_of_derivatives_are_of_what_was_asked_and_not_of_what_is_kept(order):
    divided = _divides()
    theirs = jax.jit(lambda x: divided(1 + x * x, jnp.sin(x)) ** 2)
    ours = mw.from_jax(theirs)
    for _ in range(order):
        theirs, ours = jax.grad(theirs), mw.grad(ours)
    _close(mw.jit(ours)(0.5), theirs(0.5))


def _clipped():
    """Rules that are not the derivative of what they are of, and whose values are differentiated as such."""

    @jax.custom_vjp
    def backward(x):
        return jnp.sin(x)

    @jax.custom_jvp
    def forward(x):
        return jnp.sin(x)

    backward.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (3 * ct * jnp.cos(x) * x,))
    forward.defjvp(lambda x, t: (jnp.sin(x[0]), 5 * t[0] * x[0]))
    return lambda x: (backward(x) ** 2 * forward(1 + x)).sum()


@pytest.mark.parametrize("outer, inner", [
    ("grad", "grad"), ("jvp", "grad"), ("jacfwd", "grad"), ("grad", "value"), ("jvp", "value"), ("jvp", "twice"),
])  # fmt: skip
def test_second_derivatives_are_those_of_what_the_rules_evaluate(outer, inner):
    x = np.array([0.5, -1.0, 2.0], np.float32)

    def second(m, f, x):
        first = {
            "grad": lambda x: (m.grad(f)(x) * x).sum(),
            "value": lambda x: m.value_and_grad(f)(x)[0],
            "twice": m.grad(lambda x: (m.grad(f)(x) ** 2).sum()),
        }[inner]
        return m.jvp(first, (x,), (x,))[1] if outer == "jvp" else getattr(m, outer)(first)(x)

    ours = mw.from_jax(_clipped())
    _close(mw.jit(lambda x: second(mw, ours, x))(x), second(jax, _clipped(), x))


@jax.custom_vjp
def _with_clipped_derivative(x):
    return x


_with_clipped_derivative.defvjp(lambda x: (x, None), lambda _, ct: (jnp.clip(ct, -0.3, 0.3),))


def test_backward_rules_that_are_not_linear_get_the_sum_of_what_reaches_them():
    """The value and the derivative by ``x`` both depend on ``p``."""

    def f(p, x):
        return (jnp.sin(_with_clipped_derivative(p) * x) ** 2).sum()

    def derivative(m, f):
        def penalized(p, x):
            value, slope = m.value_and_grad(f, 1)(p, x)
            return value + (slope**2).sum()

        return m.grad(penalized)

    p, x = np.linspace(0.1, 1.2, 5, dtype=np.float32), np.linspace(-1, 1.3, 5, dtype=np.float32)
    want = derivative(jax, f)(p, x)
    assert np.abs(want).max() == np.float32(0.3)  # once, not for each
    _close(derivative(mw, mw.from_jax(f))(p, x), want)


@pytest.mark.parametrize("used", [0, 1])
@pytest.mark.parametrize("order", [1, 2])
def test_backward_rules_are_not_run_for_results_that_nothing_uses(order, used):
    """They may not be finite for cotangents that are zero."""

    @jax.custom_vjp
    def with_unit_derivative(x):
        return x

    with_unit_derivative.defvjp(lambda x: (x, None), lambda _, ct: (ct / jnp.linalg.norm(ct),))

    def f(x):
        return (x**3).sum(), jnp.sin(with_unit_derivative(x)).sum(), 3

    def derivative(m, f):
        first = m.grad(lambda x: f(x)[used])
        return first if order == 1 else m.grad(lambda x: first(x).sum())

    x = np.array([0.3, -0.7, 1.1], np.float32)
    _close(mw.jit(derivative(mw, mw.from_jax(f)))(x), derivative(jax, f)(x))


def test_backward_rules_beside_what_keeps_values_without_derivatives():
    divided, x = _divides(), np.linspace(-1, 1.3, 5, dtype=np.float32)

    def f(x):
        return (_with_clipped_derivative(jnp.sin(x)) ** 2 + divided(x, 2 + x * x)).sum()

    def second(m, f):
        return m.grad(lambda x: (m.grad(f)(x) ** 2).sum())

    _close(mw.jit(second(mw, mw.from_jax(f)))(x), second(jax, f)(x))


def test_functions_with_a_backward_rule_are_checkpointed_and_scanned():
    x = np.array([0.5, -1.0, 2.0], np.float32)

    def summed(m, f):
        step = m.checkpoint(lambda c: f(c) * c)
        return lambda x: m.lax.scan(lambda c, _: (step(c), None), x, None, length=2)[0].sum()

    ours, theirs = summed(mw, mw.from_jax(_clipped())), summed(jax, _clipped())
    for transformed in (mw.grad(ours), mw.jit(mw.grad(ours))):
        _close(transformed(x), jax.grad(theirs)(x))


def test_traces_are_kept_for_the_options_and_mesh_of_jax_under_which_they_were_made():
    def draw(seed):
        count = 1 if jax.sharding.get_abstract_mesh().empty else 2
        return jax.random.uniform(jax.random.key(seed), (3,)) * count

    ours, first = mw.from_jax(draw), np.asarray(draw(3))
    mesh = jax.sharding.AbstractMesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    np.testing.assert_array_equal(ours(3), first)
    with jax.threefry_partitionable(False):
        assert not np.array_equal(draw(3), first)
        np.testing.assert_array_equal(ours(3), draw(3))
    with jax.sharding.use_abstract_mesh(mesh):
        np.testing.assert_array_equal(ours(3), 2 * first)
    np.testing.assert_array_equal(ours(3), first)


@pytest.mark.parametrize("library, other", [("JAX", "Meshwright"), ("Meshwright", "JAX")])
def test_64_bit_types_in_one_library_alone(library, other, refuses):
    on = {"JAX": jax.enable_x64, "Meshwright": mw.enable_x64}
    f = mw.from_jax(lambda x: x * 2)
    with on[library](True), refuses(errors.ShapeError, "f64[3]", f"enabled in {library} and not in {other}", "in both"):
        f(np.ones(3))
    with jax.enable_x64(True), mw.enable_x64(True):
        assert f(np.ones(3)).dtype == np.float64


def test_modes_that_jax_does_not_have_are_refused(refuses):
    f, x = mw.from_jax(_with_rules()), mnp.ones(2)
    with refuses(errors.DifferentiationError, "from_jax", "forward-mode", "to a custom_vjp function", "vjp or jacrev"):
        mw.jvp(f, (x,), (x,))
    with refuses(errors.DifferentiationError, "forward-mode", "to a custom_vjp function"):
        mw.jit(mw.hessian(f))(x)
    looped = mw.from_jax(lambda x: jax.lax.while_loop(lambda c: c[0] < x, lambda c: c * jax.nn.relu(x), jnp.ones(2))[0])
    with refuses(errors.DifferentiationError, "reverse-mode", "while_loop", "jvp or jacfwd"):
        mw.grad(looped)(1.0)

    def closing(x):
        scaled = jax.custom_vjp(lambda y: x * y)
        scaled.defvjp(lambda y: (x * y, None), lambda _, ct: (ct,))
        return scaled(x)

    with refuses(errors.DifferentiationError, "closed-over value", "custom_vjp"):
        mw.grad(mw.from_jax(closing))(1.0)
    with refuses(errors.RuleError, "batched form", "vmap_method=None", "lax.map"):
        mw.vmap(mw.from_jax(lambda x: jax.pure_callback(np.sin, jax.typeof(x), x)))(x)


def test_batched_forms_are_by_jaxs_rules():
    @jax.custom_batching.custom_vmap
    def scaled(x):
        return 2 * x

    scaled.def_vmap(lambda size, batched, x: (x * size, True))
    shown = lambda x: jax.pure_callback(  # noqa: E731
        lambda v: np.asarray(v + v.ndim, v.dtype), jax.typeof(x), x, vmap_method="expand_dims"
    )
    x = jnp.arange(3.0)
    for f in (scaled, shown, lambda x: jax.nn.relu(scaled(x) - 3)):
        ours, want = mw.from_jax(f), jax.vmap(f)(x)
        np.testing.assert_allclose(mw.vmap(ours)(np.asarray(x)), want)
        np.testing.assert_allclose(mw.jit(mw.vmap(mw.jit(ours)))(np.asarray(x)), want)
    cubed = mw.vmap(mw.grad(mw.from_jax(lambda x: scaled(jax.lax.stop_gradient(x)) * x)))
    np.testing.assert_allclose(cubed(np.asarray(x)), 3 * x)


def test_rules_that_close_over_arguments_have_the_derivatives_that_jax_has(refuses):
    def scaled(rules):
        def f(a, x):
            def g(a):
                return jnp.sin(a) * x.sum()

            return rules(g, x)(a)

        return f

    def by_vjp(g, x):
        call = jax.custom_vjp(g)
        call.defvjp(lambda a: (call(a), a), lambda a, ct: (3 * ct * jnp.cos(a) * x.sum(),))
        return call

    def by_jvp(g, x):
        call = jax.custom_jvp(g)
        call.defjvp(lambda primals, ts: (call(*primals), 3 * jnp.cos(primals[0]) * x.sum() * ts[0]))
        return call

    a, x = np.float32(0.3), np.arange(4, dtype="f4")
    many = np.arange(3, dtype="f4")
    for rules in (by_vjp, by_jvp):
        f = scaled(rules)
        g = mw.from_jax(f)
        for ours, theirs in ((mw.grad(g), jax.grad(f)), (mw.grad(mw.grad(g)), jax.grad(jax.grad(f)))):
            np.testing.assert_allclose(ours(a, x), theirs(a, x), rtol=1e-5)
            np.testing.assert_allclose(mw.jit(ours)(a, x), theirs(a, x), rtol=1e-5)
            mapped = mw.vmap(ours, (0, None))(many, x), jax.vmap(theirs, (0, None))(many, x)
            np.testing.assert_allclose(*mapped, rtol=1e-5)
    with refuses(errors.DifferentiationError, "closed-over", "as an argument"):
        mw.grad(mw.from_jax(scaled(by_vjp)), 1)(a, x)


def test_derivatives_are_taken_by_what_is_differentiated():
    """JAX has none by the data that a solver's rules close over, and needs none."""
    asked = []

    @jax.custom_vjp
    def g(a, x):
        return a * x

    g.defvjp(lambda a, x: (g(a.value, x.value), (x.value, asked.append(x.perturbed))[:1]),
             lambda res, ct: (ct * res[0], None), symbolic_zeros=True)  # fmt: skip
    f = mw.from_jax(lambda a, x: g(a, x).sum())
    np.testing.assert_array_equal(mw.grad(f)(mnp.ones(3), mnp.arange(3.0)), [0, 1, 2])
    assert asked and not any(asked)


def test_what_jax_does_not_differentiate_is_refused(refuses):
    called = mw.from_jax(lambda x: jax.pure_callback(np.sin, jax.typeof(x), x))
    with refuses(mw.errors.DifferentiationError, "from_jax", "Pure callbacks do not support JVP"):
        mw.grad(called)(1.0)


def _with_rules():
    @jax.custom_vjp
    def tripled(x):
        return jnp.sin(x)

    tripled.defvjp(lambda x: (tripled(x), x), lambda x, ct: (3 * ct * x,))
    return lambda x: (tripled(x) * jax.nn.relu(x) + jax.lax.stop_gradient(x) * x).sum()


def test_exports_are_differentiated_by_their_own_derivative_others_say_that_theirs_is_of_operations():
    f, x = _with_rules(), mnp.array([0.0, 0.5, -1.0, 2.0])
    want = jax.grad(f)(np.asarray(x))
    exported = export.export(jax.jit(f))(jax.ShapeDtypeStruct((4,), "float32"))
    np.testing.assert_allclose(mw.grad(mw.from_jax(exported))(x), want, rtol=1e-6)
    np.testing.assert_allclose(mw.jit(mw.grad(lambda x: mw.from_jax(exported)(2 * x)))(x / 2), 2 * want, rtol=1e-6)
    forms = [jax.jit(f).lower(x.__array__())]
    if find_spec("flatbuffers"):  # what JAX serializes with
        np.testing.assert_allclose(mw.grad(mw.from_jax(exported.serialize(vjp_order=1)))(x), want, rtol=1e-6)
        forms.append(exported.serialize())
    for form in forms:
        program = mw.from_jax(form)
        np.testing.assert_allclose(mw.jit(program)(x), f(np.asarray(x)), rtol=1e-6)  # says nothing
        with pytest.warns(errors.DerivativeWarning, match="vjp_order=1"):
            mw.grad(program)(x)
        with pytest.warns(errors.DerivativeWarning):
            mw.jvp(program, (x,), (x,))


def test_jax_arrays_beside_traced_ones():
    f = mw.from_jax(lambda w, x: jax.nn.relu(w * x).sum())
    np.testing.assert_allclose(mw.grad(lambda x: f(jnp.arange(3.0), x))(mnp.ones(3)), [0, 1, 2])


def test_wrappers_of_flax_and_equinox_take_our_arrays_and_jaxs_rules():
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")
    equinox = pytest.importorskip("equinox", reason="equinox is not installed")
    f, x = _with_rules(), mnp.array([0.0, 0.5, -1.0, 2.0])

    class Linen(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.full(4, 0.5))

        def __call__(self, x):
            return f(self.w[...] * x)

    class Eqx(equinox.Module):
        w: jax.Array
        name: str

        def __call__(self, x):
            return f(self.w * x)

    want = jax.grad(lambda x: f(x / 2))(np.asarray(x))
    for jitted, module in (
        (nnx.jit(lambda m, x: m(x)), Linen()),
        (equinox.filter_jit(lambda m, x: m(x)), Eqx(jnp.full(4, 0.5), "e")),
    ):
        ours = mw.from_jax(jitted)
        np.testing.assert_allclose(ours(module, x), f(np.asarray(x) / 2), rtol=1e-6)
        np.testing.assert_allclose(mw.grad(partial(ours, module))(x), want, rtol=1e-6)
        batched = mw.jit(mw.vmap(partial(ours, module)))(mnp.stack([x, 2 * x]))
        np.testing.assert_allclose(batched, [f(x.__array__() / 2), f(x.__array__())], rtol=1e-6)
    model, ours = Eqx(jnp.full(4, 0.5), "e"), mw.from_jax(equinox.filter_jit(lambda m, x: m(x)))
    by_w = mw.grad(lambda w: ours(equinox.tree_at(lambda m: m.w, model, w), x))(mnp.full(4, 0.5))
    np.testing.assert_allclose(by_w, jax.grad(lambda w: f(w * x.__array__()))(jnp.full(4, 0.5)), rtol=1e-6)


def test_functions_that_were_lowered_before_say_that_their_derivative_is_of_operations():
    class Kept:
        def __init__(self, f, x):
            self.kept = jax.jit(f).lower(x)

        def __call__(self, x): ...

        def lower(self, x):
            return self.kept

    program = mw.from_jax(Kept(jnp.sin, jnp.zeros(2)))
    with pytest.warns(errors.DerivativeWarning):
        np.testing.assert_allclose(mw.grad(lambda x: program(x).sum())(mnp.zeros(2)), [1, 1])


def test_threads_do_not_see_each_others_programs():
    lower = jax.stages.Traced.lower

    def scaled(n):
        @jax.custom_vjp
        def scaled(x):
            return x * n

        scaled.defvjp(lambda x: (x * n, None), lambda _, ct: (ct * (n + 0.5),))
        return mw.from_jax(jax.jit(lambda x: scaled(x).sum()))

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda n: mw.grad(scaled(n))(mnp.ones(n + 1))[0].item(), range(24)))
    assert found == [n + 0.5 for n in range(24)]
    assert jax.stages.Traced.lower is lower


def test_products_with_groups_stay_what_they_are():
    """JAX writes them out on CPUs, as products of all rows with all groups."""
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=shape).astype("f4") for shape in ((24, 3), (4, 3, 5)))
    sizes = np.array([5, 0, 11, 6], np.int32)

    def product(x, w):
        return jax.lax.ragged_dot(x, w, sizes)

    gradient = jax.grad(lambda *args: (product(*args) ** 2).sum(), (0, 1))
    ours = mw.from_jax(gradient, x, w)
    assert [e.op.name for e in ours.jaxpr.eqns].count("ragged_dot_general") == 3
    for got, want in zip(ours(x, w), gradient(x, w), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    batched = jax.vmap(jax.lax.ragged_dot)
    given = np.stack([x, 2 * x]), np.stack([w, w + 1]), np.stack([sizes, sizes[::-1]])
    np.testing.assert_allclose(mw.from_jax(batched)(*given), batched(*given), rtol=1e-5, atol=1e-5)
    assert "ragged" not in jax.jit(product).lower(x, w).as_text()  # nothing of JAX's is changed
