"""What could go wrong, tried out before a pipeline is started."""
