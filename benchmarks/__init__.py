"""Side-by-side comparisons with peers. ``python -m benchmarks [name ...]`` prints a table for each."""
