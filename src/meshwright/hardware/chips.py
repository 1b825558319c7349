"""The peak rates of chips: arithmetic by type, memory, and links. From public data sheets, each with its source.

Units are operations, bytes and seconds; a multiply-add is two operations. Figures that no data sheet gives are guessed
and listed in :attr:`Chip.guessed`; predictions that rest on them say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any

from meshwright.core.records import dataclass
from meshwright.errors import ArgumentError

#: the number of dimensions of the torus that connects the chips of a node or slice; 0 for a switch
SWITCH, TORUS_2D, TORUS_3D = 0, 2, 3


@dataclass(frozen=True)
class Chip:
    """One chip. Bandwidths are in bytes per second, latencies in seconds, rates in operations per second.

    Attributes:
      products: rates of matrix products by dtype.
      vector: rate of all other arithmetic.
      memory_bytes, memory_bandwidth: main memory.
      link_bandwidth, link_latency: of one link in one direction. A torus has two links per dimension and chip, a switch
        one per chip.
      network_bandwidth, network_latency: from one chip to other nodes or slices.
      torus: the number of dimensions of the torus that connects chips; 0 for a switch.
      node: the number of chips in a node.
      largest: the shape of the largest torus.
      wraps_at: a torus dimension is a ring if its size is a multiple of this.
      devices: the number of devices that programs see of one chip; they share its figures.
      guessed: names of the figures that no data sheet gives; for products, ``products[float32]``.
      precise: rates of float32 products at the precisions "high" and "highest", if lower.
      launch: the minimum time between the starts of two kernels of which the second waits for the first; 0 if programs
        do not consist of such kernels.
      on_chip_bandwidth: of the memory on the chip that kernels use.
    """

    name: str
    products: Mapping[str, float] = field(hash=False)
    vector: float
    memory_bytes: float
    memory_bandwidth: float
    link_bandwidth: float
    link_latency: float
    network_bandwidth: float
    network_latency: float
    torus: int = SWITCH
    node: int = 1
    largest: tuple[int, ...] = ()
    wraps_at: int = 1
    devices: int = 1
    source: str = "given by the user"
    guessed: frozenset[str] = frozenset()
    precise: Mapping[str, float] = field(default_factory=dict, hash=False)
    launch: float = 0.0
    on_chip_bandwidth: float = 0.0

    def __post_init__(self) -> None:
        for of in fields(self):
            value = getattr(self, of.name)
            if isinstance(value, (int, float)) and (value < 0 or (value == 0 and not of.name.endswith(_MAY_BE_ZERO))):
                raise ArgumentError(f"Chip {self.name!r}: {of.name} must be positive, got {value}")
        if not self.products or min(self.products.values()) <= 0:
            raise ArgumentError(f"Chip {self.name!r}: products must give operations a second by dtype, such as "
                                f"{{'bfloat16': 197e12}}; got {dict(self.products)}")  # fmt: skip
        if min(self.precise.values(), default=1) <= 0:
            raise ArgumentError(f"Chip {self.name!r}: precise must give operations a second by precision, such as "
                                f"{{'highest': 67e12}}; got {dict(self.precise)}")  # fmt: skip
        object.__setattr__(self, "products", dict(self.products))
        object.__setattr__(self, "precise", dict(self.precise))

    @property
    def platform(self) -> str:
        """The platform that XLA compiles for: chips in a torus are TPUs; GPUs are known by their kernels' starts."""
        return "tpu" if self.torus else "cuda" if self.launch else "cpu"

    def product_rate(self, dtype: Any, precision: str | None = None) -> tuple[float, str]:
        """The rate of matrix products of a dtype, and the name of the figure used.

        The vector units compute products of types that the matrix units do not support.
        """
        name = str(dtype)
        if name.startswith("complex"):  # a multiply-add of four
            rate, figure = self.product_rate("float64" if name == "complex128" else "float32", precision)
            return rate / 4, figure
        if name == "float32" and precision is not None and precision in self.precise:
            return self.precise[precision], f"products[float32, {precision}]"
        for known in (name, *_ALSO.get(name, ())):
            if known in self.products:
                return self.products[known], f"products[{known}]"
        return (self.vector / 2 if name in ("float64", "int64", "uint64") else self.vector), "vector"

    def __str__(self) -> str:
        rates = ", ".join(f"{rate / 1e12:.4g} {name}" for name, rate in self.products.items())
        return (
            f"{self.name}: {rates} TFLOP/s, {self.memory_bytes / 1e9:.4g} GB at {self.memory_bandwidth / 1e9:.4g} "
            f"GB/s, {'a switch' if not self.torus else f'a {self.torus}-D torus'} with links of "
            f"{self.link_bandwidth / 1e9:.4g} GB/s ({self.source})"
        )


