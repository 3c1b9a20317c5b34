"""Asserts of the shipped contract show their values."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("walflow.testing.stores", "walflow.testing.store_leases")
