"""Random programs, run for real and traced; `python -m tests.fuzz --programs 2000` runs many."""
