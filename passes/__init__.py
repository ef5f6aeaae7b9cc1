"""graphmem's built-in passes, one file each, found through the entry-point group `graphmem.passes`."""
