"""Transfer guards, with JAX's names and levels: control unintended transfers between host and devices.

A transfer is explicit if the program requests it (``device_put``, ``device_get``, assembling an array from its parts).
It is implicit if a NumPy value or Python number is converted to an array, or used with an array or a jitted function.
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
    """The guard level for a kind of transfer, such as ``"host_to_device"``: its own, or the one for all kinds."""
    return getattr(config, "transfer_guard_" + kind) or config.transfer_guard or "allow"


def check_transfer(kind: str, explicit: bool, what: Any) -> None:
    """Log or refuse a transfer of ``what``, an aval, by the guard level of its kind.

    Raises:
      TransferError: the transfer is refused.
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
