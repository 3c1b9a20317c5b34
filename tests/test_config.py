from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict
from pydantic import ValidationError

from walflow.config import (
    Settings,
    SourceSettings,
    TablesSettings,
    host_and_port,
    load_settings,
)
from walflow.errors import ConfigError
from walflow.model import TableName

SECRET = "hunter2"
URI = f"postgresql://app:{SECRET}@db:5432/shop"
REQUIRED: dict[str, Any] = {"source": {"uri": URI}, "destination": {"uri": "iceberg:///lake"}}


def load(
    tmp_path: Path,
    text: str = "",
    environment: dict[str, str] | None = None,
    overrides: dict[str, Any] | None = None,
) -> Settings:
    file = tmp_path / "walflow.yaml"
    file.write_text(text, encoding="utf-8")
    return load_settings(file, REQUIRED if overrides is None else overrides, environment or {})


def pairs(text: str) -> list[list[str]]:
    return [line.split(": ") for line in text.split("\n")]


def problem(
    tmp_path: Path,
    text: str = "",
    environment: dict[str, str] | None = None,
    overrides: dict[str, Any] | None = None,
) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, environment, overrides)
    assert SECRET not in caught.value.message + caught.value.hint
    return caught.value.message


class TestLayers:
    def test_defaults(self, tmp_path: Path) -> None:
        settings = load(tmp_path)
        assert settings.slot == "walflow_default"
        assert settings.log_folder == Path.home() / ".walflow" / "default"
        assert settings.max_copy_connections == 4
        assert settings.source.uri.get_secret_value() == URI

    def test_environment_wins_over_the_file_and_the_command_line_over_both(
        self, tmp_path: Path
    ) -> None:
        text = "name: a\nbatch: {max_fill_ms: 1, max_size: 10}\nlog: {file_bytes: 100}"
        environment = {"WALFLOW_BATCH__MAX_FILL_MS": "2", "WALFLOW_BATCH__MAX_SIZE": "20"}
        settings = load(tmp_path, text, environment, {**REQUIRED, "batch": {"max_fill_ms": 3}})
        assert settings.name == "a"
        assert settings.batch.max_fill_ms == 3
        assert settings.batch.max_size == 20
        assert settings.log.file_bytes == 100

    def test_the_real_environment_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WALFLOW_SOURCE__URI", URI)
        settings = load_settings(None, {"destination.uri": "iceberg:///x", "name": None})
        assert settings.source.uri.get_secret_value() == URI

    def test_the_key_copy_works_in_every_layer(self, tmp_path: Path) -> None:
        assert load(tmp_path, "copy: {range_bytes: 2}").copying.range_bytes == 2
        environment = {"WALFLOW_COPY__RANGE_BYTES": "3"}
        assert load(tmp_path, "", environment).copying.range_bytes == 3
        overrides = {**REQUIRED, "copy.range_bytes": 5}
        assert load(tmp_path, "", environment, overrides).copying.range_bytes == 5

    def test_dotted_overrides_meet_sections_and_nones_say_nothing(self, tmp_path: Path) -> None:
        overrides = {
            "source.uri": URI,
            "source.slot": None,
            "destination": {"uri": "iceberg:///x"},
            "spark.conf": {"spark.ui.enabled": "false"},
        }
        settings = load(tmp_path, "source: {slot: mine}", {}, overrides)
        assert settings.slot == "mine"
        assert settings.spark.conf == {"spark.ui.enabled": "false"}

    def test_a_uri_may_stand_where_its_section_does(self, tmp_path: Path) -> None:
        short = f"source: {URI}\ndestination: iceberg:///lake\nstore: redis://cache/0"
        said: dict[str, Any] = {"source.uri": None, "destination.options": {"a": "b"}}
        more = {"WALFLOW_SOURCE__SLOT": "mine", "WALFLOW_STORE__REDIS_PREFIX": "x:"}
        for settings in (
            load(tmp_path, short, more, said),
            load_settings(None, said | dict(pairs(short)), more),
            load_settings(
                None, said, more | {f"WALFLOW_{key.upper()}": uri for key, uri in pairs(short)}
            ),
        ):
            assert settings.source.uri.get_secret_value() == URI
            assert (settings.source.slot, settings.store.redis_prefix) == ("mine", "x:")
            assert settings.destination.uri == "iceberg:///lake"
            assert settings.destination.options == {"a": "b"}
            assert settings.store.uri is not None
            assert settings.store.uri.get_secret_value() == "redis://cache/0"

    def test_short_forms_name_variables_and_are_overruled(self, tmp_path: Path) -> None:
        text = "source: postgresql://app:${PASSWORD}@db/shop\ndestination: ${LAKE}"
        environment = {"PASSWORD": "p@ss", "LAKE": "iceberg:///a"}
        settings = load(tmp_path, text, environment, {})
        assert settings.source.uri.get_secret_value() == "postgresql://app:p%40ss@db/shop"
        assert settings.destination.uri == "iceberg:///a"
        assert load(tmp_path, text, {}, REQUIRED).destination.uri == "iceberg:///lake"
        moved = environment | {"WALFLOW_DESTINATION": "delta:///b"}
        assert load(tmp_path, text, moved, {}).destination.uri == "delta:///b"

    def test_lists_and_mappings_as_text(self, tmp_path: Path) -> None:
        environment = {
            "WALFLOW_TABLES__INCLUDE": "shop.orders, shop.it*",
            "WALFLOW_SPARK__CONF": '{"spark.ui.enabled": "false"}',
            "WALFLOW_DESTINATION__OPTIONS__WAREHOUSE": "w",
        }
        settings = load(tmp_path, "", environment)
        assert settings.tables.include == ("shop.orders", "shop.it*")
        assert settings.spark.conf == {"spark.ui.enabled": "false"}
        assert settings.destination.options == {"warehouse": "w"}

    def test_empty_sections_and_variables_say_nothing(self, tmp_path: Path) -> None:
        settings = load(tmp_path, "log:\nspark:\n", {"WALFLOW_METRICS_ADDRESS": ""})
        assert settings.metrics_address is None

    def test_other_variables_with_the_prefix_are_left_alone(self, tmp_path: Path) -> None:
        load(tmp_path, "", {"WALFLOW_JAR_CACHE": "/x", "PATH": "/bin"})

    def test_names_for_tables(self, tmp_path: Path) -> None:
        text = "mapping: {template: 'lake.{schema}__{table}', tables: {public.orders: sales.o}}"
        mapping = load(tmp_path, text).mapping
        assert mapping.template == "lake.{schema}__{table}"
        assert mapping.tables == {"public.orders": "sales.o"}

    @pytest.mark.parametrize("memory", ["512m", "2G", "1024kb", "1t"])
    def test_memory(self, tmp_path: Path, memory: str) -> None:
        assert load(tmp_path, f"spark: {{driver_memory: {memory}}}").spark.driver_memory == memory

    def test_a_home_folder_is_found(self, tmp_path: Path) -> None:
        assert load(tmp_path, "log: {folder: ~/wal}").log_folder == Path.home() / "wal"


