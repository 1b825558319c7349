"""Measures the computer that runs this program, or its accelerator, and keeps the figures in a file."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from meshwright.core.config import config
from meshwright.core.slots import Slot
from meshwright.core.words import counted
from meshwright.hardware.chips import Chip

#: version of the file; with another version, the figures are measured again
_FORM = 2


class Accelerator(NamedTuple):
    """Functions that return the name of the accelerator of ``config.platform``, and its measured figures."""

    kind: Callable[[], str]
    figures: Callable[[], dict[str, object]]


ON_ACCELERATOR: Slot[Accelerator] = Slot("the accelerator's measurement", "meshwright.api.measuring")


def kept_at() -> Path:
    """The path of the file, in ``XDG_CACHE_HOME`` or ``~/.cache`` unless ``MESHWRIGHT_HARDWARE`` names one.

    Accelerators have files of their own.
    """
    named = os.environ.get("MESHWRIGHT_HARDWARE")
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = Path(named) if named else folder / "meshwright" / "this.json"
    return path if _is_host() else path.with_stem(f"{path.stem}-{config.platform}")


def _is_host() -> bool:
    return config.platform == "cpu"


def _what() -> tuple[str, int | None]:
    """The measured device: the name of the processor and its number of cores, or the name of the accelerator."""
    return (_model(), os.cpu_count()) if _is_host() else (ON_ACCELERATOR.value.kind(), None)


@lru_cache(maxsize=4)
def this_chip(platform: str) -> Chip:
    """This computer, or its accelerator, as a chip. It is measured unless the file has its figures.

    ``platform`` is the configured one.
    """
    return _read(kept_at()) or measure()


def measure(keep: bool = True) -> Chip:
    """Measure products, elementwise arithmetic and memory, which takes about two seconds.

    The computer is measured with NumPy. If ``config.platform`` is an accelerator, that is measured with compiled
    programs.
    """
    on, cores = _what()
    figures = {"on": on, "cores": cores, **(_of_host() if _is_host() else ON_ACCELERATOR.value.figures())}
    if keep:
        this_chip.cache_clear()
        _write(kept_at(), figures)
    return _chip(figures)


def _of_host() -> dict[str, object]:
    return {
        "products": {"float32": _products(np.float32), "float64": _products(np.float64)},
        "vector": _vector(),
        "memory_bandwidth": _copies(),
        "memory_bytes": memory_bytes(),
        "link_latency": _start(),
    }


def _chip(figures: dict[str, object]) -> Chip:
    products: dict[str, float] = figures["products"]  # type: ignore[assignment]
    vector, bandwidth, memory, latency = (
        float(figures[n])  # type: ignore[arg-type]
        for n in ("vector", "memory_bandwidth", "memory_bytes", "link_latency")
    )
    cores: int | None = figures.get("cores")  # type: ignore[assignment]
    launch = float(figures.get("launch", 0.0))  # type: ignore[arg-type]
    guessed = {"network_bandwidth", "network_latency", *(() if cores else ("link_bandwidth",))}
    return Chip(
        "this",
        # Half precision is computed in float32 on CPUs.
        {"bfloat16": products["float32"], "float16": products["float32"], **products},
        vector,
        memory,
        bandwidth,
        bandwidth / 2,
        latency,
        network_bandwidth=1.25e9,
        network_latency=50e-6,
        source=f"measured on {figures['on']}" + (f", {counted(cores, 'core')}" if cores else ""),
        guessed=frozenset(guessed | ({"on_chip_bandwidth"} if launch else set())),
        precise=figures.get("precise", {}),  # type: ignore[arg-type]
        launch=launch,
        on_chip_bandwidth=vector / 2 if launch else 0.0,  # four bytes for each multiply-add
    )


# --- the file -----------------------------------------------------------------------------------------------
def _model() -> str:
    return platform.processor() or platform.machine()


def _read(path: Path) -> Chip | None:
    try:
        record = json.loads(path.read_text())
        same = (record["form"], record["on"], record["cores"]) == (_FORM, *_what())
        return _chip(record) if same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, figures: dict[str, object]) -> None:
    text = json.dumps({"form": _FORM, **figures}, indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(text)
        part.replace(path)
    except OSError:  # a folder that cannot be written: measured again by the next process
        return


# --- measuring ----------------------------------------------------------------------------------------------
def _quickest(run: Callable[[], object], seconds: float = 0.3) -> float:
    """The seconds of the fastest of several runs."""
    run()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def _products(dtype: type) -> float:
    n = 768
    a: np.ndarray = np.ones((n, n), dtype)
    out = np.empty_like(a)
    return 2 * n**3 / _quickest(lambda: np.matmul(a, a, out=out))


def _vector() -> float:
    a = np.ones(1 << 13, np.float32)
    out = np.empty_like(a)
    return a.size / _quickest(lambda: np.multiply(a, a, out=out), 0.1)


def _copies() -> float:
    a = np.ones(1 << 25, np.uint8)
    out = np.empty_like(a)
    return 2 * a.size / _quickest(lambda: np.copyto(out, a))


def _start() -> float:
    a = np.ones(1, np.float32)
    out = np.empty_like(a)
    return _quickest(lambda: np.copyto(out, a), 0.05)


def memory_bytes() -> int:
    """The bytes of main memory; 8 GB if the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 8 * 10**9
