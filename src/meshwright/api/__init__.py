"""The functions users call: jit and its stages, make_jaxpr, device_put."""
