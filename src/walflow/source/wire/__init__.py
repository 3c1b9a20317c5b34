"""Postgres's wire protocol: reading what a server sends in large pieces."""
