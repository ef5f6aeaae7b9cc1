"""A virtual GPU that is there while a program runs: every question is answered on the way."""
