"""Reading rule of ``rng``, StableHLO's draw without a key.

Which numbers it draws is left to the implementation; XLA's change from run to run, and with the number of devices.
Here they come from a counter-based generator under a key that is the draw's number in the program: every device makes
those of its own tile, all partitions of a program draw the same ones, and so does every run of it, which is said.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.core import dtypes
from meshwright.ir.reading import reads
from meshwright.ops.elementwise import add, convert, mul, rem, sub
from meshwright.ops.random_bits import random_bits
from meshwright.ops.random_floats import bits_needed, normal_of, scaled, unit_of


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
    if dtypes.is_float(out.dtype):
        drawn = random_bits(key, bits_needed(out.dtype), out.shape)
        if distribution == "UNIFORM":
            return scaled(unit_of(drawn, out.dtype), a, b)
        return add(mul(normal_of(drawn, out.dtype), b), a)
    if not dtypes.is_integer(out.dtype) or distribution != "UNIFORM":
        r.fail(f"draws {distribution.lower()} numbers of {out.dtype}; expected floats, or uniform integers")
    width = max(32, dtypes.bit_width(out.dtype))
    unsigned = np.dtype(f"uint{width}")
    drawn = random_bits(key, width, out.shape)
    span = convert(sub(b, a), unsigned)
    return add(convert(rem(drawn, span), out.dtype), a)
