"""The adapter to ``jaxlib``'s PJRT, the only place that uses its private names."""
