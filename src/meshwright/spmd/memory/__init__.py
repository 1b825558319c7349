"""Memory model: predicts the memory of a per-device program from its jaxpr, without compiling it.

It models XLA's CPU compiler (jaxlib 0.10) step by step, with one module per step: lowering of ops (``record``),
algebraic simplification (``simplify``, ``rearrange``), layouts of operands (``orders``, ``indexed``), loop-invariant
code motion (``invariants``), fusion (``library``, ``fusion``), combining of collectives (``combine``), copy insertion
(``copies``), scheduling (``schedule``), and buffer assignment (``buffers``). ``plan`` runs the steps for a program
and for the bodies of its loops. ``predict`` returns a :class:`held.Memory`.

The rules were derived from optimized HLO and its buffer assignments. Not modelled are operations that move a few
scalars, and constants that programs close over (XLA counts them on TPUs alone, and so does this). One difference is
intended: XLA's CPU compiler removes optimization barriers before its last common-subexpression elimination, which
undoes rematerialization. Here barriers are kept, as on accelerators.
"""
