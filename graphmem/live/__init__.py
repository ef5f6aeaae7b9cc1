"""A virtual GPU for a running program: it answers every question as it comes."""
