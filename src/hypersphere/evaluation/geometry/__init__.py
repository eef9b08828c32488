"""The geometry of directions: angles, energies, separability."""
