"""What a layout leaves of storages on one rank, and what it sends and buffers for that."""
