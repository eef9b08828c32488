"""Damaged files, mutated settings and killed processes: what every command makes of them."""
