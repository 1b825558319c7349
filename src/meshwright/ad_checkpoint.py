"""``jax.ad_checkpoint``: choice and inspection of the residuals that a function keeps for its backward pass."""

from meshwright.core.absent import absent as _absent
from meshwright.transforms.remat import checkpoint, checkpoint_name, checkpoint_policies
from meshwright.transforms.residuals import print_saved_residuals

__all__ = ["checkpoint", "checkpoint_name", "checkpoint_policies", "print_saved_residuals"]

__getattr__ = _absent("ad_checkpoint")
