"""Orders in which annotations spread: tried where they contest an axis, and judged by whole programs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, lax, nn
from meshwright import PartitionSpec as P
from meshwright.api.partitioned import PartitionedProgram
from meshwright.spmd.driver import partition
from meshwright.spmd.origin import Sort
from meshwright.spmd.partition.attempt import Attempt, price
from meshwright.spmd.partition.contests import contests, neighbours
from meshwright.spmd.partition.lookahead import Search
from meshwright.spmd.partition.planner import Planner
from meshwright.spmd.partition.turned import turns
from meshwright.spmd.report import collectives
from meshwright.spmd.strategy import Strategy

N = 8
MESH = mw.AbstractMesh((N,), ("d",))
WIDTH, VOCABULARY, BATCH, SEQUENCE = 64, 512, 16, 32


def of(*shape: int, dtype: Any = np.float32) -> mw.ShapeDtypeStruct:
    return mw.ShapeDtypeStruct(shape, dtype)


def language_model(params, tokens):
    x = params["table"][tokens]
    for p in params["layers"]:
        h = nn.layer_norm(x, p["scale"])
        x = x + nn.gelu(h @ p["up"]) @ p["down"]
    logp = nn.log_softmax(x @ params["table"].T)
    return -mnp.take_along_axis(logp, tokens[..., None], axis=-1).mean()


def language_model_step(layers: int) -> Any:
    """Fully sharded, the table by features."""
    sizes = {"scale": (WIDTH,), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    params = {"table": of(VOCABULARY, WIDTH), "layers": [{n: of(*s) for n, s in sizes.items()}] * layers}
    split = NamedSharding(MESH, P("d"))
    where = {"table": NamedSharding(MESH, P(None, "d")), "layers": [dict.fromkeys(sizes, split)] * layers}
    step = mw.jit(mw.grad(language_model), in_shardings=(where, split), out_shardings=where)
    part = step.lower(params, of(BATCH, SEQUENCE, dtype=np.int32)).partition()
    return part, sum(4 * int(np.prod(p.shape)) for p in mw.tree.leaves(params))


def test_a_table_split_by_features_does_not_unsplit_the_batch():
    """Every weight is gathered and every gradient scattered once, and no activation is sent."""
    part, parameters = language_model_step(2)
    best = 2 * parameters * (N - 1) // N
    assert best <= part.bytes_sent <= 1.05 * best
    assert part.work.product_redundancy == 1
    assert "the sharding of each input f32[512,64] that is [{}, {d}] spreads after all others" in part.explain()
    naive = lookahead_off(part)
    assert sum(c.bytes_sent for c in naive) > 1.5 * best


def test_one_annotation_spreads_before_all_that_stand_in_its_way():
    """Queries and outputs by heads, a cache by positions: heads contest the scores at several weights, but these are
    only split along positions if all of them wait. Then the queries and the mixed values are sent, and no scores."""
    heads, width, length = 16, 32, 1024
    split = {"q": P(None, "d"), "k": P("d"), "v": P("d"), "out": P("d")}
    params = {"q": of(WIDTH, heads * width), "k": of(heads, width, WIDTH), "v": of(heads, WIDTH, width)}
    params["out"] = of(heads * width, WIDTH)

    def decode(p, x, cache):
        query = mnp.einsum("bhk,hkc->bhc", (x @ p["q"]).reshape(BATCH, heads, width), p["k"])
        weights = nn.softmax(mnp.einsum("bhc,btc->bht", query, cache))
        mixed = mnp.einsum("bhc,hck->bhk", mnp.einsum("bht,btc->bhc", weights, cache), p["v"])
        return x + mixed.reshape(BATCH, -1) @ p["out"]

    where = {n: NamedSharding(MESH, spec) for n, spec in split.items()}
    whole = NamedSharding(MESH, P())
    shardings = where, whole, NamedSharding(MESH, P(None, "d"))
    args = params, of(BATCH, WIDTH), of(BATCH, length, WIDTH)
    part = mw.jit(decode, in_shardings=shardings, out_shardings=whole).lower(*args).partition()
    moved = BATCH * heads * WIDTH * 4 * (N - 1) // N
    largest_and_sums, result = 2 * 2 * BATCH * heads * 4 * (N - 1) // N, 2 * BATCH * WIDTH * 4 * (N - 1) // N
    assert part.bytes_sent <= 2 * moved + largest_and_sums + result
    assert part.verify()


def lookahead_off(part: Any) -> Any:
    found = part.part
    plain = partition(found.source, found.mesh, *found.asked, strategy=Strategy())
    return collectives(plain.jaxpr.jaxpr)


def test_annotations_that_bring_other_axes_to_one_dimension_are_a_conflict():
    """Rewards and ends of episodes are split along the environments by different axes: one is moved before the loop,
    not the values of each step."""
    steps, environments = 64, 512
    mesh = mw.AbstractMesh((2, 2), ("a", "b"))

    def advantages(rewards, ends):
        def step(carry, now):
            reward, end = now
            carry = reward + 0.9 * (1 - end) * carry
            return carry, carry

        return lax.scan(step, mnp.zeros(environments), (rewards, ends))[1]

    places = NamedSharding(mesh, P(None, "a")), NamedSharding(mesh, P(None, "b"))
    args = of(steps, environments), of(steps, environments)
    part = mw.jit(advantages, in_shardings=places).lower(*args).partition()
    assert all(c.count == 1 for c in part.collectives)
    assert part.bytes_sent <= steps * environments * 4 // 2
    assert part.verify()


def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list to which each search adds a 0."""
    tried: list[int] = []
    started = Search.__init__

    def counted(search: Search, planner: Planner) -> None:
        tried.append(0)
        started(search, planner)

    monkeypatch.setattr(Search, "__init__", counted)
    return tried


