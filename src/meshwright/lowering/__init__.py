"""Lowering of the per-device program to the StableHLO that the devices of a target execute."""
