"""graphmem's speed, beside what PyTorch alone takes. See `__main__`."""