def heat_step() -> Any:
    """A stencil whose interior may also be computed in the rows of the whole array."""

    def heat(u):
        return u.at[1:-1].add(0.1 * (u[2:] - 2 * u[1:-1] + u[:-2]))

    rows = NamedSharding(MESH, P("d"))
    return mw.jit(heat, in_shardings=(rows,)).lower(of(1024, 16)).partition()


def test_another_form_of_a_program_is_searched_once(monkeypatch):
    """The form with interiors in whole arrays is not taken for one with dimensions in parts, too."""
    tried = searches(monkeypatch)
    assert heat_step().part.strategy.whole
    assert len(tried) == 2


def test_a_form_that_costs_the_same_is_not_searched(monkeypatch):
    ran = []
    run = Search.run
    monkeypatch.setattr(Search, "run", lambda search: ran.append(0) or run(search))
    monkeypatch.setattr(Attempt, "costs_as", lambda attempt, other: True)
    assert not heat_step().part.strategy.whole
    assert len(ran) == 1


def test_repeated_layers_are_one_decision(monkeypatch):
    tried = searches(monkeypatch)
    partitioned = Planner.partition

    def partition(planner: Planner, propagation: Any) -> Any:
        tried[-1] += 1
        return partitioned(planner, propagation)

    monkeypatch.setattr(Planner, "partition", partition)
    strategies = [language_model_step(layers)[0].part.strategy for layers in (1, 4)]
    assert strategies[0] == strategies[1] and strategies[0].later
    assert tried[0] == tried[1] <= 8


def layer(p, x, between):
    h = nn.layer_norm(x)
    x = between(x + nn.gelu(h @ p["up"]) @ p["down"])
    return between(x + nn.gelu(nn.layer_norm(x) @ p["up2"]) @ p["down2"])


