"""Integers that constants alone make: numbers of iterations are known, and values wrap around as on devices."""

import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.ir.passes import inline_calls
from meshwright.spmd.scalars import known_scalars

GRID = "stablehlo.multiply %two, %three : tensor<i32>"


def loop(limit: str) -> str:
    """A text whose loop counts to a product of constants."""
    return f"""
func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {{
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %n = {limit}
  %out:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<8x8xf32>
    cond {{
      %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    }} do {{
      %next = stablehlo.add %i, %one : tensor<i32>
      %z = stablehlo.dot %y, %y : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
      stablehlo.return %next, %z : tensor<i32>, tensor<8x8xf32>
    }}
  return %out#1 : tensor<8x8xf32>
}}"""


def test_iterations_up_to_a_product_of_constants_are_counted():
    part = mw.load(loop(GRID)).partition(num_devices=2)
    assert part.work.products[1] == 6 * 2 * 8**3


def test_what_depends_on_arguments_stays():
    def f(n):
        return lax.add(lax.mul(n, np.int32(2)), np.int32(3))

    jaxpr = mw.make_jaxpr(f)(np.int32(1))
    assert known_scalars(jaxpr) is jaxpr


def test_values_are_those_of_devices():
    """Sums wrap around, also of unsigned integers; predicates select constants."""

    def f(most, small, one):
        wrapped = lax.add(lax.mul(most, one), one)
        below = lax.sub(lax.max(small, np.uint8(2)), np.uint8(4))
        chosen = lax.select(lax.lt(lax.sub(one, np.int32(2)), np.int32(0)), lax.add(one, one), np.int32(8))
        return wrapped, below, chosen

    args = np.int32(2**31 - 1), np.uint8(3), np.int32(1)
    jaxpr = inline_calls(mw.make_jaxpr(lambda: mw.jit(f)(*args))())
    assert len(jaxpr.jaxpr.eqns) > 5
    jaxpr = known_scalars(jaxpr)
    assert not jaxpr.jaxpr.eqns
    for got, want in zip(mw.core.jaxpr_as_fun(jaxpr)(), mw.jit(f)(*args)):
        assert np.asarray(got) == np.asarray(want) and np.asarray(got).dtype == np.asarray(want).dtype


def test_primitives_of_users_are_what_they_say():
    """A primitive that is called as one of ours is another."""
    twice = mw.extend.core.Primitive("add")
    twice.def_abstract_eval(lambda x, y: x)
    mw.interpreters.mlir.register_lowering(twice, mw.interpreters.mlir.lower_fun(lambda x, y: 2 * x * y, False))
    part = (
        mw.jit(lambda x: x * twice.bind(np.int32(3), np.int32(4))).lower(np.ones(4, np.int32)).partition(num_devices=2)
    )
    part.verify()
    assert " 24:i32[]" in str(part.jaxpr)


def test_shifts_that_arrays_of_constants_hold_are_known_in_loops_too():
    """Rolls by elements of an array send the rows that change tiles, one and three of 8 x 8 numbers, three times."""
    mesh = mw.AbstractMesh((4, 2), ("x", "y"))
    both = mw.NamedSharding(mesh, mw.PartitionSpec("x", "y"))
    rolled = mw.jit(lambda x, shift: mnp.roll(x, shift, (0, 1)))

    def f(x):
        return lax.scan(lambda x, _: (rolled(x, np.array([1, -3], np.int32)), None), x, None, length=3)[0]

    x = mw.ShapeDtypeStruct((32, 16), np.float32)
    part = mw.jit(f, in_shardings=both, out_shardings=both).lower(x).partition()
    assert [c.bytes_sent for c in part.collectives] == [3 * 8 * 4, 3 * 3 * 8 * 4]
    assert part.verify()


def test_remainders_have_the_sign_of_what_is_divided():
    def f(a, b):
        return lax.rem(a, b), lax.neg(a), lax.bitwise_and(a, b), lax.bitwise_not(b)

    args = np.int32(-7), np.int32(4)
    jaxpr = known_scalars(inline_calls(mw.make_jaxpr(lambda: mw.jit(f)(*args))()))
    assert not jaxpr.jaxpr.eqns
    for got, want in zip(mw.core.jaxpr_as_fun(jaxpr)(), mw.jit(f)(*args)):
        assert np.asarray(got) == np.asarray(want)


def test_what_is_divided_by_zero_is_left_to_devices():
    jaxpr = inline_calls(mw.make_jaxpr(lambda: mw.jit(lax.rem)(np.int32(5), np.int32(0)))())
    assert known_scalars(jaxpr) is jaxpr


def test_what_is_not_chosen_need_not_be_known():
    jaxpr = mw.make_jaxpr(lambda n: lax.select_n(np.bool_(False), np.int32(3), n) + 4)(np.int32(1))
    assert jaxpr.eqns and not known_scalars(jaxpr).eqns
    chosen = known_scalars(mw.make_jaxpr(lambda n: lax.select_n(np.bool_(True), np.int32(3), n) + 4)(np.int32(1)))
    assert [e.op.name for e in chosen.eqns] == ["select_n", "add"]


def test_branches_that_are_never_taken_go():
    """Also where the branch that is taken returns the number of the next one, in a loop, and given a constant."""

    def f(x, n):
        first = lax.switch(n, [lambda: np.int32(2), lambda: np.int32(0)])
        return lax.switch(first, [mnp.sin, mnp.cos, mnp.tanh], x)

    x, one = np.ones(3, np.float32), np.int32(1)
    closed = inline_calls(mw.make_jaxpr(lambda x: mw.jit(f)(x, one))(x))
    assert [e.op.name for e in known_scalars(closed).eqns if e.op.name in ("cond", "sin", "cos", "tanh")] == ["sin"]
    loop = inline_calls(
        mw.make_jaxpr(lambda x: mw.jit(lambda x, n: lax.fori_loop(0, 3, lambda _, c: f(c, n), x))(x, one))(x)
    )
    text = str(known_scalars(loop))
    assert "cond[" in str(loop) and "cond[" not in text and "= sin " in text and "= tanh " not in text
    assert "cond[" in str(known_scalars(inline_calls(mw.make_jaxpr(f)(x, one))))  # not known
