"""Elementwise ops: the table, ops that StableHLO lacks, and their documentation."""
