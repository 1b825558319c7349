"""Sorting, and finding the largest elements."""
