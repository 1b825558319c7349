"""What every other part stands on: dtypes, avals, pytrees, source locations, configuration.

The names of ``jax.core`` and ``jax.extend.core`` are here too, wherever they are defined.
"""

from importlib import import_module
from typing import Any

#: where each public name is defined
_DEFINED = {
    "ShapedArray": "core.avals",
    "ClosedJaxpr": "ir.jaxpr",
    "Jaxpr": "ir.jaxpr",
    "JaxprEqn": "ir.jaxpr",
    "Literal": "ir.jaxpr",
    "Var": "ir.jaxpr",
    "Trace": "ir.tracing",
    "Tracer": "ir.tracing",
    "ensure_compile_time_eval": "ir.tracing",
    "eval_jaxpr": "ir.tracing",
    "jaxpr_as_fun": "api.tracing",
}


def __getattr__(name: str) -> Any:
    if name in _DEFINED:
        return getattr(import_module(f"meshwright.{_DEFINED[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_DEFINED})
