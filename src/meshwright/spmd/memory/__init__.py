"""The memory of a per-device program, predicted from its jaxpr, without compiling it.

XLA's CPU compiler (jaxlib 0.10) is modelled step by step, each step in a module: what ops are written as (``record``),
what is simplified before anything else (``simplify``), which operands need another order of their elements
(``orders``), what is computed before loops (``invariants``), which values never get a buffer (``library``,
``fusion``), which collectives become one (``combine``), which values are copied (``copies``), the order of execution
(``schedule``), and which buffers share memory (``buffers``). ``predict`` runs them, and gives what is ``held``.

The rules were found by reading optimized HLO and its buffer assignments. Left out are what moves a few scalars,
constants that programs close over (XLA does not count them either), and one thing on purpose: XLA's CPU compiler drops
optimization barriers before it looks for common subexpressions the last time, which undoes rematerialization; here
barriers stay, as they do on devices that have little memory.
"""
