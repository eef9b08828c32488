"""Pairwise potentials and the minimization of energies."""
