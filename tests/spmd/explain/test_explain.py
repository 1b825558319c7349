"""``explain``: causes, loops and branches, the annotation that removes a collective, and the forms it comes in."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax
from meshwright import PartitionSpec as P
from meshwright.errors import ArgumentError
from meshwright.spmd.reason import Merged

MESH = mw.AbstractMesh((2, 4), ("data", "model"))


def at(*spec: Any) -> NamedSharding:
    return NamedSharding(MESH, P(*spec))


def of(*shape: int, dtype: Any = np.float32) -> mw.ShapeDtypeStruct:
    return mw.ShapeDtypeStruct(shape, dtype)


def layers(x, w1, w2):
    return mnp.tanh(x @ w1) @ w2


def partitioned(function, shardings, *args, out=None):
    return mw.jit(function, in_shardings=shardings, out_shardings=out).lower(*args).partition(MESH)


# --- causes -------------------------------------------------------------------------------------------------
def test_axes_go_back_to_the_annotations_that_brought_them():
    """``model`` came to the hidden layer through the first weight, by name."""
    part = partitioned(layers, (at("data"), at(None, "model"), at()), of(8, 16), of(16, 32), of(32, 24))
    (entry,) = part.explain().entries
    assert entry.causes == ("model in the sharding of input 1 (w1)",)
    assert "caused by model in the sharding of input 1 (w1)" in part.explain()


def test_a_constraint_is_a_cause():
    def f(x):
        y = lax.with_sharding_constraint(mnp.sin(x), at("model"))
        return mnp.sum(y)

    part = partitioned(f, (at(),), of(1024, 3))  # of fewer rows, each device adds up all
    (entry,) = part.explain().entries
    (cause,) = entry.causes
    assert cause.startswith("model in the with_sharding_constraint at test_explain")


def test_an_output_is_a_cause():
    part = partitioned(lambda x, y: (mnp.sin(x), mnp.sum(mnp.sin(x) * y)), (None, None), of(8, 3), of(8, 3),
                       out=(at("model"), None))  # fmt: skip
    (entry,) = part.explain().entries
    assert entry.causes == ("model in the sharding of output 0",)


def test_values_of_equations_that_took_the_place_of_others_have_causes():
    """Rows are merged in the order of their tiles, so the sums are of values that there were not as axes spread."""

    def normalized(x):
        rows = x.reshape(-1, 8)
        rows = rows - rows.mean(1, keepdims=True)
        return (rows / mnp.sqrt((rows * rows).mean(1, keepdims=True) + 1)).reshape(x.shape)

    mesh = mw.AbstractMesh((2, 4, 2), ("data", "rows", "model"))
    split = NamedSharding(mesh, P("data", "rows", "model"))
    part = mw.jit(normalized, in_shardings=split, out_shardings=split).lower(of(4, 16, 8)).partition()
    assert {e.causes for e in part.explain().entries} == {("model in the sharding of input 0 (x)",)}


# --- loops and branches -------------------------------------------------------------------------------------
def test_a_loop_multiplies_and_a_branch_is_an_upper_bound():
    def f(p, x, w):
        x = lax.fori_loop(0, 5, lambda i, x: mnp.tanh(x @ w), x)
        return lax.cond(p, lambda x: mnp.tanh(x @ w), lambda x: x, x)

    shardings = (None, at(None, "model"), at("model"))
    part = partitioned(f, shardings, of(dtype=bool), of(4, 8), of(8, 8))
    looped = [e for e in part.explain().entries if e.collective.count == 5]
    bound = [e for e in part.explain().entries if e.collective.is_bound]
    assert looped and all("5 times" in str(e.collective) for e in looped)
    assert bound and all("only in one branch of a cond" in e.collective.reason for e in bound)
    assert "sends at most" in part.explain()
    assert part.explain().split("\n")[0].count("at most") == 2
    assert not any(e.collective.is_bound for e in looped)


def test_reasons_inside_a_loop_speak_of_the_loop():
    def f(x, w):
        return lax.fori_loop(0, 3, lambda i, x: mnp.tanh(x @ w) + mnp.sum(w), x)

    part = partitioned(f, (at(None, "model"), at("model")), of(4, 8), of(8, 8))
    reasons = [c.reason for c in part.collectives if c.count == 3]
    assert reasons and not any("output 0" in r or "input 1" in r for r in reasons)


# --- suggestions --------------------------------------------------------------------------------------------
def test_the_annotation_that_removes_a_gather():
    """The second weight is not split along the contracted dimension: the hidden layer is gathered for it."""
    shardings = (at("data"), at(None, "model"), at(None, "model"))
    part = partitioned(layers, shardings, of(64, 16), of(16, 512), of(512, 8), out=at("data"))
    plain, advised = part.explain(), part.explain(suggest=True)
    assert not any(e.suggestion for e in plain.entries)
    worst = advised.entries[0]
    assert worst.suggestion is not None and worst.suggestion.text == "P('model', None) as the sharding of input 2 (w2)"
    better = partitioned(layers, (*shardings[:2], at("model")), of(64, 16), of(16, 512), of(512, 8), out=at("data"))
    assert worst.suggestion.bytes_saved == part.bytes_sent - better.bytes_sent > 0
    assert f"removed by {worst.suggestion.text}: saves" in advised


def test_an_output_that_could_stay_split():
    part = partitioned(lambda x: mnp.sin(x), (at("model"),), of(64, 16), out=at())
    (entry,) = part.explain(suggest=True).entries
    assert entry.suggestion is not None and entry.suggestion.bytes_saved == part.bytes_sent
    assert "P(" in entry.suggestion.text


def test_an_intermediate_value():
    """Two uses of a value want different layouts; held in the one of the larger, it is moved once."""

    def f(x, w):
        y = mnp.sin(x)
        return mnp.cumsum(y, 0), y @ w

    part = partitioned(f, (at("model"), at()), of(64, 32), of(32, 4))
    found = part.explain(suggest=True)
    assert all(e.suggestion is None or e.suggestion.bytes_saved > 0 for e in found.entries)
    assert found.notes[-1].endswith("annotations were tried")


def test_no_advice_to_repeat_arithmetic():
    """Replicating the batch would save the gradient's all-reduce, and make every device do everything."""

    def loss(w, x):
        return mnp.sum(mnp.tanh(x @ w))

    part = partitioned(mw.grad(loss), (at(), at("data")), of(16, 16), of(8, 16))
    found = part.explain(suggest=True)
    assert "data in the sharding of input 1 (x)" in found
    assert all(e.suggestion is None or "input 1" not in e.suggestion.text for e in found.entries)


