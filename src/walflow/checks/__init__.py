"""The checks of ``walflow check``: what could go wrong is tried before a pipeline starts."""
