"""The share of each storage on one rank of a layout, and the buffers and traffic this takes."""
