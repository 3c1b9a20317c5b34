"""From a table's existing rows to the destination: copy, resume, load."""