class TestVariables:
    def test_texts_of_the_file_name_variables(self, tmp_path: Path) -> None:
        text = (
            "source: {uri: 'postgresql://${WHO}:${SECRET}@${HOST}/shop?sslpassword=${SECRET}'}\n"
            "destination: {uri: 'iceberg://${FOLDER}/lake', options: {key: 'a$${b} $$ ${WHO}'}}\n"
            "tables: {include: ['${SCHEMA}.*', '${SCHEMA}_old.*']}\n"
            "batch:\n  max_size: ${SIZE}\n"
        )
        environment = {"WHO": "app", "SECRET": "p@ss/w:rd", "HOST": "db:5432", "FOLDER": "/data"}
        environment |= {"SCHEMA": "shop", "SIZE": "7"}
        settings = load(tmp_path, text, environment, {})
        uri = "postgresql://app:p%40ss%2Fw%3Ard@db:5432/shop?sslpassword=p%40ss%2Fw%3Ard"
        assert settings.source.uri.get_secret_value() == uri
        assert settings.destination.uri == "iceberg:///data/lake"
        assert settings.destination.options == {"key": "a${b} $$ app"}
        assert settings.tables.include == ("shop.*", "shop_old.*")
        assert settings.batch.max_size == 7

    @pytest.mark.parametrize("place", ["${SECRET}", "'${SECRET}'"])
    def test_values_of_parameters_are_quoted(self, tmp_path: Path, place: str) -> None:
        text = f'source: {{uri: "host=db password={place} dbname=shop"}}'
        overrides = {"destination.uri": "iceberg:///x"}
        settings = load(tmp_path, text, {"SECRET": "a b'=\\c sslmode=disable"}, overrides)
        uri = settings.source.uri.get_secret_value()
        assert conninfo_to_dict(uri) == {
            "host": "db",
            "password": "a b'=\\c sslmode=disable",
            "dbname": "shop",
        }

    def test_a_whole_uri_is_taken_as_it_is(self, tmp_path: Path) -> None:
        text = "source: {uri: '${DATABASE_URL}'}\ndestination: {uri: 'iceberg:///x'}"
        settings = load(tmp_path, text, {"DATABASE_URL": URI}, {})
        assert settings.source.uri.get_secret_value() == URI

    def test_all_that_are_missing_are_told_at_once(self, tmp_path: Path) -> None:
        text = "source: {uri: 'postgresql://a:${ONE}@b/c', slot: '${two words}'}\nname: ${ONE}"
        message = problem(tmp_path, text, {"ONE": ""}, {})
        assert "source.uri, name: ONE; source.slot: two words." in message

    def test_what_is_said_elsewhere_needs_none(self, tmp_path: Path) -> None:
        text = "source: {uri: 'postgresql://a:${ONE}@b/c'}\nlog: {folder: '${TWO}'}"
        environment = {"WALFLOW_LOG__FOLDER": "/x"}
        settings = load(tmp_path, text, environment, REQUIRED)
        assert settings.source.uri.get_secret_value() == URI
        assert settings.log_folder == Path("/x")


