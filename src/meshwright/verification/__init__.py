"""Verification of a per-device program: run it against the unpartitioned one, in float64 where possible."""
