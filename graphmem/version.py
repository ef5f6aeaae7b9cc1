"""The version of graphmem; imports nothing."""

__version__ = "0.1.0"
