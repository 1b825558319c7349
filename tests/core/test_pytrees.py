"""Pytrees: functions, key paths and registration against ``jax.tree`` and ``jax.tree_util``."""

import collections
import dataclasses
import functools
import operator
import warnings

import jax
import numpy as np
import optree
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import PartitionSpec as P
from meshwright import errors, tree_util
from meshwright.core import pytree

Point = collections.namedtuple("Point", "x y")


class Interval:
    """Registered without keys."""

    def __init__(self, low, high, unit):
        self.low, self.high, self.unit = low, high, unit


class Keyed(Interval):
    """Registered with keys."""


@dataclasses.dataclass
class Layer:
    """Registered as a dataclass."""

    weight: object
    bias: object
    name: str = dataclasses.field(default="dense", metadata={"static": True})


def keyed_children(keys):
    return lambda k: (((keys.GetAttrKey("low"), k.low), (keys.DictKey("high"), k.high)), k.unit)


for library in (tree_util, jax.tree_util):
    library.register_pytree_node(Interval, lambda i: ((i.low, i.high), i.unit), lambda u, ends: Interval(*ends, u))
    library.register_pytree_with_keys(Keyed, keyed_children(library), lambda u, ends: Keyed(*ends, u))
    library.register_dataclass(Layer)

TREES = {
    "leaf": 3,
    "none": None,
    "empty": {"a": (), "b": [None]},
    "nested": {"b": [1, (2, 3)], "a": {"z": 4, "y": None}},
    "numbered": {3: 1, 1: [2]},
    "named": [Point(1, {"k": 2}), 3],
    "ordered": collections.OrderedDict(z=1, a=collections.defaultdict(list, q=2)),
    "classes": {"i": Interval(1, [2, 3], "m"), "k": Keyed({"a": 4}, 5, "s"), "l": [Layer(6, (7, 8))]},
}


@pytest.mark.parametrize("name", TREES)
def test_leaves_paths_and_back(name):
    tree = TREES[name]
    ours, treedef = mw.tree.flatten_with_path(tree)
    theirs, _ = jax.tree_util.tree_flatten_with_path(tree)
    assert [x for _, x in ours] == [x for _, x in theirs] == mw.tree.leaves(tree)
    assert [str(path) for path, _ in ours] == [str(path) for path, _ in theirs]
    assert [tree_util.keystr(path) for path, _ in ours] == [jax.tree_util.keystr(path) for path, _ in theirs]
    assert mw.tree.paths(tree) == [tree_util.keystr(path) for path, _ in ours]
    for separator in ("", "/"):
        assert [tree_util.keystr(p, simple=True, separator=separator) for p, _ in ours] == [
            jax.tree_util.keystr(p, simple=True, separator=separator) for p, _ in theirs
        ]
    assert mw.tree.structure(mw.tree.unflatten(treedef, iter(range(treedef.num_leaves)))) == treedef


@pytest.mark.parametrize("name", TREES)
def test_functions_of_one_tree(name):
    tree = TREES[name]
    for library in (mw.tree, jax.tree):
        assert library.reduce(lambda s, x: [*s, x], tree, ["start"]) == ["start", *mw.tree.leaves(tree)]
    assert mw.tree.all(tree) == jax.tree.all(tree) is True
    numbered = {"a": tree, "b": [0, 5]}
    assert mw.tree.all(numbered) == jax.tree.all(numbered) is False
    assert mw.tree.reduce_associative(operator.add, tree, identity=0) == sum(mw.tree.leaves(tree))
    flat = lambda library, t: library.leaves(library.map_with_path(lambda p, x, y: (str(p), x, y), t, t))  # noqa: E731
    assert flat(mw.tree, tree) == flat(jax.tree, tree)


@pytest.mark.parametrize("count", range(1, 10))
def test_reduce_associative_keeps_the_order_at_logarithmic_depth(count):
    words = list("abcdefghi"[:count])
    assert mw.tree.reduce_associative(operator.add, words) == jax.tree.reduce_associative(operator.add, words)
    depth = mw.tree.reduce_associative(lambda x, y: max(x, y) + 1, [0] * count)
    assert depth == (count - 1).bit_length()


