"""Checkpoints: pytrees of arrays on disk, written atomically by all processes together."""

from meshwright.checkpoint_io.manager import CheckpointManager
from meshwright.checkpoint_io.reading import restore
from meshwright.checkpoint_io.writing import Saving, save

__all__ = ["CheckpointManager", "Saving", "restore", "save"]
