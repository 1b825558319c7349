"""Programs for platforms that are not here: what they choose by platform, and the form in which they are written."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import export, lax
from meshwright.errors import ArgumentError, RuleError, ShapeError
from meshwright.sharding import AbstractMesh, Mesh, NamedSharding
from meshwright.sharding import PartitionSpec as P

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def chosen(x):
    """Another function on each platform."""
    return lax.platform_dependent(x, cpu=mnp.sin, tpu=mnp.tanh, default=mnp.exp)


def in_loop(x):
    """Chosen inside of a loop that is differentiated and recomputed."""
    return lax.scan(lambda c, _: (mw.checkpoint(chosen)(c) * 0.5, None), x, None, length=3)[0].sum()


def test_where_it_runs_decides():
    assert np.allclose(mw.jit(chosen)(X), np.sin(X)) and np.allclose(chosen(X), np.sin(X))
    assert np.allclose(mw.jit(mw.vmap(chosen))(X), np.sin(X))
    assert np.allclose(mw.jit(mw.grad(lambda x: chosen(x).sum()))(X), np.cos(X), atol=1e-6)
    by_hand = mw.grad(lambda x: lax.fori_loop(0, 3, lambda _, c: mnp.sin(c) * 0.5, x).sum())
    assert np.allclose(mw.jit(mw.grad(in_loop))(X), by_hand(X), atol=1e-6)


@pytest.mark.parametrize("machine,function", [("v5e:2x4", "tanh"), ("h100", "exp"), (None, "sin")])
@pytest.mark.parametrize("of", [chosen, mw.grad(in_loop)], ids=["once", "gradient"])
def test_the_machine_decides_where_it_is_partitioned(machine, function, of):
    mesh = AbstractMesh((8,), ("d",), machine=machine)
    x = mw.ShapeDtypeStruct((16, 4), "float32", sharding=NamedSharding(mesh, P("d")))
    part = mw.jit(of).lower(x).partition(mesh)
    functions = {"tanh", "exp", "sin"}
    assert {f for f in functions if f"= {f} " in str(part.jaxpr)} == {function} and "cond[" not in str(part.jaxpr)
    part.verify()


def test_devices_decide_before_the_machine_that_costs_are_for():
    mesh = Mesh(np.array(mw.devices()[:2]), ("d",), machine="v5e:1x2")
    x = mw.device_put(mnp.ones((4, 3)), NamedSharding(mesh, P("d")))
    assert np.allclose(mw.jit(chosen)(x), np.sin(1))
    with pytest.raises(ArgumentError, match="partitioned for cpu, not tpu"):
        mw.jit(chosen).lower(x).partition().compile("v5e:1x2")


def test_a_plan_is_for_its_machine():
    plan = mw.plan(chosen, mw.ShapeDtypeStruct((16, 4), "float32"), machine="v5e:2x2")
    assert "= tanh " in str(plan.partition().jaxpr)


def test_what_was_chosen_for_one_platform_is_not_compiled_for_another():
    mesh = AbstractMesh((8,), ("d",))
    part = mw.jit(chosen).lower(mw.ShapeDtypeStruct((16, 4), "float32")).partition(mesh)
    with pytest.raises(ArgumentError, match=r"partitioned for cpu, not tpu; .*\.on\('v5e:2x4'\)"):
        part.compile("v5e:2x4")


@pytest.mark.parametrize("platform,function", [("tpu", "tanh"), ("gpu", "exponential"), ("cpu", "sine")])
def test_lowering_for_another_platform(platform, function):
    text = mw.jit(chosen).trace(X).lower(lowering_platforms=(platform,)).as_text()
    assert {f for f in ("tanh", "exponential", "sine") if f"stablehlo.{f}" in text} == {function}


def test_forms_of_kernels():
    def factor(x):
        return mnp.linalg.cholesky(x)

    square = mw.ShapeDtypeStruct((4, 4), "float32")
    texts = {p: mw.jit(factor).lower(square, lowering_platforms=(p,)).as_text() for p in ("cpu", "cuda", "tpu")}
    assert "lapack_spotrf_ffi" in texts["cpu"] and "cusolver_potrf_ffi" in texts["cuda"]
    assert "stablehlo.cholesky" in texts["tpu"]
    with pytest.raises(RuleError, match="no form of this kernel for tpu"):
        mw.jit(mnp.linalg.eigvals).lower(square, lowering_platforms=("tpu",)).as_text()


def test_lowered_for_others_is_not_compiled_here():
    lowered = mw.jit(chosen).lower(X, lowering_platforms=("tpu",))
    with pytest.raises(ArgumentError, match="lowered for tpu, and this is cpu"):
        lowered.compile()
    with pytest.raises(ArgumentError, match="modules of 'chosen' for cpu, tpu differ"):
        mw.jit(chosen).lower(X, lowering_platforms=("cpu", "tpu")).as_text()
    same = mw.jit(mnp.sin).lower(X, lowering_platforms=("cpu", "tpu"))
    assert "stablehlo.sine" in same.as_text() and np.allclose(same.compile()(X), np.sin(X))
    with pytest.raises(ArgumentError, match="name some of cpu, cuda, rocm, tpu"):
        mw.jit(chosen).lower(X, lowering_platforms=("gpus",))


def test_exported_for_several_platforms():
    both = export.export(
        mw.jit(lambda x: mnp.linalg.cholesky(x @ x.T + mnp.eye(3)) + chosen(x).sum()), platforms=["tpu", "cpu"]
    )(X)
    read = export.deserialize(both.serialize())
    assert read.platforms == ("tpu", "cpu") and len(read.others) == 1
    text = read.mlir_module()
    assert "stablehlo.tanh" in text and "stablehlo.sine" not in text and "lapack" not in text
    wanted = np.linalg.cholesky(X @ X.T + np.eye(3)) + np.sin(X).sum()
    assert np.allclose(read.call(X), wanted, atol=1e-5)  # from the module for this platform
    alone = export.export(mw.jit(chosen), platforms=["tpu"])(X)
    with pytest.raises(ArgumentError, match="exported for tpu; this is cpu"):
        alone.call(X)
    assert not export.export(mw.jit(mnp.sin), platforms=["tpu", "cpu"])(X).others


def test_refused_choices():
    with pytest.raises(ArgumentError, match="no function for cpu among tpu"):
        mw.jit(lambda x: lax.platform_dependent(x, tpu=mnp.sin))(X)
    with pytest.raises(ShapeError, match=r"function for tpu .* and f32\[4\] from function for cpu"):
        mw.jit(lambda x: lax.platform_dependent(x, tpu=mnp.sin, cpu=lambda x: x[0]))(X)


def _called(exported):
    """A function that calls what was read again."""
    read = export.deserialize(exported.serialize())
    return mw.jit(lambda x: read.call(x) * 2)


def test_the_caller_of_an_exported_program_decides():
    both = export.export(mw.jit(chosen), platforms=["cuda", "tpu", "cpu"])(X)
    assert np.allclose(_called(both)(X), 2 * np.sin(X))
    assert np.allclose(mw.grad(lambda x: _called(both)(x).sum())(X), 2 * np.cos(X), atol=1e-6)
    assert "stablehlo.tanh" in _called(both).lower(X, lowering_platforms=("tpu",)).as_text()
    part = _called(both).lower(X).partition(AbstractMesh((4,), ("d",), machine="v5e:2x2"))
    assert "= tanh " in str(part.jaxpr) and "= sin " not in str(part.jaxpr)
    again = export.export(_called(both), platforms=["tpu", "cpu"])(X)
    assert "stablehlo.tanh" in again.mlir_module() and np.allclose(again.call(X), 2 * np.sin(X))


def test_derivatives_of_exported_programs_are_for_their_platforms():
    backward = export.export(mw.jit(chosen), platforms=["tpu", "cpu"])(X).vjp()
    assert "stablehlo.tanh" in backward.mlir_module() and "stablehlo.cosine" not in backward.mlir_module()
    assert np.allclose(backward.call(X, X)[0], X * np.cos(X), atol=1e-6)


def test_what_was_exported_for_one_platform_is_not_used_on_another():
    with pytest.raises(ArgumentError, match="no function for tpu among cpu"):
        _called(export.export(mw.jit(chosen))(X)).lower(X, lowering_platforms=("tpu",)).as_text()
    unchecked = [export.DisabledSafetyCheck.platform()]
    anywhere = _called(export.export(mw.jit(chosen), disabled_checks=unchecked)(X))
    assert "stablehlo.sine" in anywhere.lower(X, lowering_platforms=("tpu",)).as_text()
    same = _called(export.export(mw.jit(mnp.sin))(X))  # which does not choose
    assert "stablehlo.sine" in same.lower(X, lowering_platforms=("tpu",)).as_text()
