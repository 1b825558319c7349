"""Guards against values that move between host and devices where nobody asked for it, by JAX's names and levels.

A transfer is explicit where the program says so (``device_put``, ``device_get``, assembling an array of its parts), and
implicit where a NumPy value or a Python number meets an array or a jitted function, or is made into an array.
"""

from __future__ import annotations

import logging
from typing import Any

from meshwright.core.config import config
from meshwright.errors import TransferError

_LOGGER = logging.getLogger("meshwright")
_REMEDY = {
    "host_to_device": "pass an array that device_put has made",
    "device_to_host": "fetch it with device_get",
    "device_to_device": "leave it where it is",
}


def level_of(kind: str) -> str:
    """The level for transfers of a kind, such as ``"host_to_device"``: its own, or that for all kinds."""
    return getattr(config, "transfer_guard_" + kind) or config.transfer_guard or "allow"


def check_transfer(kind: str, explicit: bool, what: Any) -> None:
    """Log or refuse a transfer of ``what``, an aval, as the guard of its kind says.

    Raises:
      TransferError: it is refused.
    """
    level = level_of(kind)
    if level == "allow" or (explicit and not level.endswith("_explicit")):
        return
    named = f"{'explicit' if explicit else 'implicit'} {kind.replace('_', '-')} transfer of {what}"
    if level.startswith("log"):
        _LOGGER.warning("%s", named)
        return
    remedy = "" if explicit else f"; {_REMEDY[kind]}, or allow it"
    raise TransferError(f"{named}, which transfer_guard_{kind} ({level!r}) refuses{remedy}")
