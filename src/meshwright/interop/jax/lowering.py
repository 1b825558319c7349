"""How JAX lowers functions for us: it keeps the operations that it writes out on CPUs, and its jaxprs are recorded."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.extend

from meshwright.core.late import LateModule
from meshwright.core.source import warn
from meshwright.errors import KernelWarning
from meshwright.interop.jax.kernel_grids import Grid, Lower
from meshwright.interop.jax.kernels import lower_kernel

_MLIR: Any = LateModule("jax._src.interpreters.mlir")
_LAX: Any = LateModule("jax._src.lax.lax")


@dataclass
class Seen:
    """What JAX lowers in a context: jaxprs, and the kernels that can be divided, each by its grid."""

    jaxprs: list[Any] = field(default_factory=list)
    kernels: list[Grid] = field(default_factory=list)
    #: texts of warnings
    warnings: list[str] = field(default_factory=list)


def _kept(seen: Seen, alone: Lower) -> Any:
    """Lowering rules for what JAX keeps on accelerators alone: products with groups, of which it multiplies all rows
    with all groups on CPUs, and Pallas' kernels; and for functions that a Python function would partition, which are
    written out, as on one device, so that they can be partitioned here."""

    def grouped(context: Any, *operands: Any, **params: Any) -> Any:
        return _LAX._ragged_dot_general_lower(context, *operands, **params)

    rules: list[tuple[Any, Any]] = [(_LAX.ragged_dot_general_p, grouped)]
    pallas = sys.modules.get("jax._src.pallas.pallas_call")  # whose import takes a second
    if pallas is not None:
        rules.append((pallas.pallas_call_p, partial(lower_kernel, seen.warnings, seen.kernels, alone)))
    by_users = sys.modules.get("jax._src.custom_partitioning")
    if by_users is not None:
        rules.append((by_users.custom_partitioning_p, _written_out))
    return _MLIR.LoweringParameters(override_lowering_rules=tuple(rules))


def _written_out(context: Any, *operands: Any, call: Any, **params: Any) -> Any:
    return _MLIR.lower_fun(jax.extend.core.jaxpr_as_fun(call), multiple_results=True)(context, *operands)


#: held while ``jax.stages.Traced.lower`` is replaced
_NOTING = threading.RLock()


@contextmanager
def lowering(alone: Lower) -> Iterator[Seen]:
    """A context in which what this thread lowers is recorded: flax and equinox do not expose their jaxprs.

    It is lowered by :func:`_kept`. ``alone`` makes a program for one device of a function for operands of the given
    types.

    Warns:
      KernelWarning: a kernel runs on some hardware only.
    """
    seen = Seen()
    here = threading.get_ident()
    with _NOTING:
        lower = jax.stages.Traced.lower

        def noted(traced: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == here:
                seen.jaxprs.append(traced.jaxpr)
                kwargs.setdefault("_private_parameters", _kept(seen, alone))
            return lower(traced, *args, **kwargs)

        jax.stages.Traced.lower = noted  # type: ignore[assignment]
        try:
            yield seen
        finally:
            jax.stages.Traced.lower = lower  # type: ignore[method-assign]
    for text in dict.fromkeys(seen.warnings):
        warn(text, KernelWarning)
