"""What tests of pipelines need: servers to run against, and the contract of stores."""

from __future__ import annotations

import sys

if sys.modules.get("pytest") is not None:
    import pytest

    # Before they are imported: their asserts are to show what they compared.
    pytest.register_assert_rewrite("walflow.testing.stores", "walflow.testing.store_leases")
