"""Per-device programs with a mistake in them: ``verify`` finds each that changes a result, and says where it is."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
from mutations import Mutation, computed_in, mutations, summed_after

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax, nn
from meshwright import PartitionSpec as P
from meshwright.api.partitioned import PartitionedProgram
from meshwright.errors import MeshwrightWarning, VerificationError
from meshwright.ir.jaxpr import Jaxpr, JaxprEqn, Var
from meshwright.lowering.batched import virtual_program
from meshwright.ops.elementwise.table import ConvertElementType
from meshwright.runtime.array import default_sharding
from meshwright.runtime.compiling import compile_jaxpr

MESH = mw.AbstractMesh((2, 2), ("x", "y"))
#: sizes that divide few of the programs' dimensions
MESHES = [mw.AbstractMesh(s, ("x", "y")) for s in ((2, 3), (4, 2), (3, 1), (8, 1))]
F32 = np.float32


def _loss(x, w1, w2):
    return mnp.mean(mnp.square(nn.softmax(mnp.tanh(x @ w1) @ w2)))


def _microbatches(xs, w):
    def step(total, x):
        return total + mnp.sum(mnp.sin(x @ w), 0), mnp.max(x @ w, axis=-1)

    return lax.scan(step, mnp.zeros((6,)), xs)


def _newton(x):
    return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, mnp.cos(s[1]) - mnp.mean(s[1])), (0, x))[1]


def _either(x, y):
    return lax.cond(mnp.sum(y) > 0, lambda a: mnp.cumsum(a, 0), lambda a: mnp.roll(a, 1, 0), x)


#: function, shapes or arrays of its arguments, specs
PROGRAMS = {
    "step": (mw.grad(_loss, argnums=(1, 2)), [(8, 6), (6, 10), (10, 4)], [P("x"), P(None, "y"), P("y")]),
    "uneven": (lambda x: (mnp.sum(mnp.exp(x), 0), mnp.max(x, 1), mnp.min(x)), [(7, 5)], [P("x", "y")]),
    "windows": (lambda x, k: nn.conv(x, k, strides=1), [(2, 9, 3), (3, 3, 4)], [P(None, "x"), P()]),
    "roll": (lambda x: mnp.roll(x, 3, 0) - mnp.flip(x, 0) + mnp.diff(x, axis=0, append=x[:1]), [(8, 3)], [P("x")]),
    "table": (lambda t, i: mnp.take(t, i, axis=0), [(12, 4), np.arange(10, dtype=np.int32)], [P("x"), P("y")]),
    "update": (
        lambda t, i, u: (t.at[i].add(u), lax.dynamic_slice_in_dim(t, i[0], 3, 0)),
        [(9, 4), np.arange(5, dtype=np.int32), (5, 4)],
        [P("x"), P(), P("y")],
    ),
    "cumulative": (lambda x: (mnp.cumsum(x, 0), mnp.sort(x, 1)), [(9, 6)], [P("x", "y")]),
    "reshape": (lambda x: mnp.reshape(mnp.swapaxes(x, 0, 1), (4, 12)), [(6, 8)], [P(("x", "y"))]),
    "scan": (_microbatches, [(3, 8, 4), (4, 6)], [P(None, "x"), P(None, "y")]),
    "while": (_newton, [(8, 3)], [P("x")]),
    "cond": (_either, [(8, 3), (4,)], [P("x"), P("y")]),
}  # fmt: skip


def partitioned(name: str, mesh: mw.AbstractMesh = MESH) -> PartitionedProgram:
    function, arguments, specs = PROGRAMS[name]
    args = [a if isinstance(a, np.ndarray) else np.zeros(a, F32) for a in arguments]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MeshwrightWarning)
        shardings = tuple(NamedSharding(mesh, s) for s in specs)
        return mw.jit(lambda *a: function(*a), in_shardings=shardings).lower(*args).partition()


def drawn(part: PartitionedProgram, seed: int) -> list[np.ndarray]:
    """Inputs that have nothing to do with those that ``verify`` draws."""
    rng = np.random.default_rng(100 + seed)
    size = part.part.source.in_avals[0].shape[0]
    return [
        rng.integers(0, size, a.shape).astype(a.dtype) if a.dtype.kind == "i" else rng.normal(size=a.shape).astype(F32)
        for a in part.part.source.in_avals
    ]


def changes_results(part: PartitionedProgram, mistaken: PartitionedProgram) -> bool:
    """Whether a mistake shows: some are none, such as a mask that is wrong where nobody looks."""
    right, wrong = (
        compile_jaxpr(
            virtual_program(p.part, copies=True), "mutant", [default_sharding()] * len(p.part.out_layouts), quick=True
        )
        for p in (part, mistaken)
    )
    return all(
        any(
            not np.allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-4, equal_nan=True)
            for a, b in zip(right(args), wrong(args))
        )
        for args in (drawn(part, seed) for seed in range(2))
    )


def with_mistake(part: PartitionedProgram, mutation: Mutation) -> PartitionedProgram:
    changed = dataclasses.replace(part.part, jaxpr=mutation.applied(part.jaxpr))
    return PartitionedProgram(part.program, changed)


def reached(jaxpr: Jaxpr, place: int) -> Iterator[int]:
    """The equations that depend on the results of equation ``place``, and it itself."""
    found: set[Var] = set()
    for number, eqn in enumerate(jaxpr.eqns):
        if number == place or any(a in found for a in eqn.invars if isinstance(a, Var)):
            found.update(eqn.outvars)
            yield number


def check(part: PartitionedProgram, mutation: Mutation) -> bool:
    """Whether a mistake matters; if it does, it must be found, at an equation that it reaches."""
    mistaken = with_mistake(part, mutation)
    if not changes_results(part, mistaken):
        return False
    with pytest.raises(VerificationError, match="they first differ after") as caught:
        mistaken.verify()
    first = caught.value.first
    inner, changed = part.jaxpr.jaxpr, mistaken.jaxpr.jaxpr
    if not first.inside:
        more = len(mutation.eqns) - 1
        sources = [changed.eqns[i].source for i in reached(changed, mutation.place + more)]
        assert first.local.source in sources, (mutation.kind, str(inner.eqns[mutation.place]), str(first))
    return True


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_right(name):
    found = partitioned(name).verify()
    assert found.finite == 1 and found.precision == "float64" and found.worst.relative < 1e-12


@pytest.mark.parametrize("name", PROGRAMS)
def test_some_mistakes(name):
    part = partitioned(name)
    every = list(mutations(part.jaxpr.jaxpr, MESH))
    assert sum(check(part, m) for m in every[:: max(1, len(every) // 6)]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_some_mistakes_on_other_meshes(name, mesh):
    part = partitioned(name, mesh)
    every = list(mutations(part.jaxpr.jaxpr, mesh))
    assert part.verify() and sum(check(part, m) for m in every[:: max(1, len(every) // 6)]) > 0


def test_every_device_must_have_what_all_should_have():
    """Mistakes that the first device does not see: the others keep their own terms of a sum."""
    part = partitioned("uneven")
    alone = [m for m in mutations(part.jaxpr.jaxpr, MESH) if m.kind.endswith("on the first device alone")]
    assert len(alone) >= 3
    for mutation in alone:
        with pytest.raises(VerificationError, match="on devices that should have what the first one has"):
            with_mistake(part, mutation).verify()


def test_roundings_that_the_program_does_not_have_are_found(refuses):
    """Float64 would hide that a sum is made in bfloat16, or that a result has another type."""
    part = partitioned("uneven")
    eqns = part.jaxpr.jaxpr.eqns
    place = next(i for i, e in enumerate(eqns) if e.op.name == "psum")
    with refuses(VerificationError, "rounds float32 to bfloat16"):
        with_mistake(part, Mutation("bfloat16", place, tuple(computed_in(eqns[place], ml_dtypes.bfloat16)))).verify()
    program = part.jaxpr.jaxpr
    result = Var(program.outvars[0].aval.update(dtype=np.dtype(ml_dtypes.bfloat16)))
    rounded = JaxprEqn(ConvertElementType(result.aval.dtype), [program.outvars[0]], [result])
    narrow = part.jaxpr.replace(jaxpr=program.replace(eqns=[*eqns, rounded], outvars=[result, *program.outvars[1:]]))
    with refuses(VerificationError, "output 0 is bf16"):
        PartitionedProgram(part.program, dataclasses.replace(part.part, jaxpr=narrow)).verify()


def _in_place(part, place, eqns, dropped=0):
    program = part.jaxpr.jaxpr
    every = [*program.eqns[:place], *eqns, *program.eqns[place + 1 + dropped :]]
    changed = part.jaxpr.replace(jaxpr=program.replace(eqns=every))
    return PartitionedProgram(part.program, dataclasses.replace(part.part, jaxpr=changed))


def _mixed(x, w):
    return mnp.matmul(x, w, preferred_element_type=F32).astype(x.dtype), mnp.sum(x, 0), mnp.mean(x)


def test_sums_in_types_that_the_program_has_elsewhere(refuses):
    """The program rounds to bfloat16, but not its terms, nor what it sums."""
    narrow = ml_dtypes.bfloat16
    shardings = (NamedSharding(MESH, P("x", "y")), NamedSharding(MESH, P("y")))
    part = mw.jit(_mixed, in_shardings=shardings).lower(np.zeros((7, 5), narrow), np.zeros((5, 3), narrow)).partition()
    eqns = part.jaxpr.jaxpr.eqns
    assert part.verify()
    sums = [i for i, e in enumerate(eqns) if e.op.name == "psum"]
    assert len(sums) >= 3
    for place in sums:
        with refuses(VerificationError, "converts bfloat16 to float32"):
            _in_place(part, place, computed_in(eqns[place], narrow)).verify()
    early = [i for i in sums if eqns[i + 1].op.name == "convert_element_type"]
    assert early
    for place in early:
        with refuses(VerificationError, "sums after what rounds float32 to bfloat16, not before"):
            _in_place(part, place, summed_after(eqns[place], eqns[place + 1]), dropped=1).verify()
    place = next(i for i, e in enumerate(eqns) if e.op.name == "dot_general")
    product = Var(eqns[place].outvars[0].aval.update(dtype=np.dtype(narrow)))
    op = dataclasses.replace(eqns[place].op, preferred_element_type=np.dtype(narrow))
    wide = JaxprEqn(ConvertElementType(np.dtype(F32)), [product], list(eqns[place].outvars))
    with refuses(VerificationError, "as dot_general of the program"):
        _in_place(part, place, [eqns[place].replace(op=op, outvars=[product]), wide]).verify()


@pytest.mark.parametrize("dtype", ["int8", "int16", "float32"])
def test_integers_summed_in_types_that_do_not_hold_them(dtype, refuses):
    """What is drawn is small enough to fit."""
    x = NamedSharding(MESH, P("x"))
    part = mw.jit(lambda v: mnp.sum(v, 0), in_shardings=(x,)).lower(np.zeros((7, 5), np.int32)).partition()
    eqns = part.jaxpr.jaxpr.eqns
    (place,) = (i for i, e in enumerate(eqns) if e.op.name == "psum")
    with refuses(VerificationError, f"rounds int32 to {dtype}"):
        _in_place(part, place, computed_in(eqns[place], dtype)).verify()


def test_results_in_the_wrong_place(refuses):
    """Every value inside is right; what is returned, or how it is read, is not."""
    x = NamedSharding(MESH, P("x", "y"))
    part = mw.jit(lambda v: (mnp.sin(v), mnp.cos(v)), in_shardings=(x,)).lower(np.zeros((4, 4), F32)).partition()
    program = part.jaxpr.jaxpr
    swapped = part.jaxpr.replace(jaxpr=program.replace(outvars=program.outvars[::-1]))
    with refuses(VerificationError, "devices return the result of cos", "the program the result of sin"):
        PartitionedProgram(part.program, dataclasses.replace(part.part, jaxpr=swapped)).verify()
    first, second = part.part.out_layouts
    turned = dataclasses.replace(first, dims=first.dims[::-1])
    with refuses(VerificationError, "laid out as [{x}, {y}], and it is read as [{y}, {x}]"):
        PartitionedProgram(part.program, dataclasses.replace(part.part, out_layouts=[turned, second])).verify()


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_all_mistakes(name):
    part = partitioned(name)
    every = list(mutations(part.jaxpr.jaxpr, MESH))
    assert sum(check(part, m) for m in every) > len(every) / 4
