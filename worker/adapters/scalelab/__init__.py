"""Code that the adapters of all frameworks share. It implements docs/developers/protocol.md in Python.

`training.run(EngineClass)` runs a rank; read training.py first. Shared modules import only the standard library and numpy, so
that no adapter loads the framework of another adapter.
"""
