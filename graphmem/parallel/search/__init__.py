"""Find the layouts under which a step fits."""
