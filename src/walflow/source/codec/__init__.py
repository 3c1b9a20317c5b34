"""Postgres's values as Arrow columns: one converter a type, for stream and copy alike."""
