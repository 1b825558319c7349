"""Operations that jax does not write, or writes in one form only: from text, against XLA's run of it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from reading_oracle import check_text

import meshwright as mw
from meshwright.errors import ImportProgramError

RNG = np.random.default_rng(8)


def array(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def main(args, results, body):
    return f"func.func @main({args}) -> {results} {{\n{body}\n}}"


CASES = {
    "dot of vectors": (
        main("%x: tensor<5xf32>, %y: tensor<5xf32>", "tensor<f32>", """
  %0 = stablehlo.dot %x, %y : (tensor<5xf32>, tensor<5xf32>) -> tensor<f32>
  return %0 : tensor<f32>"""),
        [array(5), array(5)],
    ),
    "dot of a matrix and a vector": (
        main("%x: tensor<3x5xf32>, %y: tensor<5xf32>", "tensor<3xf32>", """
  %0 = stablehlo.dot %x, %y : (tensor<3x5xf32>, tensor<5xf32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>"""),
        [array(3, 5), array(5)],
    ),
    "broadcast": (
        main("%x: tensor<3xf32>", "tensor<2x4x3xf32>", """
  %0 = stablehlo.broadcast %x, sizes = [2, 4] : (tensor<3xf32>) -> tensor<2x4x3xf32>
  return %0 : tensor<2x4x3xf32>"""),
        [array(3)],
    ),
    "broadcast in any order": (
        main("%x: tensor<3x2xf32>", "tensor<2x4x3xf32>", """
  %0 = stablehlo.broadcast_in_dim %x, dims = [2, 0] : (tensor<3x2xf32>) -> tensor<2x4x3xf32>
  return %0 : tensor<2x4x3xf32>"""),
        [array(3, 2)],
    ),
    "map": (
        main("%x: tensor<3x2xf32>, %y: tensor<3x2xf32>", "tensor<3x2xf32>", """
  %0 = "stablehlo.map"(%x, %y) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.constant dense<3.0> : tensor<f32>
    %1 = stablehlo.multiply %a, %c : tensor<f32>
    %2 = stablehlo.subtract %1, %b : tensor<f32>
    stablehlo.return %2 : tensor<f32>
  }) {dimensions = array<i64: 0, 1>} : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
  return %0 : tensor<3x2xf32>"""),
        [array(3, 2), array(3, 2)],
    ),
    "shapes that are computed, and known": (
        main("%x: tensor<2x6xf32>", "(tensor<3x4xf32>, tensor<5x2x6xf32>, tensor<2x3xi32>)", """
  %s = stablehlo.constant dense<[3, 4]> : tensor<2xi32>
  %0 = stablehlo.dynamic_reshape %x, %s : (tensor<2x6xf32>, tensor<2xi32>) -> tensor<3x4xf32>
  %t = stablehlo.constant dense<[5, 2, 6]> : tensor<3xi32>
  %1 = stablehlo.dynamic_broadcast_in_dim %x, %t, dims = [1, 2]
      : (tensor<2x6xf32>, tensor<3xi32>) -> tensor<5x2x6xf32>
  %u = stablehlo.constant dense<[2, 3]> : tensor<2xi32>
  %2 = stablehlo.dynamic_iota %u, dim = 1 : (tensor<2xi32>) -> tensor<2x3xi32>
  return %0, %1, %2 : tensor<3x4xf32>, tensor<5x2x6xf32>, tensor<2x3xi32>"""),
        [array(2, 6)],
    ),
    "slices and padding with constant bounds": (
        main("%x: tensor<4x6xf32>", "(tensor<2x3xf32>, tensor<7x8xf32>)", """
  %a = stablehlo.constant dense<[1, 0]> : tensor<2xi32>
  %b = stablehlo.constant dense<[3, 6]> : tensor<2xi32>
  %c = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
  %0 = stablehlo.real_dynamic_slice %x, %a, %b, %c
      : (tensor<4x6xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<2x3xf32>
  %v = stablehlo.constant dense<9.0> : tensor<f32>
  %e = stablehlo.constant dense<[1, 0]> : tensor<2xi32>
  %f = stablehlo.constant dense<[2, 2]> : tensor<2xi32>
  %g = stablehlo.constant dense<[0, 0]> : tensor<2xi32>
  %1 = stablehlo.dynamic_pad %x, %v, %e, %f, %g
      : (tensor<4x6xf32>, tensor<f32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<7x8xf32>
  return %0, %1 : tensor<2x3xf32>, tensor<7x8xf32>"""),
        [array(4, 6)],
    ),
    "index select": (
        main("%x: tensor<2x5x3xf32>, %i: tensor<2x4xi32>", "tensor<2x4x3xf32>", """
  %0 = "stablehlo.torch_index_select"(%x, %i) {dim = 1 : i64, batch_dims = 1 : i64}
      : (tensor<2x5x3xf32>, tensor<2x4xi32>) -> tensor<2x4x3xf32>
  return %0 : tensor<2x4x3xf32>"""),
        [array(2, 5, 3), np.array([[3, 0, 4, 1], [2, 2, 0, 3]], np.int32)],
    ),
    "index vectors in the first dimension, or in none": (
        main("%x: tensor<5x6xf32>, %i: tensor<2x3xi32>, %j: tensor<4xi32>", "(tensor<3xf32>, tensor<4x6xf32>)", """
  %0 = "stablehlo.gather"(%x, %i) {
    dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [1, 0],
      index_vector_dim = 0>,
    slice_sizes = array<i64: 1, 1>} : (tensor<5x6xf32>, tensor<2x3xi32>) -> tensor<3xf32>
  %1 = "stablehlo.gather"(%x, %j) {
    dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0],
      index_vector_dim = 1>, slice_sizes = array<i64: 1, 6>} : (tensor<5x6xf32>, tensor<4xi32>) -> tensor<4x6xf32>
  return %0, %1 : tensor<3xf32>, tensor<4x6xf32>"""),
        [array(5, 6), np.array([[5, 1, 9], [0, 4, -2]], np.int32), np.array([4, 0, 7, 2], np.int32)],
    ),
    "index vectors before a batching dimension": (
        main("%x: tensor<3x5xf32>, %i: tensor<4x1x3xi32>", "(tensor<4x3xf32>, tensor<3x5xf32>)", """
  %0 = "stablehlo.gather"(%x, %i) {
    dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [1], operand_batching_dims = [0],
      start_indices_batching_dims = [2], start_index_map = [1], index_vector_dim = 1>,
    slice_sizes = array<i64: 1, 1>} : (tensor<3x5xf32>, tensor<4x1x3xi32>) -> tensor<4x3xf32>
  %1 = "stablehlo.scatter"(%x, %i, %0) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %2 = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %2 : tensor<f32>
  }) {scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [1], input_batching_dims = [0],
      scatter_indices_batching_dims = [2], scatter_dims_to_operand_dims = [1], index_vector_dim = 1>}
      : (tensor<3x5xf32>, tensor<4x1x3xi32>, tensor<4x3xf32>) -> tensor<3x5xf32>
  return %0, %1 : tensor<4x3xf32>, tensor<3x5xf32>"""),
        [array(3, 5), RNG.integers(0, 5, (4, 1, 3)).astype(np.int32)],
    ),
    "descending sorts": (
        main("%x: tensor<3x7xf32>, %n: tensor<3x7xi32>", "(tensor<3x7xf32>, tensor<3x7xi32>)", """
  %0:2 = "stablehlo.sort"(%x, %n) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<i32>, %d: tensor<i32>):
    %1 = stablehlo.compare GT, %c, %d : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }) {dimension = 1 : i64, is_stable = true} : (tensor<3x7xf32>, tensor<3x7xi32>)
      -> (tensor<3x7xf32>, tensor<3x7xi32>)
  return %0#0, %0#1 : tensor<3x7xf32>, tensor<3x7xi32>"""),
        [array(3, 7), RNG.integers(-2, 3, (3, 7)).astype(np.int32)],
    ),
    "batch normalisation": (
        main("%x: tensor<4x3x2xf32>, %s: tensor<3xf32>, %o: tensor<3xf32>, %g: tensor<4x3x2xf32>",
             "(tensor<4x3x2xf32>, tensor<3xf32>, tensor<3xf32>, tensor<4x3x2xf32>, tensor<4x3x2xf32>, tensor<3xf32>, "
             "tensor<3xf32>)",
             """
  %0:3 = "stablehlo.batch_norm_training"(%x, %s, %o) {epsilon = 0.1 : f32, feature_index = 1 : i64}
      : (tensor<4x3x2xf32>, tensor<3xf32>, tensor<3xf32>) -> (tensor<4x3x2xf32>, tensor<3xf32>, tensor<3xf32>)
  %1 = "stablehlo.batch_norm_inference"(%x, %s, %o, %0#1, %0#2) {epsilon = 0.2 : f32, feature_index = 1 : i64}
      : (tensor<4x3x2xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) -> tensor<4x3x2xf32>
  %2:3 = "stablehlo.batch_norm_grad"(%x, %s, %0#1, %0#2, %g) {epsilon = 0.1 : f32, feature_index = 1 : i64}
      : (tensor<4x3x2xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<4x3x2xf32>)
      -> (tensor<4x3x2xf32>, tensor<3xf32>, tensor<3xf32>)
  return %0#0, %0#1, %0#2, %1, %2#0, %2#1, %2#2
    : tensor<4x3x2xf32>, tensor<3xf32>, tensor<3xf32>, tensor<4x3x2xf32>, tensor<4x3x2xf32>, tensor<3xf32>,
      tensor<3xf32>"""),
        [array(4, 3, 2), array(3), array(3), array(4, 3, 2)],
    ),
    "implicit broadcasting": (
        main("%x: tensor<4x3xf32>, %y: tensor<3xf32>", "(tensor<4x3xf32>, tensor<4x3xi1>)", """
  %0 = chlo.broadcast_multiply %x, %y : (tensor<4x3xf32>, tensor<3xf32>) -> tensor<4x3xf32>
  %1 = chlo.broadcast_compare %x, %y {comparison_direction = #chlo<comparison_direction LT>}
      : (tensor<4x3xf32>, tensor<3xf32>) -> tensor<4x3xi1>
  return %0, %1 : tensor<4x3xf32>, tensor<4x3xi1>"""),
        [array(4, 3), array(3)],
    ),
    "barriers and tuples": (
        main("%x: tensor<4xf32>", "(tensor<4xf32>, tensor<4xf32>)", """
  %0:2 = stablehlo.optimization_barrier %x, %x : tensor<4xf32>, tensor<4xf32>
  %1 = stablehlo.add %0#0, %0#1 : tensor<4xf32>
  %2 = stablehlo.tuple %1, %x : tuple<tensor<4xf32>, tensor<4xf32>>
  %3 = stablehlo.get_tuple_element %2[1] : (tuple<tensor<4xf32>, tensor<4xf32>>) -> tensor<4xf32>
  return %1, %3 : tensor<4xf32>, tensor<4xf32>"""),
        [array(4)],
    ),
    "parts of real numbers": (
        main("%x: tensor<4xf32>", "(tensor<4xf32>, tensor<4xf32>)", """
  %0 = stablehlo.real %x : (tensor<4xf32>) -> tensor<4xf32>
  %1 = stablehlo.imag %x : (tensor<4xf32>) -> tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>"""),
        [array(4)],
    ),
    "squares of large complex numbers": (
        main("%x: tensor<3xcomplex<f32>>", "tensor<3xcomplex<f32>>", """
  %0 = chlo.square %x : tensor<3xcomplex<f32>> -> tensor<3xcomplex<f32>>
  return %0 : tensor<3xcomplex<f32>>"""),
        [np.array([1e30 + 1e30j, 3e20 + 1j, complex(np.inf, 1)], np.complex64)],
    ),
    "gathers of MHLO, with sizes as elements": (
        main("%x: tensor<5x4xf32>, %i: tensor<3xi32>", "tensor<3x4xf32>", """
  %0 = "mhlo.gather"(%x, %i) {dimension_numbers = #mhlo.gather<offset_dims = [1], collapsed_slice_dims = [0],
      start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false,
      slice_sizes = dense<[1, 4]> : tensor<2xi64>}
      : (tensor<5x4xf32>, tensor<3xi32>) -> tensor<3x4xf32>
  return %0 : tensor<3x4xf32>"""),
        [array(5, 4), np.array([4, 0, 2], np.int32)],
    ),
    "constants of arith": (
        main("%x: tensor<2xf32>", "tensor<2xf32>", """
  %0 = arith.constant dense<[3.0, 4.0]> : tensor<2xf32>
  %1 = arith.constant dense<2.0> : tensor<2xf32>
  %2 = stablehlo.multiply %x, %0 : tensor<2xf32>
  %3 = stablehlo.add %2, %1 : tensor<2xf32>
  return %3 : tensor<2xf32>"""),
        [array(2)],
    ),
    "constants without elements, of types narrower than a byte": (
        main("%x: tensor<2x3xi4>", "tensor<2x3xi4>", """
  %0 = stablehlo.constant dense<> : tensor<0x3xi4>
  %1 = stablehlo.concatenate %0, %x, dim = 0 : (tensor<0x3xi4>, tensor<2x3xi4>) -> tensor<2x3xi4>
  return %1 : tensor<2x3xi4>"""),
        [RNG.integers(-8, 8, (2, 3)).astype(ml_dtypes.int4)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_against_xla(name):
    text, args = CASES[name]
    check_text(text, *args)


KEPT = {
    "stablehlo.triangular_solve": main("%x: tensor<3x3xf16>, %y: tensor<3x2xf16>", "tensor<3x2xf16>", """
  %0 = "stablehlo.triangular_solve"(%x, %y) {left_side = true, lower = true, unit_diagonal = false,
      transpose_a = #stablehlo<transpose NO_TRANSPOSE>} : (tensor<3x3xf16>, tensor<3x2xf16>) -> tensor<3x2xf16>
  return %0 : tensor<3x2xf16>"""),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_operations_that_are_kept(name):
    """LAPACK has no kernels for half precision."""
    matrix = (np.tril(array(3, 3)) + 3 * np.eye(3)).astype(np.float16)
    check_text(KEPT[name], matrix, array(3, 2).astype(np.float16), opaque=[name])


@pytest.mark.parametrize("algorithm", ["PHILOX", "THREE_FRY"])
def test_random_bits_of_signed_types(algorithm):
    """XLA gives them an unsigned type, so that it cannot compile what is made of them."""

    def drawn(number, state):
        return mw.load(main(f"%s: tensor<2x{state}>", f"(tensor<2x{state}>, tensor<3x4x{number}>)", f"""
  %0, %1 = stablehlo.rng_bit_generator %s, algorithm = {algorithm}
      : (tensor<2x{state}>) -> (tensor<2x{state}>, tensor<3x4x{number}>)
  %2 = stablehlo.not %1 : tensor<3x4x{number}>
  return %0, %2 : tensor<2x{state}>, tensor<3x4x{number}>"""))  # fmt: skip

    for bits in (8, 32, 64):
        words = np.array([5, 2**63 + 7], np.uint64)
        signed = [np.asarray(y) for y in drawn(f"i{bits}", "i64")(words.view(np.int64))]
        plain = [np.asarray(y) for y in drawn(f"ui{bits}", "ui64")(words)]
        assert [y.dtype for y in signed] == [np.int64, f"int{bits}"]
        for x, y in zip(signed, plain):
            np.testing.assert_array_equal(x.view(y.dtype), y)


def asserting(condition, argument=""):
    return main(
        f"%x: tensor<2xf32>{argument}",
        "tensor<2xf32>",
        f"""
  {condition}
  stablehlo.custom_call @shape_assertion(%c) {{error_message = "n is even", has_side_effect = true}}
      : (tensor<i1>) -> ()
  return %x : tensor<2xf32>""",
    )


def test_assertions_of_shapes():
    x = array(2)
    check = mw.load(asserting("%c = stablehlo.constant dense<true> : tensor<i1>"))
    np.testing.assert_array_equal(check(x), x)
    with pytest.raises(ImportProgramError, match="not those that it asserts: n is even"):
        mw.load(asserting("%c = stablehlo.constant dense<false> : tensor<i1>"))
    with pytest.raises(ImportProgramError, match="sizes that are not known; export the program with static shapes"):
        mw.load(asserting("", ", %c: tensor<i1>"))


@pytest.mark.parametrize(
    ("bits", "why"), [(8, r"has a result of type i8\[\] in the program, but gives i8\[8\]"), (64, "bools are bytes")]
)
def test_bits_of_bools(bits, why):
    text = main(
        f"%x: tensor<{bits}xi1>",
        f"tensor<i{bits}>",
        f"""
  %0 = stablehlo.bitcast_convert %x : (tensor<{bits}xi1>) -> tensor<i{bits}>
  return %0 : tensor<i{bits}>""",
    )
    with pytest.raises(ImportProgramError, match=why):
        mw.load(text)


TWICE = """module @m attributes {foo.version = #foo.number<1>} {
  sdy.mesh @mesh = <["x"=2]>
  func.func @twice(%a: tensor<4xf32> {foo.kind = #foo.kind<input>}) -> (tensor<4xf32> {foo.place = 1 : i32}) {
    %0 = stablehlo.add %a, %a {foo.at = #foo.point<[1, 2]>} : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func @four_times(%a: tensor<4xf32>) -> tensor<4xf32> {
    %0 = call @twice(%a) : (tensor<4xf32>) -> tensor<4xf32>
    %1 = call @twice(%0) : (tensor<4xf32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }
}"""


@pytest.mark.parametrize(("entry", "factor"), [("twice", 2), ("four_times", 4)])
def test_any_function_may_be_the_entry_and_attributes_of_other_dialects_say_nothing(entry, factor):
    program = mw.load(TWICE, entry=entry)
    assert program.name == entry
    np.testing.assert_array_equal(program(np.arange(4, dtype=np.float32)), factor * np.arange(4))


def added(by):
    """The program with another operation in place of the sum."""
    sum_of_both = "stablehlo.add %a, %a {foo.at = #foo.point<[1, 2]>} : tensor"
    text = TWICE.replace(sum_of_both, f"{by} : (tensor<4xf32>) -> tensor")
    assert by in text
    return text


def test_operations_of_other_dialects_are_refused_and_functions_that_are_not_there():
    with pytest.raises(ImportProgramError, match=r"<text>:4: foo.add: has no meaning here"):
        mw.load(added('"foo.add"(%a)'), entry="twice")
    with pytest.raises(ImportProgramError, match=r"a function 'thrice'; the module has 'twice', 'four_times'; name"):
        mw.load(TWICE, entry="thrice")


def test_an_empty_attribute_of_shardy_does_not_end_the_reader():
    """MLIR's parser of attributes does not survive the empty text."""
    call = 'stablehlo.custom_call @Sharding(%a) {{mhlo.frontend_attributes = {{xla.sdy.{} = ""}}}}'
    mw.load(added(call.format("custom_sharding_rule")), entry="twice")
    with pytest.raises(ImportProgramError, match=r"xla\.sdy\.sharding is empty"):
        mw.load(added(call.format("sharding")), entry="twice")