def test_limits_and_progress():
    part = partitioned(layers, (at("data"), at(None, "model"), at(None, "model")), of(8, 16), of(16, 32), of(32, 8))
    steps = []
    part.explain(suggest=True, tries=3, progress=lambda *numbers: steps.append(numbers))
    assert steps[0][:2] == (0, len(part.explain().entries)) and all(tries <= 3 for *_, tries in steps)
    assert any("no time was left" in note for note in part.explain(suggest=True, seconds=0).notes)


# --- repeated arithmetic ------------------------------------------------------------------------------------
def test_repeated_arithmetic_names_the_idle_axis_and_what_shares_it():
    """Nothing is split by ``data``: the two halves of the mesh do the same."""
    args = of(32, 64), of(64, 512), of(512, 64)
    part = partitioned(layers, (at(), at(None, "model"), at("model")), *args, out=at())
    plain, advised = part.explain(), part.explain(suggest=True)
    (entry,) = plain.repeated
    assert entry.idle == ("data",) and entry.repeated.times == 2 and entry.causes == () and entry.suggestion is None
    # Half of the two products is too much.
    assert entry.seconds == pytest.approx(sum(p.seconds for p in part.time().parts if p.op == "dot_general") / 2)
    assert "because data splits none of its dimensions" in plain
    found = advised.repeated[0].suggestion
    assert found is not None and found.text == "P('data', None) as the sharding of input 0 (x)"
    better = partitioned(layers, (at("data"), at(None, "model"), at("model")), *args, out=at())
    assert better.work.redundancy == 1.0 and found.work_added == pytest.approx(-0.5, abs=0.01)
    assert f"removed by {found.text}: saves" in advised and found.seconds_saved > 0
    (row,) = (r for r in advised.rows() if r["kind"] == "repeated arithmetic")
    assert json.loads(json.dumps(row)) == row and row["idle"] == ["data"] and row["suggestion"] == found.text
    assert "repeated" not in better.explain(suggest=True)


def test_what_is_repeated_besides_products_is_named_too():
    """Nothing splits random numbers that are made of one key: what is made of them could be shared."""

    def price(key, rate):
        return mnp.exp(rate * mw.random.normal(key, (1 << 12, 64))).mean()

    part = mw.jit(price).lower(mw.random.key(0), 0.5).partition(MESH)
    assert part.work.products == (0, 0) and part.work.redundancy == 8
    found = part.explain(suggest=True).repeated
    assert found and all(entry.idle == ("data", "model") and entry.repeated.times == 8 for entry in found)
    assert sum(entry.seconds for entry in found) > 0.3 * part.time().seconds
    made = next(entry for entry in found if entry.repeated.op == "random_bits")
    assert (
        made.suggestion is not None
        and "P(('data', 'model'), None) on the result of random_bits" in made.suggestion.text
    )


