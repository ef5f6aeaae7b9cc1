"""What is known of the values of tensors on the virtual card.

A tensor there has no data, yet most of what a program decides by, it made itself: masks, token
ids, counters, sizes. `known` carries those values, and `rules` says what is assumed where a real
run alone would know. What the program asks is answered by `graphmem/trace/reads.py`.
"""
