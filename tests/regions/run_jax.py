"""What JAX makes of the programs: seeds from the command line, results as a pickle to standard output."""

from __future__ import annotations

import os
import pickle
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"

import jax
import jax.numpy as jnp
from region_programs import AXES, Backend, evaluated


def main() -> None:
    """Run seeds ``first`` to ``last``, checked or not."""
    first, last, check = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "checked"
    kinds = (jax.sharding.AxisType.Auto,) * len(AXES)
    mesh = jax.make_mesh(tuple(AXES.values()), tuple(AXES), axis_types=kinds)
    backend = Backend(jnp, jax.lax, jax, mesh, jax.P)
    with open(sys.argv[4], "wb") as file:
        for seed in range(first, last):
            try:
                found = evaluated(backend, seed, check)
            except Exception as error:
                found = f"{type(error).__name__}: {error}"
            pickle.dump((seed, found), file)
            file.flush()


main()