def test_an_axis_that_operands_disagree_about_has_causes():
    """Rows of the one and columns of the other operand are split by the same axis: one of the two is gathered."""
    part = partitioned(lambda a, b: a @ b, (at("model"), at(None, "model")), of(512, 512), of(512, 512), out=at())
    idle = {axis for entry in part.explain().repeated for axis in entry.idle}
    assert idle == {"data"}
    assert "caused by model in the sharding of input 1 (b)" in part.explain()


def test_collectives_are_ranked_by_their_time():
    """The larger sum goes over the links of a node, and takes less time than the smaller one between nodes."""
    mesh = mw.AbstractMesh((2, 4), ("data", "model"), machine="h100:2x4")
    on, rows, columns = (NamedSharding(mesh, P(*axes)) for axes in (("data", "model"), ("data",), ("model",)))
    run = mw.jit(lambda x: (x.sum(0), x.sum(1)), in_shardings=on, out_shardings=(columns, rows))
    entries = run.lower(of(1 << 14, 1 << 13)).partition().explain().entries
    assert entries[0].seconds > entries[1].seconds > 0
    assert entries[0].bytes_sent < entries[1].bytes_sent and entries[0].collective.axes == ("data",)


# --- forms --------------------------------------------------------------------------------------------------
def test_rows_and_html():
    part = partitioned(layers, (at("data"), at(None, "model"), at("model")), of(8, 16), of(16, 32), of(32, 24))
    found = part.explain(suggest=True)
    (row,) = json.loads(json.dumps(found.rows()))
    assert row["kind"] == "all_reduce" and row["axes"] == ["model"] and row["bytes_sent"] == part.bytes_sent
    assert row["operand"] == "f32[4,24]" and row["share"] == 1.0 and row["causes"]
    assert isinstance(found, str) and repr(found) == str(found) and found.splitlines()[0] in found
    page = found._repr_html_()
    assert page.count("<tr>") == 2 and "all_reduce over model" in page and "&lt;" not in page.split("<td>")[0]


def test_nothing_to_explain():
    found = partitioned(lambda x: mnp.sin(x), (at("data"),), of(8, 4)).explain(suggest=True)
    assert found.entries == () and found.startswith("0 collectives on mesh data=2 × model=4; each device sends 0 B")


# --- combining and passes -----------------------------------------------------------------------------------
def test_combining_is_asked_for():
    def f(x):
        return mnp.sum(x, 0), mnp.sum(mnp.sin(x), 0)

    lowered = mw.jit(f, in_shardings=(at("model"),), out_shardings=(at(), at())).lower(of(8, 4))
    alone, together = lowered.partition(), lowered.partition(combine_bytes=1 << 20)
    assert [c.kind for c in alone.collectives] == ["all_reduce"] * 2
    (one,) = together.collectives
    assert one.operand.shape == (8,) and together.bytes_sent == alone.bytes_sent and len(one.reasons) == 2
    assert any("combine small collectives: 2 -> 1" in note for note in together.explain().notes)
    together.verify()
    with pytest.raises(ArgumentError, match="combine_bytes: expected a number that is not negative, got -1"):
        lowered.partition(combine_bytes=-1)


def test_merged_reasons_name_all():
    part = mw.jit(lambda x: (mnp.sum(x, 0), mnp.sum(mnp.sin(x), 0)), in_shardings=(at("model"),),
                  out_shardings=(at(), at())).lower(of(8, 4)).partition(combine_bytes=1 << 20)  # fmt: skip
    (one,) = part.collectives
    notes = [e.note for e in part.jaxpr.eqns if e.op.name == "psum"]
    assert isinstance(notes[0], Merged) and "output 0 has to be whole; also, at test_explain.py" in one.reason
    assert one.reason.endswith("output 1 has to be whole")


def test_what_one_device_does_quicker_is_said():
    """A small product on a machine that has a name; a large one is none."""

    def alone(side, machine):
        mesh = mw.AbstractMesh((8,), ("x",), machine=machine)
        rows, columns = NamedSharding(mesh, P("x")), NamedSharding(mesh, P(None, "x"))
        like = mw.ShapeDtypeStruct((side, side), np.float32)
        step = mw.jit(lambda x, w: mnp.tanh(x @ w), in_shardings=(columns, rows), out_shardings=rows)
        return [note for note in step.lower(like, like).partition().explain().notes if "alone" in note]

    (note,) = alone(64, "v5e:2x4")
    assert note.startswith("one device alone would take ") and note.endswith(": the program is too small for 8 devices")
    assert not alone(8192, "v5e:2x4") and not alone(64, None)
