"""Nearest neighbors, holes and pairs of sets of directions, a block of rows at a time."""
