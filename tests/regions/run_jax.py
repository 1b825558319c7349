"""What JAX makes of the programs: ``run_jax.py FILE [FIRST LAST KIND]...`` writes a pickled result for each."""

from __future__ import annotations

import os
import pickle
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"

import jax
import jax.numpy as jnp
from region_programs import AXES, Backend, evaluated


def main() -> None:
    """Run the seeds from ``FIRST`` up to ``LAST`` of each kind."""
    types = (jax.sharding.AxisType.Auto,) * len(AXES)
    mesh = jax.make_mesh(tuple(AXES.values()), tuple(AXES), axis_types=types)
    backend = Backend(jnp, jax.lax, jax, mesh, jax.P)
    with open(sys.argv[1], "wb") as file:
        for first, last, kind in zip(*(sys.argv[i::3] for i in (2, 3, 4))):
            for seed in range(int(first), int(last)):
                try:
                    found = evaluated(backend, seed, kind)
                except Exception as error:
                    found = f"{type(error).__name__}: {error}"
                pickle.dump((seed, kind, found), file)
                file.flush()


main()
