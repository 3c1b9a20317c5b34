"""Which of Arrow's memory pools a command uses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pyarrow as pa
import pytest

_POOL = "ARROW_DEFAULT_MEMORY_POOL"
_ASK = """
from walflow.cli import main
try:
    main(["--version"])
finally:
    import pyarrow
    print(pyarrow.default_memory_pool().backend_name)
"""


def _pool(environment: Mapping[str, str]) -> str:
    inherited = {name: value for name, value in os.environ.items() if name != _POOL}
    ran = subprocess.run(
        [sys.executable, "-c", _ASK],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stderr == ""
    return ran.stdout.splitlines()[-1]


@pytest.mark.skipif(
    sys.platform != "linux" or "jemalloc" not in pa.supported_memory_backends(),
    reason="pyarrow has no jemalloc here: it has in PyPI's wheels for Linux",
)
def test_a_command_uses_the_pool_that_gives_memory_back() -> None:
    assert _pool({}) == "jemalloc"


def test_whoever_names_a_pool_gets_it() -> None:
    assert _pool({_POOL: "system"}) == "system"
