"""A gallery of known people or things, in memory and on disk."""
