"""Reading existing rows: snapshots, ranges of pages, COPY BINARY, reads by key."""