_MAY_BE_ZERO = ("latency", "torus", "launch", "on_chip_bandwidth")
#: types that are computed at the rate of others
_ALSO = {
    "float16": ("bfloat16",),
    "uint8": ("int8",),
    "int4": ("int8",),
    "uint4": ("int8",),
    "float8_e4m3fn": ("float8", "bfloat16"),
    "float8_e5m2": ("float8", "bfloat16"),
}
T, G, GIB, MICRO = 1e12, 1e9, 2**30, 1e-6
#: Seconds from one kernel of a GPU to the next that waits for it: an H200 took 8.04 µs for each step of a loop of two
#: (docs/targets.md).
LAUNCH = 4.02 * MICRO


def _tpu(name: str, bf16: float, other: Mapping[str, float], hbm: tuple[float, float], links: tuple[int, float],
         dcn: float, largest: tuple[int, ...], source: str, **more: Any) -> Chip:  # fmt: skip
    torus, bandwidth = links
    precise = {"high": bf16 / 3, "highest": bf16 / 6}  # so many products of parts in bfloat16
    guessed = {"products[float32]", "vector", "link_latency", "network_bandwidth", "network_latency"}
    guessed |= {f"products[float32, {precision}]" for precision in precise}
    return Chip(
        name,
        # Products of float32 are done in bfloat16 at the default precision.
        {"bfloat16": bf16, "float32": bf16, **other},
        vector=bf16 / 40,
        memory_bytes=hbm[0],
        memory_bandwidth=hbm[1],
        link_bandwidth=bandwidth,
        link_latency=1 * MICRO,
        network_bandwidth=dcn,
        network_latency=20 * MICRO,
        torus=torus,
        node=more.pop("node", 4),
        largest=largest,
        wraps_at=16 if torus == TORUS_2D else 4,
        source=source,
        guessed=frozenset(guessed),
        precise=precise,
        **more,
    )


def _gpu(name: str, bf16: float, other: Mapping[str, float], vector: float, hbm: tuple[float, float], nvlink: float,
         network: float, cores: tuple[int, float], source: str) -> Chip:  # fmt: skip
    """``cores``: the number of multiprocessors, each of which moves 128 bytes per cycle on the chip, and the clock."""
    return Chip(
        name,
        {"bfloat16": bf16, **other},
        vector=vector,
        memory_bytes=hbm[0],
        memory_bandwidth=hbm[1],
        link_bandwidth=nvlink,
        link_latency=2 * MICRO,
        network_bandwidth=network,
        network_latency=8 * MICRO,
        node=8,
        source=source,
        guessed=frozenset({"link_latency", "network_latency", "launch", "on_chip_bandwidth"}),
        precise={"highest": vector},  # in float32 itself, for which there is no matrix unit
        launch=LAUNCH,
        on_chip_bandwidth=128 * cores[0] * cores[1],
    )


