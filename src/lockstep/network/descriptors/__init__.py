"""Descriptors: from environment features to what the fitting net sees."""
