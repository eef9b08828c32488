"""Orthogonal maps and their gradients."""