class TestTables:
    @pytest.mark.parametrize(
        ("include", "exclude", "expected"),
        [
            ("", "", ["a.b", "a.b_1", "c.B", "c.b.d"]),
            ("a.*", "", ["a.b", "a.b_1"]),
            ("*.b", "", ["a.b"]),
            ("c.[bB]*", "", ["c.B", "c.b.d"]),
            ("", "*.b?*", ["a.b", "c.B"]),
            ("a.b, c.b.d", "c.*", ["a.b"]),
        ],
    )
    def test_patterns(
        self, tmp_path: Path, include: str, exclude: str, expected: list[str]
    ) -> None:
        environment = {"WALFLOW_TABLES__INCLUDE": include, "WALFLOW_TABLES__EXCLUDE": exclude}
        tables = load(tmp_path, "", environment).tables
        every = ["a.b", "a.b_1", "c.B", "c.b.d"]
        assert [name for name in every if tables.have(TableName.parse(name))] == expected
        assert tables.choose is bool(include or exclude)

    def test_names_may_have_dots(self) -> None:
        tables = TablesSettings(include=("my.schema.tbl",))
        assert tables.have(TableName("my.schema", "tbl"))
        assert tables.have(TableName("my", "schema.tbl"))
        assert not tables.have(TableName("my", "tbl"))

    def test_which_are_named(self, tmp_path: Path) -> None:
        assert load(tmp_path, "tables: {include: [a.b, a.*, c.d]}").tables.named == ("a.b", "c.d")


class TestTls:
    @pytest.mark.parametrize(
        ("uri", "tls", "expected"),
        [
            ("postgresql://h/d", "{mode: require}", "postgresql://h/d?sslmode=require"),
            (
                "postgresql://h/d?sslmode=require&a=b",
                "{mode: require, key: /k y}",
                "postgresql://h/d?sslmode=require&a=b&sslkey=/k%20y",
            ),
            (
                "postgresql://h/d",
                "{root_certificate: system}",
                "postgresql://h/d?sslrootcert=system&sslmode=verify-full",
            ),
            (
                "postgresql://h/d?sslmode=verify-ca",
                "{root_certificate: /ca}",
                "postgresql://h/d?sslmode=verify-ca&sslrootcert=/ca",
            ),
            (
                r"host=h dbname=d sslkey='/it\'s'",
                "{mode: require, key: /it's}",
                r"host=h dbname=d sslkey='/it\'s' sslmode='require'",
            ),
            ("postgresql://h/d?x=y", "{}", "postgresql://h/d?x=y"),
            ("postgresql://u:p?w@h/d", "{mode: require}", "postgresql://u:p?w@h/d?sslmode=require"),
            ("", "{mode: require}", ""),
        ],
    )
    def test_it_goes_into_the_uri(self, tmp_path: Path, uri: str, tls: str, expected: str) -> None:
        overrides = {**REQUIRED, "source.uri": uri}
        settings = load(tmp_path, f"source: {{tls: {tls}}}", {}, overrides)
        assert settings.source.uri.get_secret_value() == expected
        again = SourceSettings.model_validate(dict(settings.source))
        assert again == settings.source

    @pytest.mark.parametrize("uri", [f"{URI}?sslmode=disable", "host=a sslmode = disable"])
    def test_it_must_not_contradict_the_uri(self, tmp_path: Path, uri: str) -> None:
        overrides = {**REQUIRED, "source.uri": uri}
        message = problem(tmp_path, "source: {tls: {mode: require}}", {}, overrides)
        assert "source (command line): the URI has another sslmode than tls.mode" in message


