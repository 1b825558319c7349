"""Layouts that kernels of TPUs require; what is said of compiled programs is of a v5e."""

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax
from meshwright.spmd.memory.compilers import compiler_for
from meshwright.spmd.memory.predict import predict

MIB = 2**20
F32 = np.float32


def temporaries(fun, *args):
    compiler, mesh = compiler_for("tpu", "v5e"), mw.AbstractMesh((2,), ("x",))
    return predict(mw.jit(fun).trace(*args).jaxpr, mesh, compiler=compiler).temp_bytes / MIB


def array(*shape, dtype=F32):
    return mw.ShapeDtypeStruct(shape, dtype)


def rows(x):
    return lax.scan(lambda c, r: (mnp.sin(c) * r, None), x[-1], x[:-1])[0]


def solutions(a, b):
    return lax.scan(lambda c, m: (mnp.linalg.solve(m, c[..., None])[..., 0], None), b, a)[0]


def solutions_of_stacked(a, b):
    a = lax.scan(lambda c, m: (c * 0.5, m * 2 + c[..., None]), b, a)[1]
    return solutions(a[1:], b)


def looked_up(tables, numbers):
    return lax.scan(lambda c, t: (c + t[numbers], None), mnp.zeros((8192, 10), F32), tables)[0]


def test_a_slice_from_the_start_of_an_argument_is_no_copy():
    """As compiled, two rows of 0.25 MiB and their padding (0.75); a copy would take 14."""
    assert temporaries(rows, array(50, 65536)) < 1


def test_a_loop_copies_matrices_that_it_solves_if_they_are_an_argument():
    """As compiled, 4.5 MiB. The argument would take 32 in the order of matrices."""
    assert temporaries(solutions, array(16, 1024, 4, 4), array(1024, 4)) < 6


def test_a_loop_has_stacked_matrices_that_it_solves_in_their_order():
    """As compiled, 66.0 MiB: 34 for a copy of the 17 stacked ones, and 32 for the 16 that are solved."""
    assert temporaries(solutions_of_stacked, array(17, 1024, 4, 4), array(1024, 4)) == pytest.approx(66, rel=0.01)


def test_a_loop_copies_tables_so_that_their_rows_are_along_the_lanes():
    """As compiled, 12.0 MiB: 8 for all tables, whose rows of 10 take 128 elements, and 4 for the rows."""
    found = temporaries(looked_up, array(64, 256, 10), array(8192, dtype=np.int32))
    assert found == pytest.approx(12, rel=0.1)


def clustered(x, c):
    def step(c, _):
        near = ((c * c).sum(1) - 2 * x @ c.T).argmin(1)
        counts = mnp.zeros(len(c)).at[near].add(1.0)
        return mnp.zeros_like(c).at[near].add(x) / (1 + counts)[:, None], None

    return lax.scan(step, c, None, length=5)[0]


def test_a_loop_copies_what_is_padded_more_in_another_order_each_time():
    """As compiled, 1.26 MiB: the rows of points, which take 128 elements instead of 32, are not carried."""
    assert temporaries(clustered, array(2048, 32), array(64, 32)) == pytest.approx(1.262, abs=0.01)


def test_numbers_of_scattered_elements_are_put_in_a_row():
    """As compiled, 20.0 MiB: 16 for the 16 columns, which take 128 elements, and 4 for two rows of all of them."""
    numbers, x = array(32768, 16, dtype=np.int32), array(32768, 16)
    found = temporaries(lambda numbers, x: mnp.zeros(4096, F32).at[numbers].add(x), numbers, x)
    assert found == pytest.approx(20, rel=0.01)
