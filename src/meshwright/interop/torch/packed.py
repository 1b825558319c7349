"""Packed sequences (``torch.nn.utils.rnn``).

Where lengths are known when a module is exported, packing picks rows by constant indices, padding puts them back. A
recurrent layer runs over padded sequences, with a mask: what was packed and not changed since is not padded again, so
that a batch stays split over devices from one end of a network to the other, and rows that nobody asks for are not
picked.

Where lengths are arguments, nobody knows how many rows there are: packed data are an op without a rule, which layers
and padding alone may take.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch.utils.weak import WeakIdKeyDictionary

from meshwright.core.words import counted
from meshwright.errors import ArgumentError
from meshwright.interop.torch.derivatives import connected
from meshwright.interop.torch.overrides import constant, known, overrides, unrecorded
from meshwright.interop.torch.positions import elements

_functions = torch._VF
_LIBRARY = torch.library.Library("meshwright", "FRAGMENT")
_LIBRARY.define(
    "recurrent(str kind, Tensor input, Tensor? running, Tensor[] states, Tensor[] params, bool has_biases, "
    "int num_layers, float dropout, bool train, bool bidirectional) -> Tensor[]"
)
_LIBRARY.define("packed(Tensor padded, Tensor lengths) -> (Tensor, Tensor)")
#: for packed data: the same padded, ``[time, batch, ...]``, versions of both, and the lengths if these are arguments
_PADDED: Any = WeakIdKeyDictionary()
#: for sizes of steps that depend on arguments: the lengths of the sequences, and how many steps are padded
_VARYING: Any = WeakIdKeyDictionary()


@torch.library.register_fake("meshwright::recurrent", lib=_LIBRARY)
def _types(
    kind: str, input: torch.Tensor, running: torch.Tensor | None, states: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor], *options: Any,
) -> list[torch.Tensor]:  # fmt: skip
    features = states[0].shape[-1] * (2 if options[-1] else 1)
    is_cast = kind.startswith("rnn") and states[0].dtype != params[0].dtype  # a GRU's new state is a mean with the old
    lasts = [torch.empty_like(s, dtype=params[0].dtype if is_cast else s.dtype) for s in states]
    return [lasts[0].new_empty((*input.shape[:2], features)), *lasts]


connected("meshwright::recurrent", _LIBRARY)


@torch.library.register_fake("meshwright::packed", lib=_LIBRARY)
def _packed_types(padded: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As many rows and steps as the lengths say: numbers that are not known, within bounds that are."""
    steps, batch = padded.shape[:2]
    new_size = torch.library.get_ctx().new_dynamic_size
    rows, longest = new_size(min=batch, max=steps * batch), new_size(min=1, max=steps)
    return padded.new_empty((rows, *padded.shape[2:])), lengths.new_empty(longest)


connected("meshwright::packed", _LIBRARY)


# --- which row is where -------------------------------------------------------------------------------------
def _values(tensor: torch.Tensor) -> list[int] | None:
    values = known(tensor)
    if values is None:
        return None
    with unrecorded():
        return values.tolist()  # type: ignore[no-any-return]


def _refuse(of: str, what: str) -> NoReturn:
    raise ArgumentError(
        f"{of}: {what}. The lengths of the sequences depend on arguments or buffers, and programs have fixed shapes; "
        "give lengths that are the same in every call (a list, or a tensor that is neither), or leave the sequences "
        "padded and mask what is past their ends (torch.where(torch.arange(T) < lengths[:, None], ...))"
    )


def _packed_rows(lengths: Sequence[int]) -> tuple[list[int], list[int]]:
    """For each packed row its step and sequence, as ``step * batch + sequence``; and the sizes of the steps.

    Raises:
      RuntimeError: torch's, for lengths that are not sorted, not positive, or too many.
    """
    steps, batch = max(*lengths, 1), len(lengths)
    with unrecorded():
        numbers = torch.arange(steps * batch).reshape(steps, batch, 1)
        rows, sizes = _functions._pack_padded_sequence(numbers, torch.tensor(lengths), False)
        return rows[:, 0].tolist(), sizes.tolist()


