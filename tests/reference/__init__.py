"""Slow float64 formulas, one loop at a time, straight from the equations."""
