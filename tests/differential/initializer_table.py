# ruff: noqa: E501
"""Calls of what every function of ``meshwright.nn.initializers`` makes, when that is called with a key."""

from __future__ import annotations

from typing import Any

from kinds import Kind
from outcomes import Of, call

SYNONYMS: dict[str, str] = {}
ELSEWHERE = "Initializer"
KEY = Of(lambda m: m.random.key(3), "key")
SHAPES = ((3, 4), (2, 3, 4), (0, 3), (4,), (3, 3, 2, 4))
NAMES = (
    "constant delta_orthogonal glorot_normal glorot_uniform he_normal he_uniform kaiming_normal kaiming_uniform lecun_normal "
    "lecun_uniform normal orthogonal truncated_normal uniform variance_scaling xavier_normal xavier_uniform"
)
#: those that are initializers themselves
READY = "ones zeros"


def _made(name: str) -> Kind:
    first = {"constant": (2.5,), "variance_scaling": (2.0, "fan_avg", "uniform")}.get(name, ())
    options: list[dict[str, Any]] = [{}, {"dtype": "float16"}, {"dtype": "complex64"}]
    if name.split("_")[-1] in ("normal", "uniform") and name not in ("normal", "uniform", "truncated_normal"):
        options += [{"in_axis": 0, "out_axis": 1}, {"batch_axis": 0}]
    if "orthogonal" in name:
        options += [{"scale": 2.0, "column_axis": 0}]
    if name in ("normal", "truncated_normal"):
        options += [{"stddev": 2.0}]
    return Kind(lambda d: [], tuple(call(*first, made=(KEY, s), **o) for o in options for s in SHAPES), loose=8)


def _ready(name: str) -> Kind:
    return Kind(lambda d: [call(KEY, (2, 3), d.name)], (call(KEY, (2,)), call(KEY, (0, 3)), call(KEY, ())))


TABLE = {**{n: _made(n) for n in NAMES.split()}, **{n: _ready(n) for n in READY.split()}}
