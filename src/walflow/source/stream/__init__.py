"""The replication stream: slots, the walsender, and its messages as Arrow columns."""
