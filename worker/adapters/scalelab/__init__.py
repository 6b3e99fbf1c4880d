"""What the adapters of all frameworks share: docs/developers/protocol.md in Python.

`training.run(EngineClass)` is a whole rank; read training.py first. Standard library and numpy only, so that no framework
is loaded for another's sake; models_*.py alone belong to a framework each.
"""
