"""One pipeline rank: which phases of the trace it runs, and what it allocates in them."""