class TestProblems:
    def test_missing_settings_are_named_with_their_variable(self, tmp_path: Path) -> None:
        message = problem(tmp_path, overrides={})
        assert message.startswith("2 settings are missing or wrong:")
        assert "source.uri: is not set (environment: WALFLOW_SOURCE__URI)" in message
        assert "destination.uri: is not set" in message

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("sorce: {uri: hunter2}", "sorce (file {}): is not a setting; did you mean source?"),
            (
                "log: {max_byte: 1}",
                "log.max_byte (file {}): is not a setting; did you mean log.max_bytes?",
            ),
            ("log: {fill_ms: 1}", "log.fill_ms (file {}): is now batch.max_fill_ms"),
            ("source: {tables: [a.b]}", "source.tables (file {}): is now tables.include"),
            (
                "source: {tls: {mod: require}}",
                "source.tls.mod (file {}): is not a setting; did you mean source.tls.mode?",
            ),
            ("root_certificate: x", "is not a setting; did you mean source.tls.root_certificate?"),
            (
                "tables: {includes: [a.b]}",
                "tables.includes (file {}): is not a setting; did you mean tables.include?",
            ),
            ("publication: p", "is not a setting; did you mean source.publication?"),
            ("copying: {}", "is not a setting; did you mean copy?"),
            (
                "apply: {tables: {public.audit: {mod: history}}}",
                "apply.tables.public.audit.mod (file {}): is not a setting; did you mean "
                "apply.tables.public.audit.mode?",
            ),
            ("qqq: 1", "qqq (file {}): is not a setting"),
            ("on: 1", "True (file {}): is not a setting"),
        ],
    )
    def test_unknown_keys_name_the_closest(self, tmp_path: Path, text: str, expected: str) -> None:
        assert expected.format(tmp_path / "walflow.yaml") in problem(tmp_path, text)

    @pytest.mark.parametrize(
        ("variable", "closest"),
        [("SOURCE__URII", "source.uri"), ("METRICS_ADRESS", "metrics_address")],
    )
    def test_unknown_variables_name_the_closest(
        self, tmp_path: Path, variable: str, closest: str
    ) -> None:
        message = problem(tmp_path, "", {f"WALFLOW_{variable}": SECRET})
        assert f"(environment): is not a setting; did you mean {closest}?" in message

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("log: {max_bytes: much}", "log.max_bytes"),
            ("log: {max_bytes: 0}", "greater than 0"),
            ("types: {numeric: 'decimal(39,2)'}", "1 to 38 digits"),
            ("types: {numeric: 'decimal(3,5)'}", "1 to 38 digits"),
            ("types: {numeric: money}", "types.numeric (file {}): must be decimal("),
            ("types: {numeric: decimal}", "must be decimal(precision,scale), double or string"),
            ("name: Über", "name (file {}): must be 1 to 50 small letters"),
            ("name: ''", "must be 1 to 50 small letters"),
            ("source: {slot: My-Slot}", "source.slot (file {}): must be 1 to 63 small letters"),
            ("metrics_address: ninethousand", "must be host:port"),
            ("spark: {driver_memory: lots}", "must be a number with a unit, like 2g"),
            ("spark: {driver_memory: 12}", "spark.driver_memory (file {}): "),
            ("spark: {conf: hunter2}", "must be a mapping"),
            ("log: 3", "log (file {}): must be a section with folder, max_bytes"),
            (
                "apply: {freshness: view}",
                "apply.freshness (file {}): is gone; every batch is merged",
            ),
            (
                "apply: {tables: {public.a: {freshness: view}}}",
                "apply.tables.public.a.freshness (file {}): is gone; every batch is merged",
            ),
            (
                "apply: {tables: {public.a.b: hunter2}}",
                "apply.tables.public.a.b (file {}): must be a section with mode, on_column_dropped",
            ),
            ("tables: [public.a]", "tables (file {}): must be a section with include, exclude"),
            ("tables: {exclude: [audit]}", "tables.exclude.0 (file {}): a pattern has a schema"),
            ("tables: {include: [a.b, {c: d}]}", "tables.include.1 (file {}): "),
            ("batch: {max_size: 0}", "batch.max_size (file {}): input should be greater than 0"),
            ("source: {tls: {mode: on}}", "source.tls.mode (file {}): input should be 'disable'"),
            ("apply: {lsn_column: _TIMESTAMP}", "apply (file {}): change_type_column, lsn_column"),
        ],
    )
    def test_wrong_values_say_where_and_what(
        self, tmp_path: Path, text: str, expected: str
    ) -> None:
        assert expected.format(tmp_path / "walflow.yaml") in problem(tmp_path, text)

    @pytest.mark.parametrize(
        "template",
        [
            "{table}",
            "a.b.{table}",
            "{x}.{table}",
            "a.{table",
            "a.table}",
            "a.{}",
            "s.",
            ".t",
            ".",
            "",
            "{schema}.",
            ".{table}",
            " .{table}",
            "a.{table[0]}",
            "a.{table!r}",
            "a.{table:>9}",
            "a.{table.upper}",
            "a.{{table}}",
        ],
    )
    def test_templates_that_give_no_name(self, tmp_path: Path, template: str) -> None:
        message = problem(tmp_path, f"mapping: {{template: '{template}'}}")
        assert "mapping.template (file " in message
        assert "must be namespace.table" in message
        assert "like lake.{schema}__{table}" in message

    @pytest.mark.parametrize("name", ["orders", "public.", ".orders", ".", " .t"])
    def test_tables_to_be_named_have_a_schema(self, tmp_path: Path, name: str) -> None:
        message = problem(tmp_path, f"mapping: {{tables: {{'{name}': sales.orders}}}}")
        assert f"mapping.tables.{name} (file " in message
        assert "is named with its schema, like public.orders" in message

    @pytest.mark.parametrize("name", ["orders", "sales.", ".orders", "a.b.c", "a. "])
    def test_names_for_tables_have_a_namespace(self, tmp_path: Path, name: str) -> None:
        message = problem(tmp_path, f"mapping: {{tables: {{public.orders: '{name}'}}}}")
        assert "mapping.tables.public.orders (file " in message
        assert "must be namespace.table, like sales.orders" in message

    def test_all_problems_of_a_mapping_at_once(self, tmp_path: Path) -> None:
        environment = {"WALFLOW_MAPPING__TABLES": '{"a": "sales.a", "x.b": "b", "x.c": "s.c"}'}
        message = problem(tmp_path, "mapping: {template: s.}", environment)
        assert message.startswith("3 settings are missing or wrong:")
        assert "mapping.tables.a (environment): a table of the source" in message
        assert "mapping.tables.x.b (environment): the destination's name" in message

    def test_the_layer_that_is_at_fault_is_named(self, tmp_path: Path) -> None:
        message = problem(tmp_path, "batch: {max_size: 1}", {"WALFLOW_BATCH__MAX_SIZE": "x"})
        assert "batch.max_size (environment)" in message

    def test_all_problems_at_once(self, tmp_path: Path) -> None:
        message = problem(tmp_path, "log: {file_bytes: x, max_bytes: y}\nnaem: z")
        assert message.startswith("3 settings are missing or wrong:")
        assert len(message.splitlines()) == 4

    @pytest.mark.parametrize("text", ["spark: {}", "spark: {{conf: {{}}}}\nlog: {}"])
    def test_a_uri_where_a_section_belongs_stays_secret(self, tmp_path: Path, text: str) -> None:
        for overrides in (None, {"spark.remote": None, "log.folder": "/data", **REQUIRED}):
            message = problem(tmp_path, text.format(URI), overrides=overrides)
            assert message.startswith("A setting is missing or wrong:")
            assert "must be a section with " in message
            assert message.count("\n") == 1

    def test_what_is_no_section_is_not_lost_under_another_layer(self, tmp_path: Path) -> None:
        message = problem(
            tmp_path,
            "source: {tls: require}\nspark: local\ndestination: 3\nbatch: {max_size: 0}",
            {"WALFLOW_SPARK__DRIVER_MEMORY": "3g", "WALFLOW_SOURCE__TLS__MODE": "require"},
            {"destination.uri": None},
        )
        assert "  spark (file " in message
        assert "must be a section with remote, master, " in message
        assert "like spark: {remote: …}" in message
        assert "  source.tls (file " in message
        assert "  destination (file " in message
        # Nor is the rest: what other sections lack, and what is wrong in them.
        assert "  source.uri: is not set" in message
        assert "  batch.max_size (file " in message
        assert "destination.uri" not in message
        problem(tmp_path, f'"{URI}": 1')
        problem(tmp_path, f"destination: {{uri: [{URI!r}]}}", overrides={})

    def test_yaml_errors_tell_the_place_not_the_line(self, tmp_path: Path) -> None:
        message = problem(tmp_path, f"name: a\nsource: {{uri: {SECRET}: x")
        assert "is not valid YAML, line 2" in message

    def test_files_that_cannot_be_read(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="No such file"):
            load_settings(tmp_path / "none.yaml", REQUIRED, {})
        with pytest.raises(ConfigError, match="cannot be read"):
            load_settings(tmp_path, REQUIRED, {})
        binary = tmp_path / "binary.yaml"
        binary.write_bytes(b"\xff\xfe\x00\xd8")
        with pytest.raises(ConfigError, match="not UTF-8"):
            load_settings(binary, REQUIRED, {})
        assert "no mapping at its top" in problem(tmp_path, "- a\n- b\n")
        assert "not valid YAML" in problem(tmp_path, "a: \x07")


