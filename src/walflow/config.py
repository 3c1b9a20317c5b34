"""Settings of a pipeline: from a YAML file, the environment and the command line, one model.

What the command line says wins over the environment (``WALFLOW_SOURCE__URI``), and that over the
file. Secrets are ``SecretStr``: they never print, and ``redacted`` shows a URI without them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_serializer,
)
from pydantic_core import ErrorDetails

from walflow.errors import ConfigError
from walflow.redaction import MASK, is_secret_name, redacted

__all__ = [
    "CopySettings",
    "DestinationSettings",
    "LogSettings",
    "MappingSettings",
    "Settings",
    "SourceSettings",
    "SparkSettings",
    "StoreSettings",
    "TypeSettings",
    "host_and_port",
    "load_settings",
    "redacted",
]

ENVIRONMENT_PREFIX = "WALFLOW_"


def host_and_port(address: str) -> tuple[str, int]:
    """Read ``host:port``, ``[v6-address]:port`` or ``:port`` (all interfaces)."""
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not (port.isascii() and port.isdigit()) or (":" in host and not bracketed):
        raise ValueError("must be host:port, like 127.0.0.1:9000 or [::]:9000")
    if int(port) > 65535:
        raise ValueError("has a port above 65535")
    return host.strip("[]") if bracketed else host, int(port)


def _address(text: str) -> str:
    host_and_port(text)
    return text


def _numeric_type(text: str) -> str:
    if text.startswith("decimal"):
        precision, scale = (int(digits) for digits in text[8:-1].split(","))
        if not 1 <= precision <= 38 or scale > precision:
            raise ValueError("a decimal has 1 to 38 digits, and no more of them behind the point")
    return text


def _split_words(value: object) -> object:
    """Environment and command line have text only: ``a.b, c.d`` is a list."""
    if not isinstance(value, str):
        return value
    return [word.strip() for word in value.split(",") if word.strip()]


def _parse_object(value: object) -> object:
    """Environment and command line have text only: a JSON object is a mapping."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError("must be a mapping, or a JSON object where only text can stand") from None


def _without_secrets(values: Mapping[str, str]) -> dict[str, str]:
    return {key: MASK if is_secret_name(key) else redacted(value) for key, value in values.items()}


Words = Annotated[tuple[str, ...], BeforeValidator(_split_words)]
Options = Annotated[dict[str, str], BeforeValidator(_parse_object)]
HomePath = Annotated[Path, AfterValidator(Path.expanduser)]


class _Section(BaseModel):
    # Inputs stay out of errors and tracebacks: any of them may be a secret in the wrong place.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class SourceSettings(_Section):
    uri: SecretStr = Field(description="postgresql://user:password@host:port/database?sslmode=…")
    publication: str = Field(
        "walflow", min_length=1, description="The publication whose tables are followed."
    )
    create_publication: bool = Field(
        False, description="Make the publication (FOR ALL TABLES, or for `tables`) if missing."
    )
    tables: Words = Field(
        (), description="schema.table names for a publication that walflow makes; empty: all."
    )
    slot: str | None = Field(
        None,
        pattern=r"^[a-z0-9_]{1,63}$",
        description="The replication slot; default walflow_<name>.",
    )
    failover: bool = Field(
        False, description="Make the slot one that standbys keep (Postgres 17 and newer)."
    )
    on_slot_lost: Literal["error", "resync"] = Field(
        "error",
        description="What to do when the slot is gone or was invalidated: end with an error, or "
        "make a new one and copy again what may have missed changes.",
    )
    backlog_bytes: int = Field(
        64 << 20, ge=0, description="From this much unread log on, the bulk path reads it."
    )


class TypeSettings(_Section):
    numeric: Annotated[str, AfterValidator(_numeric_type)] = Field(
        "decimal(38,18)",
        pattern=r"^(decimal\(\d{1,2},\d{1,2}\)|double|string)$",
        description="The type of numeric columns that have no precision (or more than 38 digits).",
    )


class LogSettings(_Section):
    folder: HomePath | None = Field(None, description="Default: ~/.walflow/<name>.")
    max_bytes: int = Field(20 << 30, gt=0, description="Receiving pauses when the log is larger.")
    retain_seconds: float = Field(3600, ge=0, description="How long applied segments are kept.")
    fill_ms: int = Field(200, ge=0, description="How long a segment collects before it is sealed.")
    segment_bytes: int = Field(
        256 << 20, gt=0, description="A segment is sealed at the next commit past this size."
    )
    file_bytes: int = Field(
        128 << 20, gt=0, description="Files roll at about this size inside a transaction."
    )


class CopySettings(_Section):
    range_bytes: int = Field(
        64 << 20, gt=0, description="About how much of a table one range of pages covers."
    )


