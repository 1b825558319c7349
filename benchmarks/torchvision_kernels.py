"""What torchvision needs to be imported beside PyTorch for CPUs."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any


@cache
def declare_kernels() -> Any:
    """Makes ``import torchvision`` possible, where it is installed; done once.

    On PyPI its kernels are built for CUDA alone and cannot be loaded beside PyTorch for CPUs, of which its models in
    Python need none. What it registers something for when it is imported has to be there all the same.
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
        return library  # which forgets them when it goes
    return None