class TestSecrets:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        destination = {
            "uri": f"iceberg://u:{SECRET}@catalog/x",
            "options": {"s3.secret-access-key": SECRET, "jdbc": f"postgresql://a:{SECRET}@h/d"},
        }
        conf = {"spark.hadoop.fs.s3a.secret.key": SECRET, "spark.ui.enabled": "false"}
        overrides = {"source.uri": URI, "destination": destination, "spark.conf": conf}
        return load(tmp_path, "", {}, overrides)

    def test_no_printed_form_shows_them(self, settings: Settings) -> None:
        forms = [
            str(settings),
            repr(settings),
            repr(settings.destination),
            str(settings.spark),
            str(settings.model_dump()),
            str(settings.model_dump(mode="json")),
            settings.model_dump_json(),
        ]
        for form in forms:
            assert SECRET not in form
            assert "spark.ui.enabled" in form or "source" not in form

    def test_attributes_and_pickles_keep_them(self, settings: Settings) -> None:
        back = pickle.loads(pickle.dumps(settings))
        assert back == settings
        assert SECRET in back.source.uri.get_secret_value()
        assert back.destination.options["s3.secret-access-key"] == SECRET
        assert SECRET in back.destination.uri

    def test_errors_of_the_model_itself_hide_the_input(self) -> None:
        with pytest.raises(ValidationError) as caught:
            Settings.model_validate({**REQUIRED, "log": SECRET})
        assert SECRET not in str(caught.value)

    def test_settings_do_not_change(self, settings: Settings) -> None:
        with pytest.raises(ValidationError, match="frozen"):
            settings.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:9000", ("127.0.0.1", 9000)),
        ("localhost:0", ("localhost", 0)),
        ("[::]:9000", ("::", 9000)),
        (":9000", ("", 9000)),
    ],
)
def test_host_and_port(address: str, expected: tuple[str, int]) -> None:
    assert host_and_port(address) == expected


@pytest.mark.parametrize("address", ["9000", "host", "host:", "::1:9000", "host:x", "h:70000", ""])
def test_host_and_port_rejects(address: str) -> None:
    with pytest.raises(ValueError, match=r"must be host:port|above 65535"):
        host_and_port(address)
