"""Arguments of every public name that ``jax`` has too: what may be given by name there may be given by name here."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import warnings

import jax.scipy.stats
import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp

MODULES = [
    "", "numpy", "numpy.linalg", "numpy.fft", "lax", "lax.linalg", "nn", "nn.initializers", "random", "tree_util",
    "tree", "sharding", "dtypes", "scipy.special", "scipy.stats", "scipy.linalg", "scipy.signal", "scipy.ndimage",
    "scipy.integrate", "scipy.interpolate", "scipy.optimize", "scipy.cluster.vq", "scipy.sparse.linalg", "image",
    "dlpack", "flatten_util", "ops", "custom_batching", "custom_derivatives", "ad_checkpoint", "test_util",
    *(f"scipy.stats.{m.name}" for m in pkgutil.iter_modules(jax.scipy.stats.__path__)),
]  # fmt: skip

#: what is left out on purpose: module and name, and the arguments
LEFT_OUT = {
    "jax.P": {"unreduced", "reduced"},  # kinds of the explicit mode of sharding
    "jax.ShapeDtypeStruct": {"is_ref", "manual_axis_type"},  # references; see core.ShapedArray for vma
    "jax.Ref": {"aval", "refs"},  # made by new_ref, not by users
    "jax.Shard": {"sharding", "global_shape"},  # made by arrays, not by users
    "jax.vmap": {"sum_match"},
    "jax.sharding.AbstractMesh": {"abstract_device"},
    "jax.sharding.PartitionSpec": {"unreduced", "reduced"},
    "jax.numpy.ufunc": {"nargs", "reduceat"},  # made by frompyfunc, not by users
}


def named(function):
    """The names that may be given, and whether any may."""
    parameters = inspect.signature(function).parameters.values()
    names = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    return names, any(p.kind is p.VAR_KEYWORD for p in parameters)


def compared(module):
    """``(full name, ours, theirs)`` of the functions and classes of a module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs, ours = (importlib.import_module(f"{p}.{module}".rstrip(".")) for p in ("jax", "meshwright"))
        for name in dir(theirs):
            peer = getattr(theirs, name, None)
            own = getattr(ours, name, None) if not name.startswith("_") else None
            if own is None or not callable(peer) or inspect.ismodule(peer):
                continue
            if not (inspect.isclass(peer) and issubclass(peer, BaseException)):
                yield f"jax.{module}.{name}".replace("..", "."), own, peer


@pytest.mark.parametrize("module", MODULES)
def test_keywords(module):
    missing = {}
    for name, own, peer in compared(module):
        try:
            (names, open_), (peer_names, _) = named(own), named(peer)
        except (ValueError, TypeError):
            continue  # of a builtin
        lacking = peer_names - names - LEFT_OUT.get(name, set()) - {"accuracy"}  # which every op takes, see below
        if lacking and not open_:
            missing[name] = lacking
    assert not missing


def test_many_are_compared():
    assert len(list(compared("numpy"))) > 380 and len(list(compared("lax"))) > 150


def test_what_has_no_choice_is_refused():
    x = mnp.eye(2)
    for call in (
        lambda: mw.lax.linalg.eig(x, implementation="magma"),
        lambda: mw.lax.linalg.schur(x, sort_eig_vals=True),
        lambda: mw.lax.linalg.tridiagonal_solve(x[0], x[0], x[0], x, perturb_singular=True),
        lambda: mw.devices("tpu"),
        lambda: mw.jit(lambda v: v, backend="tpu")(x),
    ):
        with pytest.raises((mw.errors.ArgumentError, mw.errors.DeviceError), match=r"leave it out|not supported"):
            call()
    with pytest.raises(TypeError, match="accuracy"):
        mw.lax.exp(x, accuracy="highest")
    assert mw.lax.exp(x, accuracy=None).shape == (2, 2)


def test_options_of_the_compiler():
    x = np.ones(3, "float32")
    fast = {"xla_cpu_enable_fast_math": True}
    assert mw.jit(lambda v: v * 2 + 5, compiler_options=fast)(x).tolist() == [7.0, 7.0, 7.0]
    lowered = mw.jit(lambda v: v * 2 + 7).lower(x, lowering_platforms=("cpu",))
    assert lowered.compile(compiler_options=fast)(x).tolist() == [9.0, 9.0, 9.0]
    with pytest.raises(mw.errors.CompileError, match="no_such_option"):
        mw.jit(lambda v: v * 2 + 9, compiler_options={"no_such_option": 1})(x)


def test_options_of_the_compiler_on_a_mesh():
    mesh = mw.make_mesh((2,), ("x",))
    lowered = mw.jit(lambda v: v * 3, in_shardings=mw.NamedSharding(mesh, mw.P("x"))).lower(np.ones(4, "float32"))
    assert lowered.compile({"xla_cpu_enable_fast_math": True})(mnp.ones(4)).tolist() == [3.0] * 4
    with pytest.raises(mw.errors.CompileError, match="no_such_option"):
        lowered.compile({"no_such_option": 1})


def test_dtypes_of_products():
    assert mw.lax.mul(np.int8(100), np.int8(3), out_dtype="int32").item() == 300


def test_subsets():
    import jax

    a = np.random.default_rng(0).normal(size=(2, 4, 4)).astype("float32")
    a = a + a.swapaxes(1, 2)
    np.testing.assert_allclose(
        mw.lax.linalg.eigh(a, subset_by_index=(1, 3))[1], jax.lax.linalg.eigh(a)[1][..., 1:3], rtol=1e-4, atol=1e-5
    )
    for call in (mw.lax.linalg.svd, mnp.linalg.svd):
        u, s, vh = call(a, subset_by_index=(0, 2))
        assert u.shape == (2, 4, 2) and vh.shape == (2, 2, 4)
        np.testing.assert_allclose(s, np.linalg.svd(a)[1][..., :2], rtol=1e-4)
        with pytest.raises(ValueError, match="subset_by_index"):
            call(a, subset_by_index=(2, 9))


@pytest.mark.parametrize("how", [{"full": True}, {"cov": True}, {"cov": "unscaled"}])
@pytest.mark.parametrize("several", [False, True])
def test_fits_with_more_results(how, several):
    import jax.numpy as jnp

    x, y = np.arange(6.0), np.array([1.0, 3.0, 2.0, 5.0, 4.0, 8.0])
    y = np.stack([y, y[::-1]], 1) if several else y
    for got, want in zip(mnp.polyfit(x, y, 2, **how), jnp.polyfit(x, y, 2, **how), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_zeros_trimmed_along_axes():
    x = np.zeros((4, 5))
    x[1:3, 2] = 1
    for axis in (None, 0, 1, (0, 1)):
        np.testing.assert_array_equal(mnp.trim_zeros(x, axis=axis), np.trim_zeros(x, axis=axis))
