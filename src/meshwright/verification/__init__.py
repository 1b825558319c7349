"""The proof that a per-device program is right: run it against the unpartitioned one, in float64 where that goes."""
