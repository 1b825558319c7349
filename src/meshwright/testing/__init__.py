"""Tests of partitioned programs: their properties are pinned in a file that is reviewed like code."""

from meshwright.testing.contracts import contract

__all__ = ["contract"]