def test_sequence_parallel_layers_send_what_tensor_parallel_ones_do():
    """Activations are gathered in front of each block and scattered behind it, forward and backward (Korthikanti et al.
    2022); weights stay where they are."""
    mesh = mw.AbstractMesh((2, 4), ("data", "tensor"))
    place = NamedSharding(mesh, P("data", "tensor"))
    names = ("up", "down", "up2", "down2")
    specs = {n: NamedSharding(mesh, P(None, "tensor") if n.startswith("up") else P("tensor")) for n in names}
    params = {n: of(256, 1024) if n.startswith("up") else of(1024, 256) for n in names}

    def step(params, x):
        return mw.grad(lambda p: layer(p, x, lambda y: lax.with_sharding_constraint(y, place)).mean())(params)

    part = mw.jit(step, in_shardings=(specs, place), out_shardings=specs).lower(params, of(8, 128, 256)).partition()
    activation, weights = 4 * 8 * 128 * 256 // 2, 4 * 4 * 256 * 1024 // 4
    assert part.bytes_sent <= 8 * activation * 3 // 4 + 2 * weights // 2 + 4096
    assert part.work.product_redundancy == 1


def test_only_the_order_changes():
    """Whatever spreads first, inputs, outputs and constraints are laid out as they were asked to be."""

    def f(x, w, v):
        y = lax.with_sharding_constraint(mnp.tanh(x @ w), NamedSharding(MESH, P(None, "d")))
        return y @ v, x * 2

    args = [np.random.default_rng(0).normal(size=s).astype(np.float32) for s in ((16, 24), (24, 40), (40, 8))]
    specs = P("d"), P("d"), P(None, "d")
    on = [NamedSharding(MESH, s) for s in specs]
    part = mw.jit(f, in_shardings=tuple(on), out_shardings=(on[0], on[2])).lower(*args).partition()
    strategies = neighbours(part.part)
    assert contests(part.part) and strategies
    for strategy in strategies:
        found = partition(part.part.source, MESH, *part.part.asked, strategy=strategy)
        assert found.in_layouts == [s.layout(2) for s in on] and found.out_layouts == [on[0].layout(2), on[2].layout(2)]
        assert found.strategy == strategy


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3))])
def test_every_strategy_computes_the_same(seed):
    """Programs by the strategies that are tried, against the unpartitioned one."""
    rng = np.random.default_rng(seed)
    args = [rng.normal(size=s).astype(np.float32) for s in ((16, 24), (24, 40), (40, 24))]
    choices = [P("d"), P(None, "d")]
    on = [NamedSharding(MESH, choices[rng.integers(2)]) for _ in args]

    def f(x, w, v):
        for _ in range(2):
            x = mnp.tanh(nn.layer_norm(x) @ w) @ v
        return (x * x).sum()

    part = mw.jit(mw.grad(f, (0, 1, 2)), in_shardings=tuple(on), out_shardings=tuple(on)).lower(*args).partition()
    for strategy in [Strategy(), *neighbours(part.part)]:
        found = partition(part.part.source, MESH, *part.part.asked, strategy=strategy)
        PartitionedProgram(part.program, found).verify(*args)


def test_slices_of_split_rows_are_split_across():
    """The operand and the result of a loop each change places once, instead of being gathered."""

    def f(xs):
        return lax.scan(lambda c, x: (c + x, c * x), mnp.zeros(64), xs)[1]

    xs = np.random.default_rng(0).normal(size=(128, 64)).astype(np.float32)
    on = NamedSharding(MESH, P("d"))
    part = mw.jit(f, in_shardings=(on,), out_shardings=on).lower(xs).partition()
    assert {c.kind for c in part.collectives} == {"all_to_all"}
    assert part.bytes_sent == 2 * xs.nbytes // N * (N - 1) // N
    assert part.part.strategy.across and not part.part.replicated
    part.verify(xs)


def test_slices_that_a_loop_needs_whole_are_gathered_once():
    def f(xs, w):
        return lax.scan(lambda c, x: (mnp.tanh(c @ w + x), None), mnp.zeros(64), xs)[0]

    xs, w = np.random.default_rng(0).normal(size=(128, 64)), np.random.default_rng(1).normal(size=(64, 64))
    args = xs.astype(np.float32), w.astype(np.float32)
    shardings = NamedSharding(MESH, P("d")), NamedSharding(MESH, P())
    part = mw.jit(f, in_shardings=shardings, out_shardings=NamedSharding(MESH, P())).lower(*args).partition()
    assert [(c.kind, c.count) for c in part.collectives] == [("all_gather", 1)]
    part.verify(*args)


