"""How JAX lowers functions for us: it keeps the operations that it writes out on CPUs, and its jaxprs are recorded."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax

from meshwright.core.late import LateModule
from meshwright.core.source import warn
from meshwright.errors import KernelWarning
from meshwright.interop.jax.kernels import lower_kernel

_MLIR: Any = LateModule("jax._src.interpreters.mlir")
_LAX: Any = LateModule("jax._src.lax.lax")


def _kept(warnings: list[str]) -> Any:
    """Lowering rules for what JAX keeps on accelerators alone: products with groups, of which it multiplies all rows
    with all groups on CPUs, and Pallas' kernels."""

    def grouped(context: Any, *operands: Any, **params: Any) -> Any:
        return _LAX._ragged_dot_general_lower(context, *operands, **params)

    rules: list[tuple[Any, Any]] = [(_LAX.ragged_dot_general_p, grouped)]
    if "jax._src.pallas.pallas_call" in sys.modules:  # whose import takes a second
        rules.append((sys.modules["jax._src.pallas.pallas_call"].pallas_call_p, partial(lower_kernel, warnings)))
    return _MLIR.LoweringParameters(override_lowering_rules=tuple(rules))


#: held while ``jax.stages.Traced.lower`` is replaced
_NOTING = threading.RLock()


@contextmanager
def jaxprs_seen() -> Iterator[list[Any]]:
    """A context in which the jaxprs that this thread lowers are recorded: flax and equinox do not expose theirs.

    They are lowered by :func:`_kept`.

    Warns:
      KernelWarning: a kernel runs on some hardware only.
    """
    seen: list[Any] = []
    warnings: list[str] = []
    here = threading.get_ident()
    with _NOTING:
        lower = jax.stages.Traced.lower

        def noted(traced: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == here:
                seen.append(traced.jaxpr)
                kwargs.setdefault("_private_parameters", _kept(warnings))
            return lower(traced, *args, **kwargs)

        jax.stages.Traced.lower = noted  # type: ignore[assignment]
        try:
            yield seen
        finally:
            jax.stages.Traced.lower = lower  # type: ignore[method-assign]
    for text in dict.fromkeys(warnings):
        warn(text, KernelWarning)
