"""SPMD partitioning: propagate layouts, choose, reshard, emit the per-device program."""
