"""Models written for Triton's Python backend: ``model.py`` with ``class TritonPythonModel``."""