def test_is_leaf_that_takes_the_path():
    tree = {"a": [1, [2, 3]], "b": {"c": [1, [2, 3]], "d": None}}
    shared = [4, 5]
    tree["e"], tree["f"] = shared, shared  # one object in two places: chosen by its path in one

    def chosen(text):
        return lambda path, x: "".join(map(str, path)) in ("['a'][1]", "['b']", "['e']", text)

    for text in ("no path", "['b']['c']", "['f'][0]"):
        ours, treedef = mw.tree.flatten_with_path(tree, chosen(text), is_leaf_takes_path=True)
        theirs, other = jax.tree_util.tree_flatten_with_path(tree, chosen(text), is_leaf_takes_path=True)
        assert [(str(p), x) for p, x in ours] == [(str(p), x) for p, x in theirs]
        assert treedef.num_leaves == other.num_leaves
    whole = mw.tree.map_with_path(lambda p, x: len(p), tree, is_leaf=chosen("no path"), is_leaf_takes_path=True)
    assert whole == {"a": [2, 2], "b": 1, "e": 1, "f": [2, 2]}


def test_broadcast_and_transpose():
    full = {"a": [1, (2, 3)], "b": 4}
    for prefix in (7, {"a": 8, "b": 9}, {"a": [5, 6], "b": 7}):
        assert mw.tree.broadcast(prefix, full) == jax.tree.broadcast(prefix, full)
    nested = [({"k": 1}, 2), ({"k": 3}, 4), ({"k": 5}, 6)]
    outer, inner = [0, 0, 0], ({"k": 0}, 0)
    expected = ({"k": [1, 3, 5]}, [2, 4, 6])
    for library in (mw.tree, jax.tree):
        structure = library.structure
        assert library.transpose(structure(outer), structure(inner), nested) == expected
        assert library.transpose(structure(outer), None, nested) == expected


def test_structures():
    treedef = mw.tree.structure({"a": 1, "b": [2, 3]})
    assert tree_util.treedef_tuple(tree_util.treedef_children(treedef)) == mw.tree.structure((1, [2, 3]))
    assert tree_util.treedef_is_leaf(mw.tree.structure(0)) and not tree_util.treedef_is_leaf(treedef)
    assert tree_util.all_leaves([1, "x"]) and not tree_util.all_leaves([1, None])
    for kind in (list, dict, type(None), Interval, Layer, Point, int, str, np.ndarray):
        assert tree_util.is_tree_node(kind) == jax.tree_util.is_tree_node(kind), kind


def test_keys_are_values():
    assert tree_util.DictKey("a") == tree_util.DictKey("a") != tree_util.GetAttrKey("a")
    assert len({tree_util.SequenceKey(1), tree_util.SequenceKey(1), tree_util.FlattenedIndexKey(1)}) == 2


# --- classes ------------------------------------------------------------------------------------------------
def test_static_fields_and_values():
    @tree_util.register_dataclass
    @dataclasses.dataclass
    class Scale:
        factor: object
        unit: str = mw.tree.static(default="metre")

    @tree_util.register_static
    class Mode(str):
        pass

    double = mw.jit(lambda s, mode: mw.tree.map(lambda x: 2 * x if mode == "double" else x, s))
    assert float(double(Scale(3.0), Mode("double")).factor) == 6.0
    found = double(Scale(3.0, "inch"), Mode("keep"))
    assert (float(found.factor), found.unit) == (3.0, "inch")


def test_dropped_fields():
    @functools.partial(tree_util.register_dataclass, drop_fields=["cache"])
    @dataclasses.dataclass
    class Model:
        weight: float
        cache: list = dataclasses.field(default_factory=list)

    again = mw.tree.map(lambda x: x + 1, Model(1.0, ["old"]))
    assert again.weight == 2.0 and not hasattr(again, "cache")


def test_partial_goes_through_transformations():
    model = tree_util.Partial(lambda w, b, x, power: (w * x + b) ** power, mnp.array([1.0, 2.0]), 0.5, power=3)
    apply = mw.jit(lambda f, x: f(x))
    expected = (np.array([1.0, 2.0]) * 4.0 + 0.5) ** 3
    np.testing.assert_allclose(apply(model, 4.0), expected, rtol=1e-6)
    assert mw.tree.paths(model) == [".args[0]", ".args[1]", ".keywords['power']"]
    gradient = mw.grad(lambda f: f(4.0).sum())(tree_util.Partial(*_head(model), power=3.0))
    assert isinstance(gradient, tree_util.Partial) and gradient.func is model.func
    np.testing.assert_allclose(gradient.args[0], 3 * (np.array([1.0, 2.0]) * 4.0 + 0.5) ** 2 * 4.0, rtol=1e-6)


def _head(model):
    return model.func, *model.args


