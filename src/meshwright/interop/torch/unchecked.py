"""Looks at values while a module is exported: what is the same in every call is known, and torch's own looks, to check
arguments or to choose a quicker way to the same, are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributions import Distribution
from torch.nn.modules import transformer

from meshwright.interop.torch.guarded import NO_VALUE, answer_that_raises_nothing, note_in_vain
from meshwright.interop.torch.overrides import computed_alike, constant, known, overrides, unrecorded


@contextmanager
def values_not_asked_for() -> Iterator[None]:
    """Within, distributions are made of any parameters, as under ``torch.compile``, but for those that are told to
    validate theirs; masks of ``nn.Transformer`` are applied as they are, and not looked at for being causal."""
    validated, is_causal = Distribution._validate_args, transformer._detect_is_causal_mask
    Distribution.set_default_validate_args(False)
    transformer._detect_is_causal_mask = _as_told  # type: ignore[assignment]
    try:
        yield
    finally:
        Distribution.set_default_validate_args(validated)
        transformer._detect_is_causal_mask = is_causal


@contextmanager
def matrices_not_looked_at() -> Iterator[None]:
    """Within, torch's decompositions do not ask whether a matrix has a factorization, which torch counts as an effect:
    where it raises an error, results here are NaN."""
    checks = getattr(torch._library.simple_registry.singleton.find("aten::_linalg_check_errors"), "effect", None)
    if checks is None:  # releases in which it is none
        yield
        return
    before = checks.effect
    checks.register(None)
    try:
        yield
    finally:
        checks.register(before)


def _asked(read: Callable[..., Any], *tensors: torch.Tensor) -> Any:
    """What torch says."""
    try:
        return read(*tensors)
    except NO_VALUE:
        note_in_vain()
        raise


def _number(read: Callable[[torch.Tensor], Any]) -> None:
    asks = read is torch.Tensor.__bool__

    @overrides(read)
    def number(self: torch.Tensor) -> Any:
        """The number that a tensor holds, if it is the same in every call."""
        value = known(self) if self.numel() == 1 else None
        if value is None:
            answer = answer_that_raises_nothing() if asks and self.numel() == 1 else None
            return _asked(read, self) if answer is None else answer
        with unrecorded():
            return read(value)


for _read in (
    torch.Tensor.item, torch.Tensor.__bool__, torch.Tensor.__int__, torch.Tensor.__float__, torch.Tensor.__index__,
):  # fmt: skip
    _number(_read)


def _array(read: Callable[..., Any]) -> None:
    @overrides(read)
    def array(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """NumPy's array of a tensor, if its values are the same in every call: a copy, which nothing writes to."""
        value = known(self)
        if value is None:
            return read(self, *args, **kwargs)
        with unrecorded():
            copied = read(value.clone(), *args, **kwargs)
        copied.flags.writeable = False
        return copied


for _read in torch.Tensor.numpy, torch.Tensor.__array__:
    _array(_read)


@overrides(torch.Tensor.tolist)
def _listed(self: torch.Tensor) -> Any:
    """The numbers of a tensor, if they are the same in every call."""
    value = known(self)
    if value is None:
        return self.tolist()
    with unrecorded():
        return value.tolist()


@overrides(torch.equal, torch.Tensor.equal)
def _equal(input: torch.Tensor, other: torch.Tensor) -> bool:
    """Torch's function, where what it says is the same in every call: of known values, of shapes that differ, and of
    what is computed twice in the same way from the same, unless that is NaN."""
    if input.shape != other.shape:
        return False
    values = [known(x) for x in (input, other)]
    if not any(v is None for v in values):
        with unrecorded():
            return torch.equal(*values)  # type: ignore[arg-type]
    is_number = input.is_floating_point() or input.is_complex()
    if (input is not other or not is_number) and computed_alike(input, other):  # x == x asks for NaN
        return True
    return _asked(torch.equal, input, other)  # type: ignore[no-any-return]


# --- numbers given as tensors ---------------------------------------------------------------------------------
_SIZED = (
    *(getattr(torch.Tensor, name) for name in (
        "view", "reshape", "expand", "repeat", "tile", "unflatten", "split", "chunk", "roll", "unfold",
        "new_zeros", "new_ones", "new_empty", "movedim", "transpose", "permute", "flatten",
    )),
    torch.nn.functional.pad, torch._C._nn.pad, torch.reshape, torch.tile, torch.unflatten, torch.split,
    torch.chunk, torch.roll, torch.movedim, torch.transpose, torch.permute, torch.flatten,
)  # fmt: skip
_CREATED = torch.zeros, torch.ones, torch.empty, torch.arange, torch.rand, torch.randn, torch.eye


def counted(x: Any) -> Any:
    """``x`` with numbers for the tensors of one integer in it, if they are the same in every call."""
    if isinstance(x, (tuple, list)):
        return type(x)(map(counted, x)) if type(x) in (tuple, list) else x
    if isinstance(x, slice):
        return slice(*map(counted, (x.start, x.stop, x.step)))
    is_count = isinstance(x, torch.Tensor) and x.ndim == 0 and not (x.is_floating_point() or x.is_complex())
    value = known(x) if is_count and x.dtype != torch.bool else None
    if value is None:
        return x
    with unrecorded():
        return int(value)


