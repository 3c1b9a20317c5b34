"""From the slot into the change log."""
