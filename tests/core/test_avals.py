"""The methods of types that programs for JAX call, against JAX's."""

import jax
import numpy as np
import pytest

import meshwright as mw

VALUES = {"number": 1.0, "integer": 1, "floats": np.ones(2, np.float32), "bools": np.ones(2, bool)}
METHODS = {
    "at_least_vspace": lambda a: a.at_least_vspace(),
    "to_tangent_aval": lambda a: a.to_tangent_aval(),
    "to_ct_aval": lambda a: a.to_ct_aval(),
    "strip_weak_type": lambda a: a.strip_weak_type(),
    "update_weak_type": lambda a: a.update_weak_type(True),
}


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("method", METHODS)
def test_methods_of_types(method: str, value: str) -> None:
    got, want = (METHODS[method](m.typeof(VALUES[value])) for m in (mw, jax))
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    if want.dtype not in (jax.dtypes.float0, bool):  # no type gives way to a weak bool: bools are not weak here
        assert got.weak_type == want.weak_type


def test_types_are_shown_as_in_jax() -> None:
    for value in (*VALUES.values(), np.ones((2, 3), np.uint8)):
        got, want = mw.typeof(value), jax.typeof(value)
        assert repr(got) == repr(want)
        assert [got.str_short(), got.str_short(short_dtypes=True)] == [
            want.str_short().removeprefix("~"),
            want.str_short(short_dtypes=True),
        ]


def test_types_say_along_which_axes_values_differ() -> None:
    seen = []
    for m in (mw, jax):
        mesh = m.sharding.Mesh(np.array(m.devices()[:1]), ("x",))
        spec = m.sharding.PartitionSpec("x")
        m.shard_map(lambda x, m=m: seen.append(m.typeof(x).manual_axis_type) or x, mesh=mesh, in_specs=spec,
                    out_specs=spec)(np.ones(2, np.float32))  # fmt: skip
    got, want = seen
    assert type(got) is mw.sharding.ManualAxisType and got is not want
    for name in ("varying", "unreduced", "reduced"):
        assert getattr(got, name) == getattr(want, name)
