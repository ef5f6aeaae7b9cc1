"""Random programs, executed and traced; `python -m tests.fuzz --programs 2000` runs many."""
