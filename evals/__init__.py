"""Measurements of the guard, beside floors and rivals."""
