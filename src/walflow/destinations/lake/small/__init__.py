"""Small batches of mirrors by Spark: what they come to is found with Arrow in this process, and
Spark is given the net rows only. With fewer operators, less is planned, scheduled and run."""

from walflow.destinations.lake.small.writing import is_small, write_small

__all__ = ["is_small", "write_small"]