def test_a_conflict_counts_by_what_it_causes_later():
    """Of a lattice of states, transitions stay where they are, and scores are gathered, for 512 bytes a step.

    Where the scores meet the transitions nothing is sent in any case: the conflict costs two reductions after it.
    """
    mesh = mw.AbstractMesh((2, 2), ("batch", "states"))

    def best(scores, transitions):
        def step(a, score):
            paths = a[:, :, None] + transitions[None]
            return paths.max(1) + score, paths.argmax(1)

        return lax.scan(step, scores[0], scores[1:])

    ins = NamedSharding(mesh, P(None, "batch", "states")), NamedSharding(mesh, P(None, "states"))
    rng = np.random.default_rng(0)
    args = rng.normal(size=(10, 8, 64)).astype(np.float32), rng.normal(size=(64, 64)).astype(np.float32)
    part = mw.jit(best, in_shardings=ins).lower(*args).partition()
    assert [(c.kind, c.count, c.bytes_sent) for c in part.collectives] == [("all_gather", 9, 9 * 512)]
    part.verify(*args)


# --- values that one annotation reaches along several dimensions --------------------------------------------
def forces(x, order):
    """Of bodies on each other; the dimension that is summed over comes first or second."""
    apart = (x[None] - x[:, None]) if order == "sum second" else (x[:, None] - x[None])
    near = ((apart**2).sum(-1) + 0.01) ** -1.5
    return (apart * near[..., None]).sum(1 if order == "sum second" else 0)


def force_step(order, bodies=512, out=True):
    on = NamedSharding(MESH, P("d"))
    step = mw.jit(lambda x: forces(x, order), in_shardings=on, out_shardings=on if out else None)
    return step.lower(of(bodies, 3)).partition()


