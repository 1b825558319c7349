"""Contracts: the collectives, bytes, work, memory and fallbacks of a partitioned program, pinned in a JSON file.

These are snapshot tests. A collective is identified by its kind, its axes, and the text of its source line, so that
edits elsewhere in the file have no effect.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from meshwright.api.changes import compared, reasons, summary
from meshwright.core.expected import as_path
from meshwright.core.files import user_file
from meshwright.errors import ArgumentTypeError, ContractError, MissingFileError

#: if set to 1, contracts are rewritten; set by ``pytest --meshwright-update``
UPDATE = "MESHWRIGHT_UPDATE_CONTRACTS"


def contract(partitioned: Any, file: str | os.PathLike[str], *, update: bool | None = None) -> None:
    """Check that a partitioned program matches the contract in ``file``.

    The contract pins the mesh; the collectives by kind, axes and source line, with their counts and bytes; a device's
    bytes sent, arithmetic, redundancy and peak memory; and what is replicated or padded.

    Args:
      partitioned: a :class:`PartitionedProgram`, or the result of ``partition()`` for a JAX program.
      file: the path of a JSON file, kept under version control.
      update: write the file instead. The default is True if pytest runs with ``--meshwright-update``.

    Raises:
      ContractError: the program differs, with what was added or removed and why; or the file does not exist.
      ArgumentTypeError: not a partitioned program.
      FileError: the file cannot be read or written.

    Example:
      >>> part = mw.jit(lambda x: x.sum()).lower(mnp.ones(8)).partition(num_devices=4)
      >>> mw.testing.contract(part, "/tmp/sum.json", update=True)
      >>> mw.testing.contract(part, "/tmp/sum.json")
    """
    __tracebackhide__ = True  # hides this frame in pytest's tracebacks
    if not hasattr(partitioned, "collectives") or not hasattr(partitioned, "peak_bytes"):
        raise ArgumentTypeError(f"contract: expected a partitioned program, got {type(partitioned).__name__}")
    path, current = as_path("contract: file", file), summary(partitioned)
    if update or (update is None and os.environ.get(UPDATE) == "1"):
        with user_file("contract: file", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(current, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return
    pinned = _read(path)
    changes = compared(pinned, current, reasons(partitioned))
    if changes:
        listed = "\n".join(f"  {c}" for c in changes)
        raise ContractError(
            f"{path.name}: the program {partitioned.name!r} is not what was agreed on:\n{listed}\n"
            "If that is meant, run pytest with --meshwright-update and review the file"
        )


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and {"count", "bytes"} <= entry.keys()


def _read(path: Path) -> dict[str, Any]:
    try:
        with user_file("contract: file", path):
            pinned = json.loads(path.read_text(encoding="utf-8"))
    except MissingFileError:
        raise ContractError(
            f"there is no contract {str(path)!r}; run pytest with --meshwright-update to write it"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ContractError(f"{path}: is no contract ({error}); run pytest with --meshwright-update") from None
    collectives = pinned.get("collectives") if isinstance(pinned, dict) else None
    if not isinstance(collectives, dict) or not all(_is_entry(entry) for entry in collectives.values()):
        raise ContractError(f"{path}: is no contract; run pytest with --meshwright-update to write it anew")
    return pinned
