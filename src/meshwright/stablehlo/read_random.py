"""Reading rule of ``rng``, StableHLO's random number generator without a key.

The numbers depend on the implementation; XLA's differ from run to run, and with the number of devices. Here they come
from a counter-based generator whose key is the number of the draw in the program. Each device generates its own tile,
and all partitions and all runs of a program draw the same numbers, which is noted for the user.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.ir.reading import reads
from meshwright.ops.elementwise.table import add, mul
from meshwright.ops.random.bits import random_bits
from meshwright.ops.random.floats import bits_needed, normal_of, uniform_between


@reads("stablehlo.rng")
def _read_rng(r: Any) -> Any:
    a, b, _ = r.operands
    (out,) = r.out_avals
    distribution = r.attr("rng_distribution")
    r.note(
        "rng has no key: every run of the program draws the same numbers; export it with a key (rng_bit_generator, "
        "or jax.random) to draw others"
    )
    key = np.array([0, r.module.next_draw()], np.uint32)
    if distribution == "UNIFORM" and (dtypes.is_float(out.dtype) or dtypes.is_integer(out.dtype)):
        return uniform_between(key, a, b, out)
    if not dtypes.is_float(out.dtype):
        r.fail(f"draws {distribution.lower()} numbers of {out.dtype}; expected floats, or uniform integers")
    return add(mul(normal_of(random_bits(key, bits_needed(out.dtype), out.shape), out.dtype), b), a)