@pytest.mark.parametrize("order", ["sum first", "sum second"])
def test_pairs_are_split_where_nothing_has_to_be_summed(order):
    """Bodies are gathered once at most, whichever dimension the difference splits first; not also scattered."""
    part = force_step(order)
    assert part.bytes_sent <= 512 * 3 * 4 * (N - 1) // N and part.work.redundancy < 1.01
    assert sum(c.bytes_sent for c in lookahead_off(part)) in (part.bytes_sent, 2 * 512 * 3 * 4 * (N - 1) // N)
    part.verify(np.random.default_rng(0).normal(size=(512, 3)).astype(np.float32))


def test_a_turn_is_named_in_the_explanation():
    part = force_step("sum second")
    base = partition(part.part.source, MESH, *part.part.asked, strategy=Strategy())
    turn = next(turns(base))
    found = partition(part.part.source, MESH, *part.part.asked, strategy=Strategy(turns=(turn,)))
    part = PartitionedProgram(part.program, found)
    assert "d splits dimension 0" in part.explain() and "that it reaches along several dimensions" in part.explain()


@pytest.mark.parametrize("seed", range(4))
def test_every_turn_computes_the_same_and_overrules_nothing(seed):
    rng = np.random.default_rng(seed)
    mesh = mw.AbstractMesh((2, 3), ("a", "b"))
    rows = [P("a"), P(("a", "b")), P(("b", "a"), None), P("b", "a")][seed]
    on, out = NamedSharding(mesh, rows), NamedSharding(mesh, [P("a"), P("b", "a"), P(None, "b"), P()][seed])

    def f(x, w):
        near = mnp.exp(-((x[:, None] - x[None]) ** 2).sum(-1))
        kernel = lax.with_sharding_constraint(near, out) if seed % 2 else near
        return (nn.softmax(kernel) @ x @ x.T, mw.grad(lambda x: (mnp.tanh(x @ x.T) @ w).sum())(x))

    args = rng.normal(size=(17, 6)).astype(np.float32), rng.normal(size=(17, 5)).astype(np.float32)
    part = mw.jit(f, in_shardings=(on, None)).lower(*args).partition()
    base = partition(part.part.source, mesh, *part.part.asked, strategy=Strategy())
    ways = list(turns(base))
    for turn in ways[:6]:
        found = partition(part.part.source, mesh, *part.part.asked, strategy=Strategy(turns=(turn,)))
        assert found.in_layouts[0] == on.layout(2)
        PartitionedProgram(part.program, found).verify(*args)
    assert ways


PAIRS = {
    "product": lambda a: a @ a.T,
    "product of the transpose": lambda a: a.T @ a,
    "differences": lambda a: a[None] - a[:, None],
    "three times": lambda a: a[:, None, None, 0] + a[None, :, None, 1] * a[None, None, :, 2],
    "chain": lambda a: (a @ a.T) @ (a @ a.T),
    "gradient": lambda a: mw.grad(lambda a: mnp.tanh(a @ a.T).sum())(a),
    "batch": lambda a: mw.vmap(lambda r: r[:, None] * r[None])(a),
    "scan": lambda a: lax.scan(lambda c, _: (mnp.tanh(c @ c.T @ c), (c @ c.T)[0]), a, None, length=3),
    "branches": lambda a: lax.cond(a.sum() > 0, lambda a: a @ a.T, lambda a: a[:, :1] - a[:, 1][None], a),
    "sorted": lambda a: mnp.sort(a @ a.T, 0) + mnp.cumsum(a @ a.T, 1),
}


@pytest.mark.parametrize("shape", [(8, 4), (12, 12), (7, 5)], ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_arrays_that_meet_themselves(name, shape):
    value = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    for mesh in (MESH, mw.AbstractMesh((2, 3), ("d", "e"))):
        for spec in [P("d"), P(None, "d"), P(mesh.axis_names)]:
            part = mw.jit(PAIRS[name], in_shardings=NamedSharding(mesh, spec)).lower(value).partition()
            part.verify(value)


def test_orders_are_tried_in_the_same_sequence_in_all_processes(monkeypatch):
    """Annotations that contest an axis for as many bytes are alike to the search. Hashes of strings, and so the order
    of sets, are each process's own."""
    split = [NamedSharding(MESH, spec) for spec in (P("d"), P(None, "d"), P(None, None, "d"))]
    add = mw.jit(lambda *xs: sum(xs), in_shardings=tuple(split)).lower(*[of(N, N, N)] * 3).partition().part
    tried = []
    for direction in (1, -1):
        monkeypatch.setattr(Sort, "__hash__", lambda s, d=direction: 3 + d * [*map(bool, s.dims)].index(True))
        tried.append(list(contests(add)))
    assert len(tried[0]) > 1 and tried[0] == tried[1]


def test_a_turn_does_not_stand_in_the_way_of_splitting_products_otherwise():
    """Products that are split along other dimensions alone are better here; after a turn, they no longer are."""
    mesh = mw.AbstractMesh((2, 3), ("a", "b"))

    def f(x, w):
        near = mnp.exp(-((x[:, None] - x[None]) ** 2).sum(-1))
        near = lax.with_sharding_constraint(near, NamedSharding(mesh, P(None, "b")))
        return mnp.sin((near @ x) @ w).sum()

    on = NamedSharding(mesh, P("a")), NamedSharding(mesh, P("b", "a"))
    part = mw.jit(mw.grad(f, (0, 1)), in_shardings=on).lower(of(256, 32), of(32, 12)).partition()
    alone = partition(part.part.source, mesh, *part.part.asked, strategy=Strategy(exchanges=True))
    assert part.bytes_sent <= 1.1 * sum(c.bytes_sent for c in collectives(alone.jaxpr.jaxpr))
    assert price(part.part) <= price(alone)
    part.verify()


def attention_of_tokens_mixed_by_a_split_matrix(halves: bool) -> PartitionedProgram:
    """The batch is split, and so is every weight: that of the tokens by its results, which would split the tokens."""
    mesh = mw.AbstractMesh((N,), ("d",), machine="v5e:2x4")
    size, width, hidden = 64, 48, 128
    inner = width // 2 if halves else width

    def mix(x, w):
        return mnp.einsum("ntk,tm->nmk", x, w)

    def cut(x):
        return x.reshape(BATCH, size // 2, 2, inner).reshape(BATCH, size, inner)

    def network(y, p):
        y = y @ p["in"]
        y = nn.softmax(mnp.einsum("ntk,nsk->nts", y, y)) @ y
        return mnp.tanh(y @ p["up"]) @ p["down"] @ p["out"]

    def f(x, p):
        if not halves:
            return network(mix(x, p["mix"]), p)
        a, b = map(cut, mnp.split(mix(x, p["mix"]), 2, axis=1))
        parts = [y.reshape(BATCH, size // 2, width) for y in (a, b + network(a, p))]
        return mix(mnp.concatenate(parts, 1), p["mix"].T)

    sizes = {"mix": (size, size), "in": (inner, hidden), "up": (hidden, 4 * hidden), "down": (4 * hidden, hidden)}
    sizes["out"] = (hidden, inner)
    where = {n: NamedSharding(mesh, P("d") if n in ("down", "out") else P(None, "d")) for n in sizes}
    step = mw.jit(f, in_shardings=(NamedSharding(mesh, P("d")), where))
    return step.lower(of(BATCH, size, width), {n: of(*s) for n, s in sizes.items()}).partition()


@pytest.mark.parametrize("halves", [False, True], ids=["many weights", "cheap where they conflict"])
def test_a_batch_may_spread_first_among_many_weights(halves):
    """Gathering the weights sends most, also where the batch splits their products; what decides is the order of the
    batch and the matrix of the tokens, which comes after them, or sends little where these conflict."""
    part = attention_of_tokens_mixed_by_a_split_matrix(halves)
    weights = sum(a.aval.nbytes for a in part.part.source.jaxpr.invars[1:])
    assert part.bytes_sent <= weights * (N - 1) // N
    assert part.work.product_redundancy == 1
    part.verify()


# --- the time of a step -------------------------------------------------------------------------------------


def axial(heads: int) -> Any:
    """Attention along rows of images, between columns, whose rows are split; two all-to-alls make rows whole."""

    def attention(p: Any, x: Any) -> Any:
        q, k, v = ((x @ p[n]).reshape(*x.shape[:2], heads, -1) for n in "qkv")
        s = nn.softmax(mnp.einsum("bihd,bjhd->bhij", q, k))
        return x + mnp.einsum("bhij,bjhd->bihd", s, v).reshape(x.shape) @ p["o"]

    def layer(p: Any, x: Any) -> Any:
        z = x.swapaxes(1, 2).reshape(-1, x.shape[1], x.shape[3])
        return attention(p, z).reshape(*x.shape[:1], x.shape[2], x.shape[1], x.shape[3]).swapaxes(1, 2)

    return layer


def test_attention_along_a_split_dimension_moves_its_input_once():
    """Queries, keys and values, and the scores for their softmax, would be moved each."""
    shape, width = (1, 32, 64, 16), 16
    weights = dict.fromkeys("qkvo", of(width, width))
    split = NamedSharding(MESH, P(None, "d"))
    run = mw.jit(axial(2), in_shardings=(NamedSharding(MESH, P()), split), out_shardings=split)
    part = run.lower(weights, of(*shape)).partition()
    part.verify()
    moved = int(np.prod(shape)) * 4 // N * (N - 1) // N
    assert part.bytes_sent <= 2 * moved, part.explain()
    assert part.work.product_redundancy == 1


@pytest.mark.parametrize(
    ("seconds", "costs", "taken"), [(1.10, 0.9, "plain"), (1.04, 0.9, "exchanged"), (1.04, 1.0, "plain")]
)
def test_exchanges_that_make_a_step_much_longer_are_not_taken(seconds, costs, taken):
    """Fewer bytes and less memory are worth a step that is 5 % longer, and no more than that."""
    search = object.__new__(Search)
    search.in_tiles = lambda best: best
    exchanged, plain = SimpleNamespace(price=seconds), SimpleNamespace(price=1, costs_beside=lambda _: 1 / costs)
    assert search.keep_tiles(exchanged, [plain]) is {"exchanged": exchanged, "plain": plain}[taken]
