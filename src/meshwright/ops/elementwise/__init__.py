"""Elementwise ops: the table, ops that StableHLO lacks, and what they say of themselves."""
