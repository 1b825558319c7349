"""Partitioning: for each equation choose which axes split which factors, reshard, emit the op on local shapes."""
