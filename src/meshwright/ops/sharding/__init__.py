"""Ops about sharding: manual regions, constraints, marks for propagation."""
