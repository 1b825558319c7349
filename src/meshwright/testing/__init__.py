"""For tests of programs: what a partitioned program does is pinned in a file that is reviewed like code."""

from meshwright.testing.contracts import contract

__all__ = ["contract"]
