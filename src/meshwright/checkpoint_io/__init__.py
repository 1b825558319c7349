"""Checkpoints: trees of arrays on disk, written by all processes together, whole or not at all."""

from meshwright.checkpoint_io.manager import CheckpointManager
from meshwright.checkpoint_io.reading import restore
from meshwright.checkpoint_io.writing import Saving, save

__all__ = ["CheckpointManager", "Saving", "restore", "save"]
