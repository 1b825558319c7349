"""Sliding-window ops: pooling and its derivatives."""
