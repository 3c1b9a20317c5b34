"""The demo's shop: its tables, its live load, and the proof that source and destination agree."""
