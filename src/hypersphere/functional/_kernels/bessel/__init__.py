"""Ratios and logarithms of modified Bessel functions, as directional statistics needs them."""