def test_partial_of_partials():
    inner = functools.partial(int, base=2)  # bound values that are no arrays stay with the function
    assert mw.tree.leaves(tree_util.Partial(inner, 5)) == [5]
    assert tree_util.Partial(inner, "101")() == 5
    twice = tree_util.Partial(tree_util.Partial(operator.sub, 7), 3)
    assert twice() == 4 and mw.tree.leaves(twice) == [7, 3]
    mixed = tree_util.Partial(functools.partial(lambda f, x: f(x), str), 8)
    assert mw.tree.map(lambda x: x + 1, mixed)() == "9"


# --- errors -------------------------------------------------------------------------------------------------
def test_trees_that_do_not_fit(refuses):
    with refuses(ValueError, "tree.map: rest[1]", "at ['b'][1]: a tuple of 2 against a tuple of 1"):
        mw.tree.map(lambda *xs: xs, {"b": [1, (2, 3)]}, {"b": [1, (2, 3)]}, {"b": [1, (2,)]})
    with refuses(ValueError, "tree.map", "at the top", "keys 'a'", "keys 'a', 'c'"):
        mw.tree.map(lambda *xs: xs, {"a": 1}, {"a": 1, "c": 2})
    with refuses(ValueError, "tree.map", "at [0]: a list of 1 against a leaf"):
        mw.tree.map(lambda *xs: xs, [[1]], [1])
    with refuses(ValueError, "tree.map", "at [0]: None against a leaf"):
        mw.tree.map(lambda *xs: xs, [None], [1])
    with refuses(ValueError, "tree.map", "at .x", "Layer"):
        mw.tree.map(lambda *xs: xs, Point(Layer(1, 2, "first"), 3), Point(Layer(1, 2, "second"), 3))
    with refuses(ValueError, "tree.map_with_path: rest[0]", "at [0]"):
        mw.tree.map_with_path(lambda *xs: xs, [[1]], [1])
    with refuses(ValueError, "tree.broadcast: full_tree", "at ['a']", "a list of 2 against a list of 3"):
        mw.tree.broadcast({"a": [1, 2]}, {"a": [1, 2, 3]})
    with refuses(ValueError, "axes", "prefix", "at [1]"):
        mw.tree.broadcast_prefix((0, [1]), (5, {"a": 6}), "axes")
    with refuses(ValueError, "tree.transpose", "pytree_to_transpose[1]", "(*, *, *)", "(*, *)"):
        mw.tree.transpose(mw.tree.structure([0, 0]), None, [(1, 2), (1, 2, 3)])
    with refuses(ValueError, "tree.transpose", "without leaves"):
        mw.tree.transpose(mw.tree.structure([]), None, [])


def test_leaves_that_do_not_fit(refuses):
    treedef = mw.tree.structure({"a": 1, "b": [2, 3]})
    for count in (2, 4):
        with refuses(ValueError, "tree.unflatten", "{'a': *, 'b': [*, *]}", "3 leaves", f"{count} were given"):
            mw.tree.unflatten(treedef, iter(range(count)))
    with refuses(TypeError, "tree.unflatten", "treedef", "list"):
        mw.tree.unflatten([1, 2], [3, 4])
    with refuses(TypeError, "tree.map", "f must be a function", "3"):
        mw.tree.map(3, [1])
    for reduce in (mw.tree.reduce, mw.tree.reduce_associative):
        with refuses(TypeError, "without leaves"):
            reduce(operator.add, [None])


def test_errors_of_the_users_functions_come_out_as_they_are():
    def fails(*_):
        raise ValueError("mine")

    class Fragile:
        pass

    tree_util.register_pytree_node(Fragile, lambda f: ((1,), None), fails)
    with pytest.raises(ValueError, match=r"^mine$"):
        mw.tree.map(fails, [1, 2])
    with pytest.raises(ValueError, match=r"^mine$"):
        mw.tree.map(lambda x: x, Fragile())


def test_registrations_that_cannot_be(refuses):
    @mw.register_pytree_node_class
    class Once:
        def tree_flatten(self):
            return (), None

        @classmethod
        def tree_unflatten(cls, aux, children):
            return cls()

    with refuses(ValueError, "register_pytree_node_class", "Once is a container already"):
        mw.register_pytree_node_class(Once)
    with refuses(ValueError, "register_pytree_node", "dict is a container already"):
        mw.register_pytree_node(dict, lambda x: ((), None), lambda aux, c: {})
    with refuses(TypeError, "register_static", "expected a class", "3"):
        tree_util.register_static(3)
    with refuses(TypeError, "register_pytree_node", "flatten_func", "None"):
        mw.register_pytree_node(type("New", (), {}), None, lambda aux, c: None)
    with refuses(TypeError, "register_pytree_with_keys_class", "has no method tree_flatten_with_keys"):
        tree_util.register_pytree_with_keys_class(type("New", (), {"tree_unflatten": print}))
    with refuses(errors.ArgumentTypeError, "register_dataclass", "@dataclass"):
        tree_util.register_dataclass(type("New", (), {}))
    new = dataclasses.make_dataclass("New", ["a", "b", "c"])
    with refuses(ValueError, "register_dataclass", "New", "once", "b, d"):
        tree_util.register_dataclass(new, ["a", "b", "d"], ["b", "c"])
    lopsided = type("Lopsided", (), {})
    mw.register_pytree_node(lopsided, lambda x: [1, 2, 3], lambda aux, c: None)
    with refuses(TypeError, "Lopsided", "pair", "[1, 2, 3]"):
        mw.tree.leaves(lopsided())


