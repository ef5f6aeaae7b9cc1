"""Popular models, each with tiny sizes and the inputs its own tests would use."""
