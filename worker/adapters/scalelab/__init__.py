"""Code that the adapters of all frameworks share: docs/developers/protocol.md in Python.

`training.run(EngineClass)` runs a whole rank; read training.py first. Shared modules import only the standard library and numpy, so
that no adapter loads another adapter's framework.
"""
