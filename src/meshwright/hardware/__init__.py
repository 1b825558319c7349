"""Hardware: chips with their figures and sources, and machines made of them.

Prices of plans and times of programs rest on it; see :class:`Chip` for units and :func:`machine` for names.
"""

from meshwright.hardware.chips import CHIPS, DEFAULT_CHIP, Chip
from meshwright.hardware.links import Link
from meshwright.hardware.machine import Machine, chip, machine
from meshwright.hardware.this import measure

__all__ = ["CHIPS", "DEFAULT_CHIP", "Chip", "Link", "Machine", "chip", "machine", "measure"]
