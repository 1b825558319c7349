"""SPMD partitioning: propagate layouts, choose, reshard, and emit the per-device program."""
