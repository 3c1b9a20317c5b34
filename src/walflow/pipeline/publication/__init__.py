"""What the source publishes now, against what the pipeline follows."""
