"""Plans of parallelism as others write them, as shardings: ``tp_plan`` of transformers, ``fully_shard`` of FSDP2."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from meshwright.core.source import warn
from meshwright.errors import ArgumentError, ArgumentTypeError, PlanWarning, ShardingError
from meshwright.interop.torch.placements import AnyMesh, as_mesh, axes_of
from meshwright.sharding import NamedSharding, PartitionSpec


# --- styles: which dimension of a parameter is split, of its name and number of dimensions ---------------------
def _outputs(name: str, ndim: int) -> int | None:
    """The last but one, of experts' weights too; a bias is split."""
    return max(ndim - 2, 0)


def _inputs(name: str, ndim: int) -> int | None:
    """The last; a bias is added once, behind the sum."""
    return None if name.rpartition(".")[2] == "bias" else ndim - 1


def _packed_inputs(name: str, ndim: int) -> int | None:
    return None if ndim == 1 else ndim - 1


def _first(name: str, ndim: int) -> int | None:
    return 0


def _second(name: str, ndim: int) -> int | None:
    return 1 if ndim > 1 else None


def _nothing(name: str, ndim: int) -> int | None:
    """The style is one of activations, which follow from the parameters here."""
    return None


_STYLES: dict[str, Callable[[str, int], int | None]] = {
    **dict.fromkeys(("colwise", "colwise_rep", "colwise_gather_output", "local_colwise", "packed_colwise"), _outputs),
    **dict.fromkeys(("rowwise", "rowwise_rep", "rowwise_split_input", "local_rowwise"), _inputs),
    **dict.fromkeys(("packed_rowwise", "local_packed_rowwise"), _packed_inputs),
    **dict.fromkeys(("embedding_rowwise", "grouped_gemm"), _first),
    "embedding_colwise": _second,
    **dict.fromkeys(
        (
            "all_reduce", "ep_dispatch_experts", "ep_router", "gather", "local", "local_params", "mla_kv_a_proj",
            "moe_identity_expert", "moe_tp_experts", "replicate", "replicated_with_grad_allreduce",
            "sequence_parallel",
        ),
        _nothing,
    ),
}  # fmt: skip


def _checked(plan: Any) -> Mapping[str, str]:
    """Raises for what is no plan."""
    if not isinstance(plan, Mapping):
        raise ArgumentTypeError(
            f"tp_plan: expected styles by name, {{'layers.*.up': 'colwise', ...}}, got {plan!r}; a model whose "
            "configuration has no plan needs one written for it"
        )
    for entry, style in plan.items():
        if not isinstance(style, str) or style not in _STYLES:
            raise ArgumentError(
                f"tp_plan: {entry!r} has the unknown style {style!r}; known are {', '.join(sorted(_STYLES))}"
            )
    return plan


# --- names --------------------------------------------------------------------------------------------------
class _Entry:
    """An entry of a plan: a name, of which a prefix may be left out, where ``*`` is any part between two dots."""

    def __init__(self, text: str, style: str) -> None:
        self.text = text
        self.style = style
        self._pattern = re.compile(r"(?:.*\.)?" + re.escape(text).replace(r"\*", "[^.]*"))

    def specificity(self, name: str) -> tuple[int, ...] | None:
        """How much the entry says of the parameter: of itself rather than its module, more parts, fewer ``*``."""
        for own, called in ((1, name), (0, name.rpartition(".")[0])):
            if self._pattern.fullmatch(called):
                return own, self.text.count("."), -self.text.count("*")
        return None


def _chosen(entries: list[_Entry], name: str, ndim: int) -> Iterator[tuple[_Entry, int | None]]:
    """The entries that say most of a parameter, and the dimension which each splits."""
    matching = [(s, e) for e in entries if (s := e.specificity(name)) is not None]
    best = max((s for s, _ in matching), default=None)
    yield from ((e, _STYLES[e.style](name, ndim) if ndim else None) for s, e in matching if s == best)


def _dimension(entries: list[_Entry], name: str, ndim: int) -> int | None:
    """The dimension that a plan splits of a parameter.

    Raises:
      ArgumentError: two entries say different things, and neither says more of the parameter than the other.
    """
    chosen = list(_chosen(entries, name, ndim))
    if len({dim for _, dim in chosen}) > 1:
        said = " and ".join(f"{e.text!r} is {e.style!r}" for e, _ in chosen)
        raise ArgumentError(f"tp_plan: {name} is given different styles, as {said}; write its name out for the one")
    return chosen[0][1] if chosen else None


