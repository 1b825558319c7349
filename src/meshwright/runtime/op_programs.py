"""The compiled programs of single ops."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from threading import RLock

from meshwright.core.caches import on_clear
from meshwright.ir.op import Op
from meshwright.runtime.executable import Executable

#: the most programs of ops that hold jaxprs; such an op may be a new object at each call
_MOST_WITH_JAXPRS = 256


class OpPrograms:
    """A cache of the programs of single ops, by op, types and places of the operands."""

    def __init__(self) -> None:
        self._programs: dict[Hashable, Executable] = {}
        #: the keys of ops that hold jaxprs, oldest first
        self._with_jaxprs: deque[Hashable] = deque()
        self._lock = RLock()  # what frees a program may keep another
        self.get = self._programs.get
        on_clear(self._clear)

    def _clear(self) -> None:
        with self._lock:
            self._programs.clear()
            self._with_jaxprs.clear()

    def keep(self, key: Hashable, op: Op, program: Executable) -> Executable:
        """Keep a program, and return it. Those of ops that hold jaxprs are forgotten when there are many newer ones."""
        with self._lock:
            self._programs[key] = program
            if op.holds_jaxprs:
                self._with_jaxprs.append(key)
                if len(self._with_jaxprs) > _MOST_WITH_JAXPRS:
                    self._programs.pop(self._with_jaxprs.popleft(), None)
        return program
