"""Packed sequences (``torch.nn.utils.rnn``) of lengths that are known when a module is exported.

Packing picks rows by constant indices, padding puts them back. A recurrent layer runs over padded sequences, with a
mask: what was packed and not changed since is not padded again, so that a batch stays split over devices from one end
of a network to the other, and the rows that nobody asks for are never picked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.weak import WeakIdKeyDictionary

from meshwright.errors import ArgumentError
from meshwright.interop.torch.overrides import known, overrides, unrecorded

_functions = torch._VF
_LIBRARY = torch.library.Library("meshwright", "FRAGMENT")
_LIBRARY.define(
    "recurrent(str kind, Tensor input, Tensor running, Tensor[] states, Tensor[] params, bool has_biases, "
    "int num_layers, float dropout, bool train, bool bidirectional) -> Tensor[]"
)
#: for packed data: its version, and the same padded, ``[time, batch, ...]``
_PADDED: Any = WeakIdKeyDictionary()


@torch.library.register_fake("meshwright::recurrent", lib=_LIBRARY)
def _types(
    kind: str, input: torch.Tensor, running: torch.Tensor, states: Sequence[torch.Tensor], *options: Any
) -> list[torch.Tensor]:
    features = states[0].shape[-1] * (2 if options[-1] else 1)
    return [input.new_empty((*input.shape[:2], features)), *(torch.empty_like(s) for s in states)]


# --- which row is where -------------------------------------------------------------------------------------
def _values(tensor: torch.Tensor, of: str) -> list[int]:
    values = known(tensor)
    if values is None:
        raise ArgumentError(
            f"{of}: the lengths of the sequences depend on arguments or buffers, and programs have fixed shapes; give "
            "lengths that are the same in every call (a list, or a tensor that is neither), or leave the sequences "
            "padded and mask what is past their ends (torch.where(torch.arange(T) < lengths[:, None], ...))"
        )
    with unrecorded():
        return values.tolist()  # type: ignore[no-any-return]


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
    """A constant of the graph, whose values Python may ask for."""
    tensor = torch.tensor(values)
    if isinstance(tensor, FakeTensor):
        with unrecorded():
            tensor.constant = torch.tensor(values)
    return tensor


def _running(lengths: Sequence[int], steps: int) -> torch.Tensor:
    """Whether a step is one of a sequence."""
    return torch.arange(steps)[:, None] < torch.tensor(lengths)


# --- packing and padding ------------------------------------------------------------------------------------
@overrides(_functions._pack_padded_sequence)
def pack(input: torch.Tensor, lengths: torch.Tensor, batch_first: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of all sequences, step by step; sequences are sorted by their lengths."""
    values = _values(lengths, "pack_padded_sequence")
    padded = input.transpose(0, 1) if batch_first else input
    rows, sizes = _packed_rows(values)
    if padded.shape[1] != len(values) or padded.shape[0] < len(sizes):
        raise ArgumentError(
            f"pack_padded_sequence: lengths {values} do not fit an input of {padded.shape[0]} steps and "
            f"{padded.shape[1]} sequences"
        )
    return _packed(padded[: len(sizes)], rows), _recorded(sizes)


def _packed(padded: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    data = padded.flatten(0, 1)[torch.tensor(rows)]
    _PADDED[data] = data._version, padded
    return data


def _in_steps(data: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Packed data ``[time, batch, ...]``, with anything past the ends of sequences."""
    version, padded = _PADDED.get(data, (None, None))
    if padded is not None and version == data._version and padded.shape[:2] == (len(sizes), sizes[0]):
        return padded
    return data[torch.tensor(_padded_rows(sizes)[0])]


@overrides(_functions._pad_packed_sequence)
def pad(
    data: torch.Tensor, batch_sizes: torch.Tensor, batch_first: bool, padding_value: float, total_length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences of one length, with ``padding_value`` past their ends; and their lengths."""
    sizes = _values(batch_sizes, "pad_packed_sequence")
    lengths = _padded_rows(sizes)[1]
    padded = _in_steps(data, sizes)
    running = _running(lengths, len(sizes)).reshape(*padded.shape[:2], *(1,) * (padded.ndim - 2))
    padded = padded.masked_fill(~running, padding_value)
    if (more := max(total_length, len(sizes)) - len(sizes)) > 0:
        padded = torch.cat([padded, padded.new_full((more, *padded.shape[1:]), padding_value)])
    return padded.transpose(0, 1) if batch_first else padded, _recorded(lengths)


# --- layers -------------------------------------------------------------------------------------------------
def _override(kind: str) -> None:
    function = getattr(_functions, kind)

    @overrides(function)
    def layers(input: torch.Tensor, *args: Any) -> Any:
        if isinstance(args[2], bool):  # states, parameters, has_biases: an input that is not packed
            return function(input, *args)
        batch_sizes, states, *options = args
        states = [states] if isinstance(states, torch.Tensor) else list(states)
        return _run(kind, input, _values(batch_sizes, kind), states, *options)


def _run(
    kind: str, data: torch.Tensor, sizes: list[int], states: list[torch.Tensor], params: Sequence[Any], *options: Any
) -> tuple[torch.Tensor, ...]:
    lengths = _padded_rows(sizes)[1]
    running = _running(lengths, len(sizes))
    out, *lasts = torch.ops.meshwright.recurrent(kind, _in_steps(data, sizes), running, states, list(params), *options)
    return _packed(out, _packed_rows(lengths)[0]), *lasts


for _kind in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
    _override(_kind)
