"""DeePMD-kit as a Python package in the same environment: whether it is there, how it is imported, and its files."""
