"""Follows the device's memory while a program runs, operation by operation.

`graphmem run` always does; `graphmem analyze` from where a step uses streams, CUDA graphs or memory
pools.
"""
