from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walflow.redaction import is_secret_name, redacted


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://u:pw@h:5432/db", "postgresql://u:***@h:5432/db"),
        ("postgresql://u:p@w@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:p/w?#@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:p w@h/db", "postgresql://u:***@h/db"),
        ("postgresql://:pw@h/db", "postgresql://:***@h/db"),
        ("postgresql://u@h:5432/db", "postgresql://u@h:5432/db"),
        (
            "postgresql://[::1]:5432/db?sslmode=require",
            "postgresql://[::1]:5432/db?sslmode=require",
        ),
        ("postgresql://h/db?user=a&password=pw&b=c", "postgresql://h/db?user=a&password=***&b=c"),
        ("postgresql://h/db?sslpassword=pw", "postgresql://h/db?sslpassword=***"),
        ("host=h password=pw dbname=d", "host=h password=*** dbname=d"),
        ("host=h PASSWORD = pw dbname=d", "host=h PASSWORD = *** dbname=d"),
        (r"password='p w\'s' host=h", "password=*** host=h"),
        ("password='never closed host=h", "password=***"),
        (r"password=p\ w host=h", "password=*** host=h"),
        ("password=a&b;c,d host=h", "password=*** host=h"),
        (
            "cannot reach redis://:pw@h:6379/0, retrying",
            "cannot reach redis://:***@h:6379/0, retrying",
        ),
        ("tried postgresql://h/db password=pw", "tried postgresql://h/db password=***"),
        ("host=h dbname=d", "host=h dbname=d"),
        ("password authentication failed for user x", "password authentication failed for user x"),
        ("iceberg:///lake/of/tables", "iceberg:///lake/of/tables"),
        ("", ""),
    ],
)
def test_redacted(text: str, expected: str) -> None:
    assert redacted(text) == expected
    assert redacted(expected) == expected


_PASSWORDS = st.text(st.characters(exclude_categories=["C"]), min_size=1).map(
    lambda tail: f"Zx9{tail}"
)


@given(_PASSWORDS)
def test_no_password_survives_in_a_uri(password: str) -> None:
    assert "Zx9" not in redacted(f"postgresql://u:{password}@h/db")


@given(_PASSWORDS)
def test_no_quoted_password_survives_in_conninfo(password: str) -> None:
    quoted = password.replace("\\", r"\\").replace("'", r"\'")
    shown = redacted(f"host=h password='{quoted}' dbname=d")
    assert shown == "host=h password=*** dbname=d"


def test_long_texts_are_no_trap() -> None:
    began = time.monotonic()
    redacted("a" * 1_000_000 + "password" * 1000)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("name", ["password", "s3.secret-access-key", "oauth2-token", "API_KEY"])
def test_secret_names(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["key", "table", "primary_key", "warehouse"])
def test_plain_names(name: str) -> None:
    assert not is_secret_name(name)
