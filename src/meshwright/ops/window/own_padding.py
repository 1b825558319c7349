"""Padding before windows becomes the windows' own, and slices of what windows give become fewer windows.

Programs pad before a causal convolution, and derivatives of windows pad, dilate, and cut the padding off. A padded
array has tiles of another size than the array, so along a split dimension the padding, the windows and the cut would
each move rows. Windows that pad by themselves fetch what their tiles lack, once. Windows that are in step with their
array stay so: what else is done in its tiles, such as a stencil on its interior, can be done there, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from meshwright.core.records import dataclass
from meshwright.ir.constants import known_values
from meshwright.ir.jaxpr import Atom, ClosedJaxpr, JaxprEqn, Literal, all_eqns
from meshwright.ir.rewrite import Replacement, in_regions, replaced, uses_of
from meshwright.ops.products.conv_op import ConvGeneralDilated
from meshwright.ops.shape.joined_pads import is_zero, is_zero_value, zeros_of
from meshwright.ops.shape.slice_pad import Pad, Slice
from meshwright.ops.window.geometry import WindowDim, dilate
from meshwright.ops.window.reductions import ReduceWindow
from meshwright.ops.window.select import SelectAndScatterAdd, worst


class _Rows(NamedTuple):
    """The rows of a dimension that a slice keeps."""

    start: int
    length: int
    stride: int


@dataclass(frozen=True)
class _Windows:
    """The windows of an equation over dimensions ``dims`` of its operand ``operand``, ``outs`` of its result.

    Where a window covers rows outside of the operand, it sees ``filler``.
    """

    operand: int
    filler: np.ndarray
    dims: Sequence[int]
    outs: Sequence[int]
    windows: Sequence[WindowDim]


def own_padding(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program in which windows pad by themselves, and those that slices drop are not computed."""
    if not {Pad, Slice} & {type(e.op) for e in all_eqns(jaxpr.jaxpr)}:
        return jaxpr
    return replaced(jaxpr, _OwnPadding(jaxpr).rewritten)


class _OwnPadding:
    """The rewrite, with what is known of the values before an equation."""

    def __init__(self, jaxpr: ClosedJaxpr) -> None:
        self.uses = uses_of(jaxpr.jaxpr)
        self.made: dict[Atom, JaxprEqn] = {}
        self.zeros = zeros_of(jaxpr)
        self.constants = dict(zip(jaxpr.jaxpr.constvars, jaxpr.consts))

    def rewritten(self, eqn: JaxprEqn) -> Replacement:
        if eqn.op.holds_jaxprs:
            return in_regions(eqn, own_padding)
        eqn = self._fewer(eqn) or self._padded(eqn) or eqn
        self.made.update(dict.fromkeys(eqn.outvars, eqn))
        return eqn

    def _is(self, atom: Atom, filler: np.ndarray) -> bool:
        """Whether a scalar is known to be ``filler``."""
        if is_zero_value(filler):
            return is_zero(atom, self.zeros)
        value = known_values(atom.val if isinstance(atom, Literal) else self.constants.get(atom))
        return value is not None and value.astype(filler.dtype).tobytes() == filler.tobytes()

    def _padding(self, atom: Atom, filler: np.ndarray) -> tuple[Atom, Sequence[tuple[int, int, int]]] | None:
        """The array of which ``atom`` is one padded with ``filler``, and the padding."""
        pad = self.made.get(atom)
        if pad is None or not isinstance(pad.op, Pad) or 0 in pad.invars[0].aval.shape:
            return None
        config = pad.op.padding_config
        outside = self._is(pad.invars[1], filler) and all(min(low, high) >= 0 for low, high, _ in config)
        return (pad.invars[0], config) if outside else None

    def _padded(self, eqn: JaxprEqn) -> JaxprEqn | None:
        """Windows of a padded array as windows of the array."""
        found = _windows_of(eqn)
        padding = None if found is None else self._padding(eqn.invars[found.operand], found.filler)
        if found is None or padding is None or not _slide_along(found.dims, found.windows, padding[1]):
            return None
        array, config = padding
        windows = [_wider(w, *config[d]) for w, d in zip(found.windows, found.dims)]
        sizes = [[x.aval.shape[d] for d in found.dims] for x in (eqn.invars[found.operand], array)]
        if _falls_out_of_step(zip(found.windows, sizes[0]), zip(windows, sizes[1])):
            return None
        invars = list(eqn.invars)
        invars[found.operand] = array
        return _with_windows(eqn, windows, invars)

    def _fewer(self, eqn: JaxprEqn) -> JaxprEqn | None:
        """A slice of what windows give as what fewer windows give."""
        kept = _kept(eqn)
        maker = self.made.get(eqn.invars[0]) if kept and len(self.uses.get(eqn.invars[0], ())) == 1 else None  # type: ignore[arg-type]
        if kept is None or maker is None:
            return None
        if isinstance(maker.op, SelectAndScatterAdd):
            return self._unpadded(eqn, maker, maker.op, kept)
        found = _windows_of(maker)
        whole = [_Rows(0, n, 1) for n in maker.outvars[0].aval.shape]
        if found is None or any(k != w for d, (k, w) in enumerate(zip(kept, whole)) if d not in found.outs):
            return None
        sizes = maker.invars[found.operand].aval.shape
        windows = [
            w if kept[out] == whole[out] else _narrower(w, kept[out], sizes[d])
            for w, d, out in zip(found.windows, found.dims, found.outs)
        ]
        before, after = (list(zip(ws, (sizes[d] for d in found.dims))) for ws in (found.windows, windows))
        if _falls_out_of_step(before, after) or any(b != a and b[0].is_trivial for b, a in zip(before, after)):
            return None
        if any(min(w.low, w.high) <= -dilate(n, w.base_dilation) for w, n in after):  # they see no row
            return None
        return _with_windows(maker, windows, maker.invars).replace(outvars=eqn.outvars)

    def _unpadded(
        self, eqn: JaxprEqn, maker: JaxprEqn, op: SelectAndScatterAdd, kept: Sequence[_Rows]
    ) -> JaxprEqn | None:
        """What windows scatter to a padded array, without the padding: what they scatter to the array."""
        source, operand = maker.invars
        padding = self._padding(operand, worst(op.selects, operand.aval.dtype))
        if padding is None:
            return None
        array, config = padding
        own = [_Rows(low, n, 1) for n, (low, _, _) in zip(array.aval.shape, config)]
        plain = not any(inner for *_, inner in config)
        if list(kept) != own or not plain or not _slide_along(range(len(config)), op.windows, config):
            return None
        windows = [_wider(w, *c) for w, c in zip(op.windows, config)]
        return maker.replace(op=op.with_windows(windows), invars=[source, array], outvars=eqn.outvars)