def test_the_registry_takes_containers_apart():
    registry = tree_util.default_registry
    for tree in ([1, (2,)], (1, [2]), {"b": 1, "a": [2]}, Point(1, [2]), None):
        theirs, ours = jax.tree_util.default_registry.flatten_one_level(tree), registry.flatten_one_level(tree)
        assert list(theirs[0]) == list(ours[0])
        with_keys = registry.flatten_one_level_with_keys(tree)[0]
        assert [child for _, child in with_keys] == list(ours[0])
    assert registry.flatten_one_level(3) is None and registry.is_node(list) and not registry.is_node(int)


def test_a_named_tuple_is_registered_without_a_warning():
    """numpyro registers some, to keep a function among their fields apart from the leaves."""
    State = collections.namedtuple("State", "x f")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mw.register_pytree_node(State, lambda s: ((s.x,), s.f), lambda f, xs: State(*xs, f))
    assert mw.tree.leaves(State(1, abs)) == [1] and mw.tree.map(lambda x: x + 1, State(1, abs)) == State(2, abs)


def test_dicts_made_of_leaves_have_sorted_keys():
    tree = {
        "b": 1.0,
        "a": (
            collections.defaultdict(list, {"z": 2.0, "y": {}}),
            collections.OrderedDict(d=3.0, c=4.0),
            mw.tree_util.Partial(max, 1.0),
        ),
    }

    def keys(tree):
        return list(tree), list(tree["a"][0]), list(tree["a"][1])

    inside = []
    want = ["a", "b"], ["y", "z"], ["d", "c"]
    seen = mw.jit(lambda t: (inside.append(keys(t)), {"d": t["b"], "c": t["a"]})[1])
    assert list(seen(tree)) == list(mw.vmap(seen, axis_size=2, in_axes=None)(tree)) == ["c", "d"]
    assert inside == [want]
    for made in (mw.tree.map(lambda x: x, tree), mw.grad(lambda t: t["b"] * t["a"][1]["d"])(tree), mw.device_put(tree)):
        assert keys(made) == want and made["a"][0].default_factory is list
    inside_a_class = mw.tree.map(lambda x: x, Interval({"b": 1.0, "a": None}, [{"d": 2.0, "c": 3.0}], {"y": 0, "x": 0}))
    assert [*map(list, (inside_a_class.low, inside_a_class.high[0], inside_a_class.unit))] == [
        ["a", "b"],
        ["c", "d"],
        ["y", "x"],
    ]
    reused = mw.jit(lambda x, swapped: {"b": x, "a": x} if swapped else {"a": x, "b": x}, static_argnums=1)
    assert list(reused(1.0, True)) == list(reused(1.0, False)) == ["a", "b"]


def test_classes_in_lists_cost_no_new_structure(monkeypatch):
    unordered = {"b": 1.0, 2: collections.defaultdict(list, {"z": 2.0, "y": 3.0})}
    tree = [Interval(unordered, 4.0, [i]) for i in range(3)]
    monkeypatch.setattr(optree, "treespec_transform", None)  # it is slower than all else
    for i, made in enumerate(mw.tree.map(lambda x: x, tree)):
        assert made.unit is tree[i].unit and made.low == unordered
        assert list(made.low) == [2, "b"] and list(made.low[2]) == ["y", "z"] and made.low[2].default_factory is list


class Ranked:
    """A class whose constructor looks at its children, as those of many libraries do."""

    def __init__(self, points, weights=None, name=""):
        assert points.ndim > 0
        self.points, self.weights, self.name = points, weights, name


class RankedWithKeys(Ranked):
    pass


class RankedTuple(collections.namedtuple("RankedTuple", "points weights")):
    name = "cloud"

    def __new__(cls, points, weights=None, name=""):
        assert points.ndim > 0
        return super().__new__(cls, points, weights)


