"""Tools for tests of pipelines: servers, the contracts of stores and destinations, and faults."""

from __future__ import annotations

import sys

if sys.modules.get("pytest") is not None:
    import pytest

    # Before they are imported: their asserts are to show what they compared.
    pytest.register_assert_rewrite(
        "walflow.testing.destination_breaks",
        "walflow.testing.destinations",
        "walflow.testing.stores",
        "walflow.testing.store_leases",
    )
