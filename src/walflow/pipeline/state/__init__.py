"""The states of tables, the lease, requests and notes of a pipeline."""