def _padded_rows(sizes: Sequence[int]) -> tuple[list[list[int]], list[int]]:
    """For each step and sequence its packed row, 0 where there is none; and the lengths of the sequences."""
    with unrecorded():
        numbers = torch.arange(sum(sizes))[:, None]
        rows, lengths = _functions._pad_packed_sequence(numbers, torch.tensor(sizes), False, 0, len(sizes))
        return rows[..., 0].tolist(), lengths.tolist()


def _recorded(values: Sequence[int]) -> torch.Tensor:
    with unrecorded():
        tensor = torch.tensor(values)
    return constant(tensor)


def _running(lengths: Sequence[int] | torch.Tensor, steps: int) -> torch.Tensor:
    """Whether a step is one of a sequence."""
    ends = lengths if isinstance(lengths, torch.Tensor) else torch.tensor(lengths)
    return torch.arange(steps)[:, None] < ends


# --- packing and padding ------------------------------------------------------------------------------------
@overrides(_functions._pack_padded_sequence)
def pack(input: torch.Tensor, lengths: torch.Tensor, batch_first: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of all sequences, step by step; sequences are sorted by their lengths."""
    values = _values(lengths)
    padded = input.transpose(0, 1) if batch_first else input
    if values is None:
        return _pack_varying(padded, lengths)
    rows, sizes = _packed_rows(values)
    if padded.shape[1] != len(values) or padded.shape[0] < len(sizes):
        raise ArgumentError(
            f"pack_padded_sequence: lengths {values} do not fit an input of {counted(padded.shape[0], 'step')} and "
            f"{padded.shape[1]} sequences"
        )
    return _packed(padded[: len(sizes)], rows), _recorded(sizes)


def _pack_varying(padded: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences whose lengths do not fit, for which torch raises an error, are NaN; they need not be sorted."""
    steps, batch = padded.shape[:2]
    if not all(type(n) is int for n in padded.shape) or not padded.is_floating_point():
        _refuse("pack_padded_sequence", "the sequences have sizes that vary, or are not of floats")
    if lengths.shape != (batch,):
        raise ArgumentError(
            f"pack_padded_sequence: expected {batch} lengths, one for each sequence, got {tuple(lengths.shape)}"
        )
    fits = (lengths > 0) & (lengths <= steps)
    padded = torch.where(fits.reshape(batch, *(1,) * (padded.ndim - 2)), padded, torch.nan)
    return _varying(padded, torch.where(fits, lengths, steps))


def _varying(padded: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    data, sizes = torch.ops.meshwright.packed(padded, lengths)
    _VARYING[sizes] = lengths, padded.shape[0]
    return _noted(data, padded, lengths), sizes


@overrides(torch.Tensor.__getitem__)
def _element(self: torch.Tensor, index: Any) -> torch.Tensor:
    """Elements as torch's. Layers ask how many sequences take the first step: all, even where the other sizes of steps
    are unknown."""
    if type(index) is int and index == 0 and self in _VARYING:
        return _recorded([_VARYING[self][0].shape[0]])[0]
    return elements(self, index)


def _packed(padded: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    return _noted(padded.flatten(0, 1)[torch.tensor(rows)], padded)


def _noted(data: torch.Tensor, padded: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
    _PADDED[data] = padded, (data._version, padded._version), lengths
    return data


def _unchanged(data: torch.Tensor, steps: int, batch: int, lengths: torch.Tensor | None = None) -> torch.Tensor | None:
    """What data were packed from, if both and the lengths are as they were."""
    padded, versions, own = _PADDED.get(data, (None, None, None))
    if padded is None or versions != (data._version, padded._version) or own is not lengths:
        return None
    return padded if padded.shape[:2] == (steps, batch) else None


def _in_steps(
    data: torch.Tensor, batch_sizes: torch.Tensor, of: str
) -> tuple[torch.Tensor, list[int] | None, torch.Tensor]:
    """Packed data ``[time, batch, ...]``, with anything past the ends of sequences; the lengths of these, if they are
    known; and the same as a tensor."""
    if batch_sizes in _VARYING:
        lengths, steps = _VARYING[batch_sizes]
        padded = _unchanged(data, steps, lengths.shape[0], lengths)
        return (_refuse(of, "packed data that were changed") if padded is None else padded), None, lengths
    sizes = _values(batch_sizes)
    if sizes is None:
        _refuse(of, "sizes of steps that are not the packed ones")
    rows, values = _padded_rows(sizes)
    padded = _unchanged(data, len(sizes), sizes[0])
    return data[torch.tensor(rows)] if padded is None else padded, values, _recorded(values)


@overrides(_functions._pad_packed_sequence)
def pad(
    data: torch.Tensor, batch_sizes: torch.Tensor, batch_first: bool, padding_value: float, total_length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences of one length, with ``padding_value`` past their ends; and their lengths."""
    padded, values, lengths = _in_steps(data, batch_sizes, "pad_packed_sequence")
    steps = padded.shape[0]
    if values is None and type(total_length) is not int:
        _refuse("pad_packed_sequence", f"as many steps as the longest sequence has; give total_length={steps}")
    running = _running(lengths, steps).reshape(*padded.shape[:2], *(1,) * (padded.ndim - 2))
    padded = padded.masked_fill(~running, padding_value)
    if (more := max(total_length, steps) - steps) > 0:
        padded = torch.cat([padded, padded.new_full((more, *padded.shape[1:]), padding_value)])
    return padded.transpose(0, 1) if batch_first else padded, lengths


# --- layers -------------------------------------------------------------------------------------------------
def _override(kind: str) -> None:
    function = getattr(_functions, kind)

    @overrides(function)
    def layers(input: torch.Tensor, *args: Any) -> Any:
        if isinstance(args[2], bool):  # states, parameters, has_biases: an input that is not packed
            return function(input, *args)
        batch_sizes, states, *options = args
        states = [states] if isinstance(states, torch.Tensor) else list(states)
        return _run(kind, input, batch_sizes, states, *options)


def _run(
    kind: str, data: torch.Tensor, batch_sizes: torch.Tensor, states: list[torch.Tensor], params: Sequence[Any],
    *options: Any,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    padded, values, lengths = _in_steps(data, batch_sizes, kind)
    running = _running(lengths, padded.shape[0])
    out, *lasts = torch.ops.meshwright.recurrent(kind, padded, running, states, list(params), *options)
    if values is None:
        return _varying(out, lengths)[0], *lasts
    return _packed(out, _packed_rows(values)[0]), *lasts


for _kind in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
    _override(_kind)


# --- layers that are cast -----------------------------------------------------------------------------------
_KINDS = {getattr(torch.ops.aten, kind).input: kind for kind in ("gru", "rnn_tanh", "rnn_relu")}


def cast_layers(op: Any, args: Sequence[Any], dtype: torch.dtype) -> Any:
    """What an op is where torch casts products to ``dtype``, step by step (``torch.autocast``): layers as one op, whose
    products are of that type, and states of the type that these give them. None for any other op."""
    if op == torch.ops.meshwright.recurrent.default:
        kind, input, running, states, params, *options = args
        return None if _is_wide(params) else _cast(kind, dtype, input, running, states, params, *options)
    if op not in _KINDS or _is_wide(args[2]):
        return None
    input, hx, params, *options, batch_first = args
    is_one = input.ndim == 2
    x, h = (input[:, None], hx[:, None]) if is_one else (input.transpose(0, 1) if batch_first else input, hx)
    out, last = _cast(_KINDS[op], dtype, x, None, [h], params, *options)
    return (out[:, 0], last[:, 0]) if is_one else (out.transpose(0, 1) if batch_first else out, last)


def _is_wide(params: Sequence[torch.Tensor]) -> bool:
    return params[0].dtype == torch.float64  # which torch does not cast


def _cast(kind: str, dtype: torch.dtype, input: Any, running: Any, states: Any, params: Any, *options: Any) -> Any:
    weights = [p.to(dtype) for p in params]
    return torch.ops.meshwright.recurrent(kind, input.to(dtype), running, states, weights, *options)
