"""A workaround for importing torchvision together with PyTorch for CPUs."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any


@cache
def declare_kernels() -> Any:
    """Make ``import torchvision`` work where it is installed; done once. Keep the returned object alive.

    The kernels on PyPI are built for CUDA only, and cannot be loaded with PyTorch for CPUs. The Python models do not
    need them, but the operators for which torchvision registers something on import must exist.
    """
    spec = find_spec("torchvision") if find_spec("torch") else None
    if spec is None or spec.origin is None:
        return None
    import torch

    (kernels,) = Path(spec.origin).parent.glob("_C.*") or [None]
    try:
        torch.ops.load_library(kernels)
    except OSError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor boxes, Tensor scores, float iou) -> Tensor")
        return library  # the operators are unregistered when it is freed
    return None
