"""Checkpoints: written whole (`store`), found by the path that is named (`find`), loaded without running code."""