_TPU_DOCS = "Google Cloud TPU system architecture"
_TABLE = (
    _tpu("v4", 275 * T, {"int8": 275 * T}, (32 * GIB, 1228 * G), (TORUS_3D, 50 * G), 6.25 * G, (16, 16, 16),
         f"{_TPU_DOCS}, TPU v4; Jouppi et al. 2023"),
    _tpu("v5e", 197 * T, {"int8": 394 * T}, (16 * GIB, 819 * G), (TORUS_2D, 50 * G), 3.125 * G, (16, 16),
         f"{_TPU_DOCS}, TPU v5e"),
    _tpu("v5p", 459 * T, {"int8": 918 * T}, (95 * GIB, 2765 * G), (TORUS_3D, 100 * G), 6.25 * G, (16, 20, 28),
         f"{_TPU_DOCS}, TPU v5p"),
    _tpu("v6e", 918 * T, {"int8": 1836 * T}, (32 * GIB, 1640 * G), (TORUS_2D, 100 * G), 12.5 * G, (16, 16),
         f"{_TPU_DOCS}, TPU v6e"),
    _tpu("tpu7x", 2307 * T, {"float8": 4614 * T, "int8": 4614 * T}, (192 * GIB, 7380 * G), (TORUS_3D, 100 * G),
         12.5 * G, (16, 24, 24), f"{_TPU_DOCS}, TPU7x (Ironwood)", devices=2),
    _gpu("a100", 312 * T, {"float32": 156 * T, "float64": 19.5 * T, "int8": 624 * T}, 19.5 * T, (80e9, 2039 * G),
         300 * G, 25 * G, (108, 1.41 * G), "NVIDIA A100 data sheet (SXM, 80 GB; float32 as TF32); DGX A100 user guide"),
    _gpu("h100", 989.4 * T, {"float8": 1978.9 * T, "float32": 494.7 * T, "float64": 66.9 * T, "int8": 1978.9 * T},
         66.9 * T, (80e9, 3350 * G), 450 * G, 50 * G, (132, 1.98 * G),
         "NVIDIA H100 data sheet (SXM; float32 as TF32; no sparsity); DGX H100 user guide"),
    _gpu("h200", 989.4 * T, {"float8": 1978.9 * T, "float32": 494.7 * T, "float64": 66.9 * T, "int8": 1978.9 * T},
         66.9 * T, (141e9, 4800 * G), 450 * G, 50 * G, (132, 1.98 * G),
         "NVIDIA H200 data sheet (SXM; float32 as TF32; no sparsity); DGX H200 user guide"),
    _gpu("b200", 2250 * T, {"float8": 4500 * T, "float32": 1125 * T, "float64": 37 * T, "int8": 4500 * T}, 75 * T,
         (180e9, 8000 * G), 900 * G, 50 * G, (148, 1.98 * G),
         "NVIDIA Blackwell architecture brief and DGX B200 data sheet (float32 as TF32; no sparsity)"),
)  # fmt: skip

#: chips by name
CHIPS: Mapping[str, Chip] = {chip.name: chip for chip in _TABLE}
#: other names of chips, as clouds and libraries write them
ALIASES = {
    "tpu v4": "v4", "tpu v5e": "v5e", "v5litepod": "v5e", "tpu v5 lite": "v5e", "tpu v5p": "v5p", "tpu v5": "v5p",
    "v6": "v6e", "trillium": "v6e", "tpu v6 lite": "v6e", "v7x": "tpu7x", "ironwood": "tpu7x",
    "a100-sxm": "a100", "h100-sxm": "h100", "h200-sxm": "h200",
    # As their driver names them; others of the name have less memory, or are slower.
    "nvidia a100-sxm4-80gb": "a100", "nvidia h100 80gb hbm3": "h100", "nvidia h200": "h200", "nvidia b200": "b200",
}  # fmt: skip

#: The minimum time to start a collective, in seconds: one hop on the chips above. If no machine is named, one
#: collective is replaced by several only if that saves more.
START = 1 * MICRO

#: The chip that prices rest on if no machine is named. All types have the rate of bfloat16, and the ratios of rates are
#: those of current chips. Latencies are tiny, so that a small program is planned like the large program that it stands
#: for; but see ``START``.
DEFAULT_CHIP = Chip(
    "an accelerator of no particular make",
    dict.fromkeys(("bfloat16", "float32", "float64", "int8", "float8"), 100 * T),
    vector=100 * T,
    memory_bytes=80e9,
    memory_bandwidth=1 * T,
    link_bandwidth=100 * G,
    link_latency=2.5e-9,
    network_bandwidth=100 * G,
    network_latency=2.5e-9,
    source="no chip: round figures",
    guessed=frozenset({"products", "vector", "memory_bandwidth", "link_bandwidth", "link_latency"}),
)
