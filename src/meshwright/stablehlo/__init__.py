"""StableHLO and HLO, written and read through the MLIR bindings in ``jaxlib``."""
