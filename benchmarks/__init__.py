"""Side-by-side comparisons with peers. ``python -m benchmarks [name ...]`` prints one table each."""
