"""Recognition: verification, identification, open set, retrieval."""
