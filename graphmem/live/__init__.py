"""A virtual GPU for a running program: it answers every query at once."""