class DestinationSettings(_Section):
    uri: str = Field(description="iceberg:///folder/of/the/tables")
    options: Options = Field(default_factory=dict, description="Passed to the catalog as they are.")

    @field_serializer("uri")
    def _show_uri(self, uri: str) -> str:
        return redacted(uri)

    @field_serializer("options")
    def _show_options(self, options: dict[str, str]) -> dict[str, str]:
        return _without_secrets(options)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        yield from (("uri", redacted(self.uri)), ("options", _without_secrets(self.options)))


class MappingSettings(_Section):
    template: str = Field(
        "{schema}.{table}",
        description="The destination's name for a table, as namespace.table; {schema} and "
        "{table} stand for the source's.",
    )
    tables: Options = Field(
        default_factory=dict,
        description="Names for single tables: {public.orders: sales.orders}.",
    )


class StoreSettings(_Section):
    uri: SecretStr | None = Field(
        None,
        description="sqlite:///file, postgresql://…, redis://… or memory:; default: state.db in "
        "the log's folder.",
    )
    postgres_schema: str = Field(
        "walflow", min_length=1, description="Where tables of a Postgres store are made."
    )
    redis_prefix: str = Field("etl:", description="What the keys of a Redis store begin with.")


class SparkSettings(_Section):
    remote: SecretStr | None = Field(
        None,
        description="sc://host:port/;token=… of a Spark Connect server, instead of `master`. It, "
        "or a cluster's workers, must see the log's folder and the destination under the same "
        "path as this process, and have the same Python and walflow.",
    )
    master: str = Field("local[*]", description="local[N], spark://host:port, …")
    driver_memory: str = Field(
        "2g", pattern=r"^(?i)\d+[kmgt]b?$", description="The JVM's heap, like 512m or 2g."
    )
    ivy_settings: HomePath | None = Field(
        None, description="An Ivy settings file that says where jars come from."
    )
    conf: Options = Field(default_factory=dict, description="More Spark settings.")

    @field_serializer("conf")
    def _show_conf(self, conf: dict[str, str]) -> dict[str, str]:
        return _without_secrets(conf)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, _without_secrets(value) if name == "conf" else value


class Settings(_Section):
    """One pipeline. Printing, ``repr`` and ``model_dump`` show no secret; attributes do."""

    name: str = Field("default", pattern=r"^[a-z0-9_]{1,50}$", description="The pipeline's name.")
    source: SourceSettings
    destination: DestinationSettings
    log: LogSettings = LogSettings()
    # The key is `copy` everywhere; the attribute is not, because BaseModel has a method copy().
    copying: CopySettings = Field(CopySettings(), alias="copy")
    types: TypeSettings = TypeSettings()
    mapping: MappingSettings = MappingSettings()
    store: StoreSettings = StoreSettings()
    max_table_sync_workers: int = Field(4, ge=1, description="Tables that are copied at once.")
    max_copy_connections: int = Field(
        4, ge=1, description="Source connections that copy at once, over all tables."
    )
    table_error_retry_delay_ms: int = Field(
        10_000,
        ge=0,
        description="How long a table that failed waits for its next attempt; doubles each time.",
    )
    table_error_retry_max_attempts: int = Field(
        5, ge=0, description="After so many failures in a row a table waits for `walflow retry`."
    )
    on_table_removed: Literal["keep", "drop"] = Field(
        "keep", description="What becomes of the destination's table when one is unpublished."
    )
    spark: SparkSettings = SparkSettings()
    metrics_address: Annotated[str, AfterValidator(_address)] | None = Field(
        None, description="host:port to serve /metrics on; default: not served."
    )

    @property
    def slot(self) -> str:
        return self.source.slot or f"walflow_{self.name}"

    @property
    def log_folder(self) -> Path:
        return self.log.folder or Path.home() / ".walflow" / self.name