def _counts(function: Callable[..., Any], first: int) -> None:
    @overrides(function)
    def by_numbers(*args: Any, **kwargs: Any) -> Any:
        """Torch's function, of sizes, shifts and dimensions that are numbers."""
        return function(*args[:first], *map(counted, args[first:]), **{n: counted(x) for n, x in kwargs.items()})


for _function in _SIZED:
    _counts(_function, 1)
for _function in _CREATED:
    _counts(_function, 0)


def bounded(x: Any) -> Any:
    """An index with numbers for the bounds of its slices."""
    if isinstance(x, tuple):
        return tuple(map(bounded, x))
    return counted(x) if isinstance(x, slice) else x


def _as_told(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
    return is_causal is True


# --- shapes that come from values -------------------------------------------------------------------------------
def _made(function: Callable[..., Any]) -> None:
    @overrides(function)
    def made(*args: Any, **kwargs: Any) -> Any:
        """Torch's function, computed at once if all tensors that it is given are the same in every call."""
        leaves, tree = torch.utils._pytree.tree_flatten((args, kwargs))
        values = [known(x) if isinstance(x, torch.Tensor) else x for x in leaves]
        if any(v is None and x is not None for v, x in zip(values, leaves)):
            return function(*args, **kwargs)
        with unrecorded():
            given, named = torch.utils._pytree.tree_unflatten(values, tree)
            out = function(*given, **named)
        return torch.utils._pytree.tree_map_only(torch.Tensor, constant, out)


for _function in (
    torch.nonzero, torch.Tensor.nonzero, torch.argwhere, torch.Tensor.argwhere, torch.unique, torch.Tensor.unique,
    torch.unique_consecutive, torch.Tensor.unique_consecutive, torch.bincount, torch.Tensor.bincount,
):  # fmt: skip
    _made(_function)


@overrides(torch.tensor)
def _tensor(data: Any, **options: Any) -> torch.Tensor:
    """Torch's function, of lists in which tensors are the same in every call: it asks them for their values."""
    leaves, tree = torch.utils._pytree.tree_flatten(data)
    values = [known(x) if isinstance(x, torch.Tensor) else x for x in leaves]
    is_list = isinstance(data, (list, tuple)) and any(isinstance(x, torch.Tensor) for x in leaves)
    if not is_list or any(v is None and x is not None for v, x in zip(values, leaves)):
        return torch.tensor(data, **options)
    with unrecorded():
        made = torch.tensor(torch.utils._pytree.tree_unflatten(values, tree), **options)
    return constant(made)


def positions(x: Any) -> Any:
    """An index with the positions of its masks, as far as these are the same in every call."""
    if isinstance(x, tuple):
        return tuple(p for part in x for p in _positions(part))
    found = _positions(x)
    return x if found[0] is x else found


def _positions(x: Any) -> tuple[Any, ...]:
    is_mask = isinstance(x, torch.Tensor) and x.dtype == torch.bool and x.ndim > 0
    mask = known(x) if is_mask else None
    if mask is None:
        return (x,)
    with unrecorded():
        found = mask.nonzero(as_tuple=True)
    return tuple(map(constant, found))


@overrides(torch.repeat_interleave, torch.Tensor.repeat_interleave)
def _repeated(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Torch's function; of numbers of repetitions that are the same in every call, the elements at positions."""
    x, repeats, dim, *_ = *args, *(None,) * 3
    repeats, dim = kwargs.get("repeats", x if repeats is None else repeats), kwargs.get("dim", dim)
    counts = known(repeats) if isinstance(repeats, torch.Tensor) else None
    if counts is None:
        return torch.repeat_interleave(*args, **kwargs)
    if repeats is x or x is None:
        with unrecorded():
            found = torch.repeat_interleave(counts)
        return constant(found)
    x, dim = (x.flatten(), 0) if dim is None else (x, dim)
    with unrecorded():
        found = torch.repeat_interleave(counts.expand(x.shape[dim]) if counts.numel() == 1 else counts)
    if counts.numel() not in (1, x.shape[dim]):
        return torch.repeat_interleave(*args, **kwargs)
    return x.index_select(dim, constant(found))


@overrides(torch.masked_select, torch.Tensor.masked_select)
def _selected(input: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The elements under a mask; under one that is the same in every call, those at its positions."""
    if known(mask) is None:
        return torch.masked_select(input, mask)
    shape = torch.broadcast_shapes(input.shape, mask.shape)
    return input.expand(shape)[positions(mask.expand(shape))]


@overrides(torch.where)
def _chosen(condition: torch.Tensor, *others: Any, **options: Any) -> Any:
    """Torch's, which without others are the positions."""
    given = positions(condition) if not (others or options) else condition
    return torch.where(condition, *others, **options) if given is condition else given


@overrides(torch.combinations)
def _combinations(input: torch.Tensor, r: int = 2, with_replacement: bool = False) -> torch.Tensor:
    """Torch's, which are the elements at combinations of positions."""
    with unrecorded():
        chosen = torch.combinations(torch.arange(input.shape[0]), r, with_replacement)
    return input[constant(chosen)]
