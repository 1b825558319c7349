"""Samples of every registered op: what the checks of this folder go over."""

from samples.elementwise import elementwise_samples
from samples.sample import Sample, floats, ints, sample
from samples.structural import structural_samples
from samples.windowed import windowed_samples

#: every sample
SAMPLES: list[Sample] = [*elementwise_samples(), *structural_samples(), *windowed_samples()]

#: ops without samples, and why
WITHOUT_SAMPLE: dict[str, str] = {
    "jit": "holds a jaxpr: tests/transforms and tests/api",
    "custom_jvp_call": "holds a jaxpr: tests/transforms",
    **dict.fromkeys(
        ("psum", "pmax", "pmin", "pprod", "pand", "por", "all_gather", "all_slice", "reduce_scatter", "all_to_all",
         "ppermute", "axis_index"),
        "needs a named axis: tests/registry/test_collectives.py",
    ),
}  # fmt: skip
