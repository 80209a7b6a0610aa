"""Checkpoints: written whole, found by the path that is named, loaded without running code."""