def _slide_along(dims: Sequence[int], windows: Sequence[WindowDim], config: Sequence[tuple[int, int, int]]) -> bool:
    """Whether windows slide along all dimensions that are padded."""
    slides = {d for d, w in zip(dims, windows) if not w.is_trivial}
    return all(d in slides for d, padding in enumerate(config) if any(padding))


def _falls_out_of_step(before: Iterable[tuple[WindowDim, int]], after: Iterable[tuple[WindowDim, int]]) -> bool:
    """Whether one of some windows, with the rows that they slide over, is in step with these only before a change."""
    return any(old.in_step(n) and not new.in_step(m) for (old, n), (new, m) in zip(before, after))


def _windows_of(eqn: JaxprEqn) -> _Windows | None:
    """The windows of an equation whose windows may have padding; None for another one."""
    op = eqn.op
    if isinstance(op, ReduceWindow):
        dims = range(len(op.windows))
        return _Windows(0, op.monoid.identity(eqn.invars[0].aval.dtype), dims, dims, op.windows)
    if isinstance(op, ConvGeneralDilated):
        lhs, rhs = (a.aval for a in eqn.invars)
        left, _, out = op.dimension_numbers
        return _Windows(0, np.zeros((), lhs.dtype), left[2:], out[2:], op.windows(rhs.shape))
    return None


def _with_windows(eqn: JaxprEqn, windows: Sequence[WindowDim], invars: Sequence[Atom]) -> JaxprEqn:
    """An equation with other windows, over these operands."""
    op = eqn.op.with_windows(windows)  # type: ignore[attr-defined]
    return eqn.replace(op=op, invars=invars)


def _wider(window: WindowDim, low: int, high: int, inner: int) -> WindowDim:
    """The window over an array, given the one over the array padded with ``low`` and ``high`` rows, and ``inner`` ones
    between its rows."""
    step = window.base_dilation
    return replace(
        window, low=window.low + low * step, high=window.high + high * step, base_dilation=step * (inner + 1)
    )


def _narrower(window: WindowDim, kept: _Rows, size: int) -> WindowDim:
    """The window that gives the rows that are kept, of an operand of ``size`` rows."""
    narrow = replace(window, low=window.low - kept.start * window.stride, stride=window.stride * kept.stride, high=0)
    used = (kept.length - 1) * narrow.stride + window.extent
    return replace(narrow, high=used - narrow.padded_size(size))


def _kept(eqn: JaxprEqn) -> list[_Rows] | None:
    """The rows of each dimension that an equation keeps, if it is a slice, or a padding that crops."""
    op = eqn.op
    if isinstance(op, Slice):
        starts, strides = op.start_indices, op.strides
    elif isinstance(op, Pad) and all(max(low, high) <= 0 and not inner for low, high, inner in op.padding_config):
        starts, strides = tuple(-low for low, _, _ in op.padding_config), (1,) * len(op.padding_config)
    else:
        return None
    shape = eqn.outvars[0].aval.shape
    return None if 0 in shape else [_Rows(*rows) for rows in zip(starts, shape, strides)]
