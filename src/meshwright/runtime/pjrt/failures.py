"""XLA's errors as ours."""

from __future__ import annotations

from typing import Any, NoReturn

from meshwright.errors import DeletedArrayError, DeviceError, MeshwrightError
from meshwright.ops.control.callback import failure_in
from meshwright.runtime.pjrt.world import CAUSE, WORLD


def is_xla_error(error: Exception) -> bool:
    """Whether XLA raised it; the types are not public."""
    return type(error).__name__ in ("XlaRuntimeError", "JaxRuntimeError")


def raise_failure(error: Exception, what: str, maker: Any = None) -> NoReturn:
    """Raise the user-facing error for a failed run or wait; ``maker`` is the executable, if known."""
    if not is_xla_error(error):
        raise error
    of_callback = failure_in(str(error))
    if of_callback is not None:
        raise of_callback from of_callback.__cause__
    of_others = CAUSE.value(error, maker) if WORLD.service is not None else None
    if of_others is not None:
        raise of_others from None
    raise _failure(error, what) from None


def _failure(error: Exception, what: str) -> MeshwrightError:
    if "deleted or donated" in str(error):
        return DeletedArrayError(
            "an array was used whose memory had been donated through another array that shares it (device_put does not "
            "copy); use the function's result, or do not donate it"
        )
    return DeviceError(f"{what} failed on the device: {error}")
