"""Per-device functions run by Python on each device in turn: ``pmap`` and ``shard_map`` under ``disable_jit``.

Each device has a thread, unless there is only one, and only one thread runs at a time. It computes concrete values, so
``print``, ``if`` and debuggers work, up to a collective, where the next device takes over. When all have reached the
collective, it is computed for all at once with ``vmap``, and each gets its part. Devices that reach different
collectives would deadlock on real hardware; here that is an error.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from meshwright.core.config import config
from meshwright.errors import ArgumentError
from meshwright.ir.op import Op
from meshwright.ir.state import STATE, extend_axis_env, set_trace
from meshwright.ir.tracing import Trace, typeof
from meshwright.ops.collective.base import Collective
from meshwright.ops.shape.rearrange import expand_dims, reshape, squeeze, transpose
from meshwright.ops.shape.slice_pad import concatenate, slice_in_dim
from meshwright.sharding import PartitionSpec
from meshwright.transforms.vmap import vmap


class _Stop(BaseException):
    """Ends a device's thread because another one failed."""


class _Device:
    """The thread of one device, and the collective it waits in."""

    def __init__(self, ring: Ring, number: int, run: Callable[[], Any]) -> None:
        self.ring = ring
        self.number = number
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = self.stopped = False
        #: the collective that it has reached, with its operands
        self.waiting: tuple[Op, Sequence[Any]] | None = None
        self.answer: Any = None
        self._mine, self._theirs = threading.Semaphore(0), threading.Semaphore(0)
        self._run = run
        context = contextvars.copy_context()
        settings, axes = dict(config.__dict__), STATE.axis_env
        self._thread = threading.Thread(
            target=lambda: context.run(self._main, settings, axes), name=f"device {number}", daemon=True
        )

    def _main(self, settings: dict[str, Any], axes: Mapping[str, int]) -> None:
        self._mine.acquire()
        try:
            if not self.stopped:
                config.__dict__.update(settings)
                STATE.axis_env = axes
                with extend_axis_env(self.ring.sizes), set_trace(_DeviceTrace(self)):
                    self.result = self._run()
        except _Stop:
            pass
        except BaseException as error:
            self.error = error
        self.done = True
        self._theirs.release()

    def go_on(self) -> None:
        """Run the thread up to the next collective or its end."""
        if not self._thread.ident:
            self._thread.start()
        self._mine.release()
        self._theirs.acquire()
        if self.done:
            self._thread.join()  # so that it releases its arrays; see core.background

    def meet(self, op: Op, args: Sequence[Any]) -> Any:
        """Called in the thread: wait for all devices at a collective."""
        self.waiting = op, args
        self._theirs.release()
        self._mine.acquire()
        if self.stopped:
            raise _Stop
        return self.answer

    def stop(self) -> None:
        if self._thread.ident and not self.done:
            self.stopped = True
            self.go_on()


class _Only:
    """The only device, which needs no thread: what the user's program keeps for each thread is there."""

    number = 0

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.waiting: tuple[Op, Sequence[Any]] | None = None
        self.answer: Any = None

    def meet(self, op: Op, args: Sequence[Any]) -> Any:
        self.waiting = op, args
        with set_trace(self.ring.outside):
            self.ring.collective([self])
        return self.answer


class _DeviceTrace(Trace):
    """Evaluates ops in the outer trace, except collectives along the devices."""

    __slots__ = ("device",)

    def __init__(self, device: _Device | _Only) -> None:
        super().__init__()
        self.device = device

    def process(self, op: Op, args: Sequence[Any]) -> Any:
        if isinstance(op, Collective) and any(a in self.device.ring.sizes for a in op.axes):
            return self.device.meet(op, args)
        with set_trace(self.device.ring.outside):
            return op.bind(*args)