def _warn_of_unused(entries: list[_Entry], names: list[str]) -> None:
    unused = [e for e in entries if _STYLES[e.style] is not _nothing and all(e.specificity(n) is None for n in names)]
    if not unused:
        return
    modules = sorted({re.sub(r"\.\d+(?=\.|$)", ".*", n.rpartition(".")[0]) for n in names})
    near = difflib.get_close_matches(unused[0].text, modules, n=1, cutoff=0.6)
    meant = f" (did you mean {near[0]!r}?)" if near else ""
    warn(
        f"tp_plan: {', '.join(repr(e.text) for e in unused)} is the name of no parameter or its module{meant}, and "
        "splits nothing; a tied parameter has one of its names here",
        PlanWarning,
    )


# --- plans --------------------------------------------------------------------------------------------------
def tp_shardings(
    plan: Mapping[str, str], params: Mapping[str, Any], mesh: AnyMesh, axis: str = "tp"
) -> dict[str, NamedSharding]:
    """The sharding of each parameter under a ``tp_plan`` (``base_model_tp_plan``) as transformers writes it.

    Column-wise styles split the output features of a weight and its bias, row-wise ones the input features, also of
    the weights of experts, which are stacked; ``grouped_gemm`` splits the experts. What sends the activations follows
    from that: no style says anything else of a parameter. Packed weights (gate and up in one) are split as they lie,
    not each of their halves.

    Args:
      plan: style by name of a parameter or its module, ``{"layers.*.self_attn.q_proj": "colwise", …}``; ``*`` is one
        part of a name, and a prefix may be left out. The entry that says most of a parameter counts.
      params: arrays or types by name, as ``model.params``.
      mesh: the mesh; ``axis`` is the one that splits. Sizes that it does not divide are padded.

    Raises:
      ArgumentError: an unknown style, or entries that contradict each other.
      ArgumentTypeError: no plan, or no parameters by name.
      ShardingError: the mesh has no such axis.

    Warns:
      PlanWarning: entries that split nothing, as there is no such name.

    Example:
      >>> mesh = mw.AbstractMesh((2,), ("tp",))
      >>> w = {"layers.0.up.weight": mnp.ones((8, 4))}
      >>> mw.interop.torch.tp_shardings({"layers.*.up": "colwise"}, w, mesh)["layers.0.up.weight"].spec
      P('tp', None)
    """
    shapes, mesh = _shapes("tp_plan", params), _with_axis("tp_plan", mesh, axis)
    entries = [_Entry(text, style) for text, style in _checked(plan).items()]
    _warn_of_unused(entries, list(shapes))
    dims = {name: _dimension(entries, name, len(shape)) for name, shape in shapes.items()}
    return {
        name: NamedSharding(mesh, PartitionSpec(*(axis if d == dims[name] else None for d in range(len(shape)))))
        for name, shape in shapes.items()
    }


def _shapes(what: str, params: Any) -> dict[str, tuple[int, ...]]:
    if not isinstance(params, Mapping) or not all(hasattr(v, "shape") for v in params.values()):
        raise ArgumentTypeError(
            f"{what}: params must be arrays or types by name, as model.params, got {type(params).__name__}"
        )
    return {name: tuple(v.shape) for name, v in params.items()}


def _with_axis(what: str, mesh: Any, axis: str) -> AnyMesh:
    mesh = as_mesh(mesh, what)
    if axis not in mesh.axis_names:
        raise ShardingError(f"{what}: {mesh} has no axis {axis!r}; pass axis=")
    return mesh


def fully_sharded(
    params: Mapping[str, Any], mesh: AnyMesh, axis: str = "fsdp", within: Mapping[str, NamedSharding] | None = None
) -> dict[str, NamedSharding]:
    """The sharding of each parameter as FSDP2's ``fully_shard`` has it: the first dimension, on top of what ``within``
    (tensor parallelism) splits already.

    Raises:
      ShardingError: the mesh has no such axis, or ``within`` uses it already.
      ArgumentError: ``within`` has a name that is none of a parameter.
      ArgumentTypeError: no parameters by name.
    """
    shapes, mesh = _shapes("fully_sharded", params), _with_axis("fully_sharded", mesh, axis)
    before = dict(within or {})
    if unknown := sorted(before.keys() - shapes.keys()):
        raise ArgumentError(f"fully_sharded: within has {unknown[0]!r}, which is none of the parameters' names")
    shardings = {}
    for name, shape in shapes.items():
        spec = tuple(before[name].spec) if name in before else ()
        entries = [*spec, *[None] * (len(shape) - len(spec))]
        if entries:
            already = axes_of(entries[0])
            entries[0] = (*already, axis) if already else axis
        shardings[name] = NamedSharding(mesh, PartitionSpec(*entries))
    return shardings
