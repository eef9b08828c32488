"""Adversarial attacks and accuracy under them."""
