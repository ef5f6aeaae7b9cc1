"""Models that people train, each with tiny sizes and the inputs that its own tests would give."""
