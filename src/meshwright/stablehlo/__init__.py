"""Writing and reading StableHLO and HLO with the MLIR bindings of ``jaxlib``."""
