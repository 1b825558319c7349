"""The functions that users call on functions: jit and its stages, make_jaxpr, device_put."""
