"""How the formulas are computed fast; private, each family in a folder of its own."""
