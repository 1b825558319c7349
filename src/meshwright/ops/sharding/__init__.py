"""Ops about sharding: regions written for one device, constraints, marks for propagation."""
