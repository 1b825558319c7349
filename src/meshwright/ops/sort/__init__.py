"""Sorting, and the largest elements."""