def load_settings(
    file: Path | None,
    overrides: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Settings from the file (if any) under the environment under the overrides.

    Overrides are nested like the file, or have dotted keys (``{"source.uri": …}``); a value of
    None means that nothing was said. All problems are told at once in one ConfigError, which
    never shows a value.
    """
    layers = {
        "command line": _from_overrides(overrides),
        "environment": _from_environment(os.environ if environment is None else environment),
        f"file {file}": {} if file is None else _from_file(file),
    }
    # Sections begin empty, so that what is missing inside them is told, not the section.
    merged: dict[str, Any] = {key: {} for key, section in _keys(Settings).items() if section}
    for layer in reversed(layers.values()):
        merged = _merge(merged, layer)
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        problems = [_describe(problem, layers) for problem in error.errors(include_url=False)]
    count = "A setting is" if len(problems) == 1 else f"{len(problems)} settings are"
    raise ConfigError(
        "\n  ".join([f"{count} missing or wrong:", *problems]),
        hint="A setting like log.fill_ms stands in the YAML file (log: {fill_ms: 100}), in the "
        "environment (WALFLOW_LOG__FILL_MS=100) or on the command line, which wins.",
    )


def _from_file(file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"The settings file {file} cannot be read: {error.strerror}.",
            hint="Check the path and the rights of the file.",
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"The settings file {file} is not UTF-8 text.") from None
    except yaml.YAMLError as error:
        # Only the place and the reason: the parser's own message quotes the line.
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        raise ConfigError(
            f"The settings file {file} is not valid YAML{place}: "
            f"{getattr(error, 'problem', None) or 'it has characters that YAML forbids'}.",
            hint="Quote values that have a colon, a # or a @ in them.",
        ) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(
            f"The settings file {file} has no mapping at its top.",
            hint="It should begin with lines like `name: shop` and `source:`.",
        )
    return _given(content)


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """``WALFLOW_A__B=v`` as ``{a: {b: v}}``; an empty value says nothing.

    Other variables may begin with the prefix: one that names no section and is not nearly a
    setting's name is left alone.
    """
    known = _keys(Settings)
    found: dict[str, Any] = {}
    for variable, value in sorted(environment.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or not value:
            continue
        path = variable.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
        if len(path) == 1 and not get_close_matches(path[0], known, cutoff=0.8):
            continue
        found = _merge(found, _nested(path, value))
    return found


def _from_overrides(overrides: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in overrides.items():
        found = _merge(found, _nested(key.split("."), value))
    return _given(found)


def _nested(path: list[str], value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    return value  # type: ignore[no-any-return]  # a path has at least one key


def _given(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Without the Nones (an empty `log:` in YAML, an option that was not used)."""
    return {
        str(key): _given(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value is not None
    }


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = _merge(below, value) if both else value  # type: ignore[arg-type]
    return merged


def _describe(problem: ErrorDetails, layers: Mapping[str, Mapping[str, Any]]) -> str:
    path = [str(part) for part in problem["loc"]]
    shown = redacted(".".join(path))
    if problem["type"] == "missing":
        variable = ENVIRONMENT_PREFIX + "__".join(path).upper()
        description = _field_description(path)
        return f"{shown}: is not set (environment: {variable})" + (
            f"; it is {description}" if description else ""
        )
    where = next((name for name, layer in layers.items() if _holds(layer, path)), None)
    place = f" ({where})" if where else ""
    if problem["type"] == "extra_forbidden":
        closest = _closest(path)
        advice = f"; did you mean {closest}?" if closest else ""
        return f"{shown}{place}: is not a setting{advice}"
    if problem["type"] == "model_type":
        return f"{shown}{place}: must be a section with {', '.join(_known_at(path))}"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{shown}{place}: {message[:1].lower()}{message[1:]}"


def _holds(layer: Mapping[str, Any], path: list[str]) -> bool:
    value: Any = layer
    for key in path:
        if not isinstance(value, Mapping):
            break
        if key not in value:
            return False
        value = value[key]
    return True


def _keys(model: type[BaseModel]) -> dict[str, type[BaseModel] | None]:
    """The keys of a section as users write them, with the section behind each, if it is one."""
    keys: dict[str, type[BaseModel] | None] = {}
    for name, field in model.model_fields.items():
        kind: Any = field.annotation
        is_section = isinstance(kind, type) and issubclass(kind, BaseModel)
        keys[field.alias or name] = kind if is_section else None
    return keys


def _known_at(path: list[str]) -> list[str]:
    model: type[BaseModel] | None = Settings
    for key in path:
        model = None if model is None else _keys(model).get(key)
    return [] if model is None else list(_keys(model))


def _field_description(path: list[str]) -> str | None:
    model: type[BaseModel] | None = Settings
    for key in path[:-1]:
        model = None if model is None else _keys(model).get(key)
    field = None if model is None else model.model_fields.get(path[-1])
    return None if field is None else field.description


def _closest(path: list[str]) -> str | None:
    """The setting that was probably meant: beside this one, or of this name in another section."""
    *parents, key = path
    beside = get_close_matches(key, _known_at(parents), n=1)
    if beside:
        return ".".join([*parents, beside[0]])
    places = {
        name: f"{section}.{name}"
        for section, model in _keys(Settings).items()
        if model is not None
        for name in _keys(model)
    } | {name: name for name in _keys(Settings)}
    elsewhere = get_close_matches(key, list(places), n=1, cutoff=0.8)
    return places[elsewhere[0]] if elsewhere else None
