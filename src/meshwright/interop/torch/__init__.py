"""PyTorch modules as functions, tensors as arrays and back.

The route is ``torch.export``, and a table that says what each of torch's ops is here (:func:`register`).
"""

from meshwright.interop.torch import fits as _fits
from meshwright.interop.torch import needed as _needed
from meshwright.interop.torch import norms as _norms
from meshwright.interop.torch import ops as _ops
from meshwright.interop.torch import packed as _packed
from meshwright.interop.torch import sequences as _sequences
from meshwright.interop.torch import shared as _shared
from meshwright.interop.torch.compiled import backend
from meshwright.interop.torch.model import TorchModel, from_torch
from meshwright.interop.torch.placements import from_device_mesh, from_placements, to_device_mesh, to_placements
from meshwright.interop.torch.plans import fully_sharded, tp_shardings
from meshwright.interop.torch.registry import register
from meshwright.interop.torch.tensors import from_tensors, to_torch
from meshwright.interop.torch.trees import Outputs

__all__ = [
    "Outputs",
    "TorchModel",
    "backend",
    "from_device_mesh",
    "from_placements",
    "from_tensors",
    "from_torch",
    "fully_sharded",
    "register",
    "to_device_mesh",
    "to_placements",
    "to_torch",
    "tp_shardings",
]
