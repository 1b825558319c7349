"""The foundation of all other parts: dtypes, avals, pytrees, source locations, configuration.

The names of ``jax.core`` and ``jax.extend.core`` are available here, wherever they are defined.
"""

from meshwright.core.absent import absent
from meshwright.core.late import late_attributes

__getattr__, __dir__ = late_attributes(
    __name__,
    {
        **dict.fromkeys(("AbstractValue", "ShapedArray"), "meshwright.core.avals"),
        **dict.fromkeys(("Atom", "ClosedJaxpr", "Jaxpr", "JaxprEqn", "Literal", "Var"), "meshwright.ir.jaxpr"),
        **dict.fromkeys(("Trace", "Tracer", "eval_jaxpr"), "meshwright.ir.tracing"),
        "ensure_compile_time_eval": "meshwright.ir.state",
        "Primitive": "meshwright.ops.primitive",
        "jaxpr_as_fun": "meshwright.api.tracing",
        **dict.fromkeys(("pytype_aval_mappings", "valid_jaxtype"), "meshwright.runtime.python_types"),
    },
    missing=absent("core"),
)
