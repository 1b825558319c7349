"""The memory of a per-device program, predicted from its jaxpr, without compiling it.

XLA's CPU compiler is modelled step by step, each step in a module: what ops are written as (``record``), what is
simplified before anything else (``simplify``), which operands need another order of their elements (``orders``), which
values never get a buffer (``library``, ``fusion``), which collectives become one (``combine``), the order of execution
(``schedule``), and which buffers share memory (``buffers``). ``predict`` runs them.
"""
