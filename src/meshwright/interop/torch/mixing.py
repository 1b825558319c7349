"""Operands of different dtypes, where torch's kernels take none: exports do not ask them, and rules would convert."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from meshwright.core.words import counted
from meshwright.errors import ImportProgramError
from meshwright.interop.torch.graph import calls
from meshwright.interop.torch.sources import described

_BIASED = "input weight bias"
_CELL = "input hx w_ih w_hh b_ih b_hh"
_NORMS = "batch_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training instance_norm"
#: ops, and those of their arguments whose dtypes are equal
_EQUAL = {
    "mm bmm": "self mat2", "matmul linalg_matmul": "self other", "mv": "self vec", "dot": "self tensor",
    "vdot inner": "self other", "addmm _addmm_activation": "self mat1 mat2", "addbmm baddbmm": "self batch1 batch2",
    "addmv": "self mat vec", "linalg_cross cross": "self other", "linalg_multi_dot": "tensors",
    "chain_matmul": "matrices", "linear conv1d conv2d conv3d convolution": _BIASED,
    "conv_transpose1d conv_transpose2d conv_transpose3d": _BIASED,
    "index_add index_copy index_reduce put masked_scatter": "self source",
    "scatter scatter_add scatter_reduce": "self src",
    "index_put index_put_ _unsafe_index_put": "self values", "complex": "real imag", "polar": "abs angle",
    "heaviside": "self values", "linalg_lstsq": "self b", "linalg_solve _linalg_solve_ex": "A B",
    "cdist _cdist_forward": "x1 x2", "binary_cross_entropy": "self target",
    "cross_entropy_loss nll_loss_nd nll_loss nll_loss2d nll_loss_forward nll_loss2d_forward": "self weight",
    "multi_margin_loss": "self weight", "grid_sampler grid_sampler_2d grid_sampler_3d": "input grid",
    "embedding_bag _embedding_bag": "weight per_sample_weights", "lstm gru rnn_tanh rnn_relu": "input hx params",
    "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell": _CELL, "layer_norm native_layer_norm": _BIASED,
    "group_norm native_group_norm": _BIASED, _NORMS: f"{_BIASED} running_mean running_var",
}  # fmt: skip
_ARGUMENTS = {name: arguments.split() for names, arguments in _EQUAL.items() for name in names.split()}
_HALVES = (torch.float16, torch.bfloat16)


def refuse_mixed(graph: fx.GraphModule, module: torch.nn.Module) -> None:
    """Raise for ops whose operands have different dtypes that torch's kernels do not mix, with their lines.

    Raises:
      ImportProgramError: there are some.
    """
    found = {node: dtypes for node in calls(graph) if len(dtypes := _dtypes(node)) > 1 and not _mixes(node, dtypes)}
    if not found:
        return
    lines = [f"  {node.target}, at {described(node)}: {', '.join(map(str, d))}" for node, d in found.items()]
    listed = "\n".join(list(dict.fromkeys(lines))[:12])
    raise ImportProgramError(
        f"from_torch: {type(module).__name__} has {counted(len(found), 'op')} with operands of different dtypes, which "
        f"torch does not mix there:\n{listed}\nConvert one of them in the module (x.to(y.dtype))"
    )


def _dtypes(node: fx.Node) -> list[torch.dtype]:
    """Those of the arguments whose dtypes are to be equal, each once."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return []
    packet = target.overloadpacket.__name__
    names = _ARGUMENTS.get(packet) or _ARGUMENTS.get(packet.removesuffix("_"), [])
    given = dict(zip((a.name for a in target._schema.arguments), node.args)) | node.kwargs
    return list(dict.fromkeys(dtype for name in names for dtype in _of(given.get(name))))


def _of(value: Any) -> Iterator[torch.dtype]:
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _of(part)
    elif isinstance(value, fx.Node) and isinstance(value.meta.get("val"), torch.Tensor):
        yield value.meta["val"].dtype


def _mixes(node: fx.Node, dtypes: Sequence[torch.dtype]) -> bool:
    """Whether torch mixes them after all: norms keep parameters of halves in float32."""
    name = str(node.target)
    if "norm" in name:
        return dtypes[0] in _HALVES and dtypes[1:] == [torch.float32]
    if "index_put" in name:  # one value for all elements of a mask is a number
        _, indices, value = node.args[:3]
        return set(_of(indices)) == {torch.bool} and value.meta["val"].numel() == 1  # type: ignore[union-attr]
    return False
