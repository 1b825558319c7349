"""``jax.extend.core``: primitives and jaxprs."""

from meshwright.api.tracing import jaxpr_as_fun
from meshwright.core.absent import absent as _absent
from meshwright.errors import InconclusiveDimensionOperation, JaxprTypeError
from meshwright.ir.jaxpr import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from meshwright.ir.verify import verify as check_jaxpr
from meshwright.ops.primitive import Primitive

__all__ = [
    "ClosedJaxpr", "InconclusiveDimensionOperation", "Jaxpr", "JaxprEqn", "JaxprTypeError", "Literal", "Primitive",
    "Var", "check_jaxpr", "jaxpr_as_fun",
]  # fmt: skip

__getattr__ = _absent("extend.core")
