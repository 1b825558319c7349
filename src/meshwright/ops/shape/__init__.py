"""Ops that only rearrange, broadcast, slice, pad or concatenate."""