mw.register_pytree_node(Ranked, lambda r: ((r.points, r.weights), r.name), lambda name, xs: Ranked(*xs, name))
mw.tree_util.register_pytree_with_keys(
    RankedWithKeys,
    lambda r: (((mw.tree_util.GetAttrKey("points"), r.points), ("w", r.weights)), r.name),
    lambda name, xs: RankedWithKeys(*xs, name),
)

#: functions of such a tree that return one like it
RETURNING = {
    "jit": lambda r: mw.jit(lambda r: r)(r),
    "jit of shardings": lambda r: mw.jit(lambda r: r, out_shardings=mw.SingleDeviceSharding(mw.devices()[0]))(r),
    "eval_shape": lambda r: mw.eval_shape(lambda r: r, r),
    "scan": lambda r: mw.lax.scan(lambda c, _: (c, None), r, None, length=2)[0],
    "cond": lambda r: mw.lax.cond(r.points.sum() > 0, lambda r: r, lambda r: r, r),
    "vmap": lambda r: mw.vmap(lambda r: r)(r),
    "pmap": lambda r: mw.pmap(lambda r: r)(r),
    "shard_map": lambda r: mw.shard_map(
        lambda r: r, mesh=mw.make_mesh((2,), ("x",)), in_specs=P("x"), out_specs=P("x")
    )(r),
    "checkpoint": lambda r: mw.checkpoint(lambda r: r)(r),
    "vjp": lambda r: mw.vjp(lambda r: r, r)[1](r)[0],
}  # fmt: skip


@pytest.mark.parametrize("kind", [Ranked, RankedWithKeys, RankedTuple])
@pytest.mark.parametrize("weights", [None, 0])
@pytest.mark.parametrize("name", RETURNING)
def test_classes_that_look_at_their_children_are_returned(name, weights, kind):
    x = mnp.ones((2, 3))
    found = RETURNING[name](kind(x, None if weights is None else x, "cloud"))
    assert type(found) is kind and found.name == "cloud" and found.points.shape == (2, 3)
    assert (found.weights is None) == (weights is None)


@pytest.mark.parametrize("kind", [Ranked, RankedWithKeys, RankedTuple])
def test_outlines_have_the_paths_of_such_classes(kind):
    tree = {"a": [kind(mnp.ones(2), (1, 2)), None], "b": kind(mnp.ones(3), kind(mnp.ones(1)))}
    outline = pytree.outline(pytree.structure(tree))
    assert pytree.paths(outline) == pytree.paths(tree) and len(pytree.leaves(outline)) == 5
    assert pytree.leaves_with_path(outline)[0][0] == pytree.leaves_with_path(tree)[0][0]
    assert pytree.broadcast_prefix({"a": 1, "b": 2}, outline, "prefix") == [1, 1, 1, 2, 2]
    assert pytree.broadcast_prefix({"a": 1, "b": kind(x := mnp.ones(1), 3)}, outline, "prefix") == [1, 1, 1, x, 3]
    for other in (kind(mnp.ones(1)), kind(mnp.ones(1), [2, 3]), (1, 2), Ranked(mnp.ones(1), 2, "other")):
        with pytest.raises(errors.ArgumentError, match="prefix must be a tree prefix"):
            pytree.broadcast_prefix({"a": 1, "b": other}, outline, "prefix")


@pytest.mark.parametrize("kind", [Ranked, RankedWithKeys, RankedTuple])
def test_such_classes_are_cotangents_of_backward_rules(kind):
    @mw.custom_vjp
    def sines(tree):
        return mw.tree.map(mnp.sin, tree)

    def backward(tree, cts):
        return ({"a": mw.tree.map(lambda x, ct: 2 * ct * mnp.cos(x), tree["a"], cts["a"]), "b": None},)

    sines.defvjp(lambda tree: (sines(tree), tree), backward)
    x = mnp.linspace(0.0, 1.0, 3)
    found = mw.jit(mw.grad(lambda t: sum(map(mnp.sum, mw.tree.leaves(sines(t))))))({"a": kind(x, x), "b": [x]})
    assert type(found["a"]) is kind and not found["b"][0].any()
    np.testing.assert_allclose(found["a"].weights, 2 * np.cos(x), rtol=1e-6)


def test_scans_return_pairs_that_look_at_their_children():
    carry, ys = mw.lax.scan(lambda c, x: RankedTuple(c + x, x), mnp.zeros(2), mnp.ones((3, 2)))
    assert carry.tolist() == [3.0, 3.0] and ys.shape == (3, 2)
