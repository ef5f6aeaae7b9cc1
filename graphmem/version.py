"""The version of graphmem, which imports nothing."""

__version__ = "0.1.0"
