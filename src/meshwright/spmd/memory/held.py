"""The result of a memory prediction: sizes, and the buffers that are live at the peak."""

from __future__ import annotations

from meshwright.core.avals import ShapedArray
from meshwright.core.printed import Printed
from meshwright.core.records import dataclass
from meshwright.core.source import UNKNOWN, SourceLocation
from meshwright.spmd.report import human_bytes

#: the number of buffers that a report lists
_SHOWN = 12


@dataclass(frozen=True)
class LiveBuffer:
    """A buffer that is live at the peak: ``kind`` is ``argument``, ``result`` or ``temporary``, ``what`` the op.

    If it is a shard of a value of the unpartitioned program, ``whole`` is that value's type and ``sharding`` its layout
    on the mesh as text, such as ``[{x}, {}]``.
    """

    nbytes: int
    kind: str
    what: str
    aval: ShapedArray
    source: SourceLocation
    whole: ShapedArray | None = None
    sharding: str = ""

    def __str__(self) -> str:
        where = "" if self.source is UNKNOWN else f"  at {self.source}"
        of = "" if self.whole is None else f" of {self.whole} as {self.sharding}"
        return f"{human_bytes(self.nbytes):>10}  {self.kind:<9}  {self.aval}{of} {self.what}{where}"


@dataclass(frozen=True)
class Memory(Printed):
    """The memory of one device in one run, in bytes; ``alias_bytes`` are donated buffers that results reuse."""

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    #: buffers live at the peak, largest first
    buffers: tuple[LiveBuffer, ...]
    #: arguments, results and intermediate values in host memory
    host_bytes: int = 0
    #: those of the temporaries' bytes that no value takes at the peak, where XLA does not count them
    gap_bytes: int = 0
    #: the accelerator whose compiler was predicted; empty: CPUs, as of the virtual mesh
    chip: str = ""
    #: why it is not that of the mesh's machine, if it is not
    note: str = ""

    @property
    def peak_bytes(self) -> int:
        return self.argument_bytes + self.output_bytes + self.temp_bytes - self.alias_bytes

    @property
    def live_bytes(self) -> int:
        """The peak of live values, as XLA reports it for accelerators; ``peak_bytes`` is what is allocated."""
        return self.peak_bytes - self.gap_bytes

    def __repr__(self) -> str:
        return f"Memory({str(self).partition(chr(10))[0]})"

    def __str__(self) -> str:
        show = human_bytes
        taken = f" ({show(self.alias_bytes)} of them in donated arguments)" if self.alias_bytes else ""
        device = f"a device ({self.chip})" if self.chip else "a device"
        lines = [
            f"{device} holds at most {show(self.peak_bytes)}: arguments {show(self.argument_bytes)}, results "
            f"{show(self.output_bytes)}{taken}, temporaries {show(self.temp_bytes)}"
        ]
        if self.note:
            lines.append(f"note: {self.note}")
        if self.host_bytes:
            lines.append(f"{show(self.host_bytes)} of that are in the host's memory")
        lines += map(str, self.buffers[:_SHOWN])
        if len(self.buffers) > _SHOWN:
            rest = sum(b.nbytes for b in self.buffers[_SHOWN:])
            lines.append(f"{show(rest):>10}  in {len(self.buffers) - _SHOWN} smaller buffers")
        return "\n".join(lines)
