"""Known and assumed values of tensors on the virtual card.

Tensors there have no data, but most values that a program's decisions depend on, it made itself:
masks, token ids, counters, sizes. `known` follows those values, and `rules` says what is assumed
where only a real run would know. `graphmem/trace/reads.py` answers the program's reads.
"""
