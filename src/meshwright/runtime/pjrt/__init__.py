"""The adapter to ``jaxlib``'s PJRT: the one place that knows its private names."""
