"""``custom_partitioning``: functions with user-defined partitioning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from meshwright.api.shape_dtype import ShapeDtypeStruct
from meshwright.api.shardings import over_mesh, places_of
from meshwright.core import pytree
from meshwright.core.avals import ShapedArray
from meshwright.core.expected import as_numbers, from_front
from meshwright.core.records import dataclass
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, ArgumentTypeError, MeshError, ShardingError, UnexpectedTracerError
from meshwright.ir.state import STATE
from meshwright.ir.tracing import EVAL, Tracer
from meshwright.ops.control.regions import arranged
from meshwright.ops.sharding.custom import AnyMesh, CustomPartitioning, Local, Placed
from meshwright.sharding import GSPMDSharding, Mesh, NamedSharding, Sharding, get_abstract_mesh, layout_to_hlo
from meshwright.sharding.rule import ShardingRule
from meshwright.sharding.rule_text import SdyShardingRule, parse_sharding_rule
from meshwright.transforms.autodiff import closed_call
from meshwright.transforms.custom_function import CustomFunction, positional, with_static
from meshwright.transforms.wrapped import name_of, require_callable


class custom_partitioning(CustomFunction):
    """A function partitioned by user-supplied rules (:meth:`def_partition`).

    Arguments in ``static_argnums`` are Python values, passed to the rules first. On one device, and op by op, the
    function is called as it is; ``part.verify()`` compares the partitioned function with that.

    Raises (when called):
      ArgumentError: no rules are defined. ArgumentTypeError: keyword-only arguments.
      UnexpectedTracerError: a tracer among the static arguments.

    Example:
      >>> from meshwright.experimental.custom_partitioning import custom_partitioning
      >>> from meshwright.sharding import NamedSharding
      >>> @custom_partitioning
      ... def total(x):
      ...     return x.sum(0)
      >>> def partition(mesh, args, result):
      ...     rows = NamedSharding(mesh, P("x", None))
      ...     return mesh, lambda x: lax.psum(x.sum(0), "x"), NamedSharding(mesh, P()), (rows,)
      >>> total.def_partition(partition, sharding_rule="i j -> j", reduction_factors=("i",))  # doctest: +ELLIPSIS
      <function partition at ...>
      >>> mesh = mw.make_mesh((4,), ("x",))
      >>> x = mw.device_put(mnp.arange(8.0).reshape(4, 2), NamedSharding(mesh, P("x")))
      >>> mw.jit(total)(x), [c.kind for c in mw.jit(total).lower(x).partition().collectives]
      (Array([12., 16.], dtype=float32), ['all_reduce'])
    """

    _rules: _Rules | None = None

    def __init__(self, fun: Callable[..., Any], static_argnums: int | Iterable[int] = ()) -> None:
        super().__init__(fun)
        self.static_argnums = as_numbers("custom_partitioning: static_argnums", static_argnums)

    def def_partition(
        self,
        partition: Callable[..., Any],
        infer_sharding_from_operands: Callable[..., Any] | None = None,
        propagate_user_sharding: Callable[..., Any] | None = None,
        decode_shardings: bool = True,
        sharding_rule: Any = None,
        *,
        reduction_factors: Sequence[str] = (),
        need_replication_factors: Sequence[str] = (),
        permutation_factors: Sequence[str] = (),
        **factor_sizes: int,
    ) -> Callable[..., Any]:
        """Define how the function is partitioned; returns ``partition``.

        All rules get the static arguments, then the mesh, then types with a ``sharding``, in the trees of arguments and
        results. Shardings are over whole axes of the mesh and divide dimensions evenly.

        Args:
          partition: ``(mesh, arg_shapes, result_shape) -> (mesh, function, result_shardings, arg_shardings)``. The
            partitioner reshards arguments to ``arg_shardings``; every device then runs ``function`` on its parts, with
            collectives over the axes of the mesh, and gets its parts of the results.
          infer_sharding_from_operands: ``(mesh, arg_shapes, result_shape) -> result_shardings``, called in propagation.
          propagate_user_sharding: ``(mesh, result_shape) -> result_shardings``, the shardings to use for results whose
            users ask for those in ``result_shape``.
          decode_shardings: if False, pass ``GSPMDSharding`` instead of ``NamedSharding``.
          sharding_rule: replaces these two: text such as ``"... i k, ... k j -> ... i j"``, an ``SdyShardingRule``, or
            a function of the static arguments, the mesh (empty unless one is set) and the types of arguments and
            results that returns either, or a pair of text and a dictionary of the options below.
          reduction_factors, need_replication_factors, permutation_factors: the factors of the rule that are summed
            over, that must not be split, and along which devices exchange data. All others are parallel.
          **factor_sizes: sizes of factors that are not a whole dimension anywhere.

        Raises:
          ArgumentTypeError: a rule is not callable. ArgumentError: factor options for a rule that is not text.
          ShardingError: an invalid rule.
        """
        for what in (partition, infer_sharding_from_operands, propagate_user_sharding):
            if what is not None or what is partition:
                require_callable(what, "custom_partitioning.def_partition")
        kinds = {
            "reduction_factors": reduction_factors,
            "need_replication_factors": need_replication_factors,
            "permutation_factors": permutation_factors,
        }
        extra: dict[str, Any] = {k: v for k, v in kinds.items() if v} | factor_sizes
        rule = sharding_rule
        if isinstance(rule, str):
            rule = parse_sharding_rule(rule, **extra)
        elif extra:
            raise ArgumentError(
                f"def_partition: {', '.join(extra)} say more of a sharding_rule that is text, which this is not; put "
                "them into the rule"
            )
        self._rules = _Rules(partition, infer_sharding_from_operands, propagate_user_sharding, decode_shardings, rule)
        return partition

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = name_of(self.fun)
        if self._rules is None:
            raise ArgumentError(f"custom_partitioning {name}: no partition is set; call .def_partition(...) first")
        args = positional(self.fun, args, kwargs, "custom_partitioning")
        if STATE.trace is EVAL:
            return self.fun(*args)
        numbers = from_front("custom_partitioning: static_argnums", self.static_argnums, len(args), name)
        static = {i: x for i, x in enumerate(args) if i in numbers}
        if any(isinstance(leaf, Tracer) for leaf in pytree.leaves(static)):
            raise UnexpectedTracerError(
                f"custom_partitioning {name}: a static argument is traced, whose value is not known; take it out of "
                "static_argnums, or make it static in the jit around"
            )
        flat, in_tree = pytree.flatten(tuple(x for i, x in enumerate(args) if i not in numbers))
        call = with_static(self.fun, static, len(args), in_tree)
        jaxpr, hoisted, out_tree = closed_call(call, flat, name)
        n, invars = len(hoisted), jaxpr.jaxpr.invars
        jaxpr = arranged(jaxpr, [*invars[n:], *invars[:n]])
        given = _Given(self._rules, name, tuple(static.values()), in_tree, out_tree)
        op = CustomPartitioning(name, jaxpr, given, given.rule(jaxpr.in_avals[: len(flat)], jaxpr.out_avals), n)
        return pytree.unflatten(out_tree, op.bind(*flat, *hoisted))


@dataclass(frozen=True, eq=False)
class _Rules:
    """The rules passed to ``def_partition``."""

    partition: Callable[..., Any]
    infer: Callable[..., Any] | None
    propagate: Callable[..., Any] | None
    decode: bool
    rule: Any


@dataclass(frozen=True, eq=False)
class _Given:
    """The rules for one call: a :class:`meshwright.ops.sharding.custom.Partitioning`."""

    rules: _Rules
    name: str
    static: tuple[Any, ...]
    in_tree: Any
    out_tree: Any

    def rule(self, ins: Sequence[ShapedArray], outs: Sequence[ShapedArray]) -> ShardingRule | None:
        """The rule for values of these types."""
        rule = self.rules.rule
        if callable(rule):
            types = [ShapeDtypeStruct(a.shape, a.dtype) for a in (*ins, *outs)]
            rule = rule(*self.static, get_abstract_mesh(), types[: len(ins)], types[len(ins) :])
            rule, more = rule if isinstance(rule, (tuple, list)) and len(rule) == 2 else (rule, {})
            rule = rule if isinstance(rule, SdyShardingRule) else parse_sharding_rule(rule, **more)
        if rule is not None and not isinstance(rule, SdyShardingRule):
            raise ArgumentTypeError(
                f"custom_partitioning {self.name}: expected sharding_rule as text, an SdyShardingRule or a function "
                f"that makes one, got {type(rule).__name__}"
            )
        return None if rule is None else rule.rule([a.shape for a in ins], [a.shape for a in outs])

    def inferred(self, mesh: AnyMesh, ins: Placed, outs: Sequence[ShapedArray]) -> Sequence[NamedSharding] | None:
        if self.rules.infer is None:
            return None
        shapes = pytree.unflatten(self.out_tree, [ShapeDtypeStruct(a.shape, a.dtype) for a in outs])
        returned = self.rules.infer(*self.static, mesh, self._shown(self.in_tree, ins), shapes)
        return self._read(returned, self.out_tree, mesh, "infer_sharding_from_operands")

    def suggested(self, mesh: AnyMesh, outs: Placed) -> Sequence[NamedSharding]:
        if self.rules.propagate is None:
            return [s for _, s in outs]
        returned = self.rules.propagate(*self.static, mesh, self._shown(self.out_tree, outs))
        return self._read(returned, self.out_tree, mesh, "propagate_user_sharding")

    def local(self, mesh: AnyMesh, ins: Placed, outs: Placed) -> Local:
        shown = self._shown(self.in_tree, ins), self._shown(self.out_tree, outs)
        returned = self.rules.partition(*self.static, mesh, *shown)
        if not isinstance(returned, (tuple, list)) or len(returned) != 4:
            many = counted(len(returned), "value") if isinstance(returned, (tuple, list)) else type(returned).__name__
            raise ArgumentTypeError(
                f"custom_partitioning {self.name}: partition must return (mesh, function, result_shardings, "
                f"arg_shardings), got {many}"
            )
        theirs, function, results, args = returned
        if getattr(theirs, "shape", None) != mesh.shape:
            raise MeshError(
                f"custom_partitioning {self.name}: partition returned {theirs}, and the program is for {mesh}; "
                "return the mesh that it gets"
            )
        require_callable(function, f"custom_partitioning {self.name}: partition")
        return Local(
            self._flat(function),
            self._read(args, self.in_tree, mesh, "partition (arg_shardings)"),
            self._read(results, self.out_tree, mesh, "partition (result_shardings)"),
        )

    def _flat(self, function: Callable[..., Any]) -> Callable[..., Sequence[Any]]:
        def flat(*leaves: Any) -> Sequence[Any]:
            outs, tree = pytree.flatten(function(*pytree.unflatten(self.in_tree, leaves)))
            if tree != self.out_tree:
                raise ArgumentTypeError(
                    f"custom_partitioning {self.name}: what partition returned gives structure {pytree.show(tree)}, "
                    f"the function {pytree.show(self.out_tree)}; make them alike"
                )
            return outs

        return flat

    def _shown(self, tree: Any, values: Placed) -> Any:
        leaves = [ShapeDtypeStruct(a.shape, a.dtype, sharding=self._coded(s, a.ndim)) for a, s in values]
        return pytree.unflatten(tree, leaves)

    def _coded(self, sharding: NamedSharding, ndim: int) -> Sharding:
        if self.rules.decode:
            return sharding
        mesh = sharding.mesh
        devices = list(mesh.devices.flat) if isinstance(mesh, Mesh) else range(mesh.size)
        return GSPMDSharding(devices, layout_to_hlo(sharding.layout(ndim), mesh.abstract_mesh))

    def _read(self, tree: Any, expected: Any, mesh: AnyMesh, where: str) -> list[NamedSharding]:
        leaves, got = pytree.flatten(tree)
        if got != expected and pytree.flatten(_tuples(tree))[1] != expected:
            raise ArgumentTypeError(
                f"custom_partitioning {self.name}: {where} returned structure {pytree.show(got)}, expected a sharding "
                f"for each array of {pytree.show(expected)}"
            )
        return [self._over(s, mesh, where) for s in leaves]

    def _over(self, sharding: Any, mesh: AnyMesh, where: str) -> NamedSharding:
        if not isinstance(sharding, Sharding):
            raise ArgumentTypeError(
                f"custom_partitioning {self.name}: {where} returned {sharding!r}, expected shardings, as "
                "NamedSharding(mesh, spec)"
            )
        named = over_mesh(sharding, mesh)
        elsewhere = sharding.num_devices != mesh.size or places_of(sharding, mesh) is not None
        if elsewhere or not isinstance(named, NamedSharding):
            raise ShardingError(
                f"custom_partitioning {self.name}: {where} returned {sharding!r}, which is none over {mesh}; use "
                "NamedSharding with the mesh that it gets"
            )
        return named


def _tuples(tree: Any) -> Any:
    """``tree`` with a top-level list as a tuple: users write either for arguments."""
    return tuple(tree) if isinstance(tree, list) else tree
