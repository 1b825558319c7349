"""Ops that slide a window: pooling and its derivatives."""
