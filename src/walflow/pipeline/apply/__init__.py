"""From the change log into the destination's tables."""
