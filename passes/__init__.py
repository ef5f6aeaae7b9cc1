"""graphmem's built-in passes, one file each, found through the group `graphmem.passes`."""