class Ring:
    """The devices along the given axes."""

    def __init__(self, name: str, sizes: Mapping[str, int]) -> None:
        self.name = name
        self.sizes = dict(sizes)
        self.outside = STATE.trace

    def run(self, functions: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run one function per device, in row-major order over the axes, and return their results.

        Raises:
          ArgumentError: devices reached different collectives. Also raises what a function raises.
        """
        if len(functions) == 1:
            with extend_axis_env(self.sizes), set_trace(_DeviceTrace(_Only(self))):
                return [functions[0]()]
        devices = [_Device(self, i, run) for i, run in enumerate(functions)]
        try:
            while True:
                for device in devices:
                    device.go_on()
                    if device.error is not None:
                        raise device.error
                if all(d.done for d in devices):
                    return [d.result for d in devices]
                self.collective(devices)
        finally:
            for device in devices:
                device.stop()

    def collective(self, devices: Sequence[_Device | _Only]) -> None:
        """Compute the collective in which all devices wait."""
        texts = [_text(d) for d in devices]
        other = next((i for i, text in enumerate(texts) if text != texts[0]), None)
        if other is not None:
            raise ArgumentError(
                f"{self.name}: device 0 {texts[0]}, device {other} {texts[other]}: devices wait for each other in "
                "collectives, so that all must come to the same ones; let only other things depend on what they hold"
            )
        calls = [d.waiting for d in devices if d.waiting is not None]
        op = calls[0][0]
        together = op.bind
        for name, size in reversed(self.sizes.items()):
            together = vmap(together, axis_name=name, axis_size=size)
        shape = tuple(self.sizes.values())
        operands = [stacked([args[i] for _, args in calls], shape) for i in range(len(calls[0][1]))]
        outs = together(*operands)
        for device in devices:
            device.waiting = None
            device.answer = (
                [_part(y, device.number, len(shape)) for y in outs]
                if op.multiple_results
                else _part(outs, device.number, len(shape))
            )


def _text(device: _Device | _Only) -> str:
    if device.waiting is None:
        return "has returned"
    op, args = device.waiting
    return f"is at {op.name} of {', '.join(str(typeof(x)) for x in args) or 'nothing'} along {', '.join(op.axes)}"  # type: ignore[attr-defined]


def stacked(values: Sequence[Any], shape: tuple[int, ...]) -> Any:
    """The devices' values (row-major) as one array, whose leading dimensions ``shape`` are the devices."""
    whole = concatenate([expand_dims(v, (0,)) for v in values], 0)
    return reshape(whole, (*shape, *typeof(values[0]).shape))


def _part(x: Any, number: int, axes: int) -> Any:
    aval = typeof(x)
    flat = reshape(x, (prod(aval.shape[:axes]), *aval.shape[axes:]))
    return squeeze(slice_in_dim(flat, number, number + 1), (0,))


# --- parts of arrays ----------------------------------------------------------------------------------------
def part_at(x: Any, spec: PartitionSpec, sizes: Mapping[str, int], place: Mapping[str, int]) -> Any:
    """The part of ``x`` under ``spec`` on the device at ``place`` in a mesh."""
    for dim in range(len(spec)):
        axes = spec.axes(dim)
        if axes:
            rows = typeof(x).shape[dim] // prod(sizes[a] for a in axes)
            number = 0
            for a in axes:
                number = number * sizes[a] + place[a]
            x = slice_in_dim(x, number * rows, (number + 1) * rows, axis=dim)
    return x


def put_together(values: Sequence[Any], spec: PartitionSpec, sizes: Mapping[str, int]) -> Any:
    """Assemble an array from the devices' parts (row-major) under ``spec``; along unnamed axes, the first device's."""
    names = list(sizes)
    grid = stacked(values, tuple(sizes.values()))
    named = [a for dim in range(len(spec)) for a in spec.axes(dim)]
    for d, axis in reversed(list(enumerate(names))):
        if axis not in named:
            grid = squeeze(slice_in_dim(grid, 0, 1, axis=d), (d,))
            names.remove(axis)
    local = typeof(values[0]).shape
    order = [i for dim in range(len(local)) for i in (*map(names.index, spec.axes(dim)), len(names) + dim)]
    shape = [size * prod(sizes[a] for a in spec.axes(dim)) for dim, size in enumerate(local)]
    return reshape(transpose(grid, order), shape)
