"""A REST catalog on the loopback address, for as long as a test runs.

What requests ask for is done by Iceberg's own handlers, on another catalog in Spark's JVM. This is
the way from HTTP to them, which Iceberg itself has only for its own tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus, urlsplit

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["serving_catalog"]

_ALL = "/v1/{prefix}/namespaces"
_ONE = f"{_ALL}/{{namespace}}"
_ENDPOINTS = [
    *(f"{method} {_ALL}" for method in ("GET", "POST")),
    *(f"{method} {_ONE}" for method in ("GET", "HEAD", "DELETE")),
    *(f"{method} {_ONE}/tables" for method in ("GET", "POST")),
    *(f"{method} {_ONE}/tables/{{table}}" for method in ("GET", "HEAD", "POST", "DELETE")),
    "POST /v1/{prefix}/tables/rename",
]
"""What clients are told that they can ask for."""

_CODES = {
    "NoSuchNamespaceException": 404,
    "NoSuchTableException": 404,
    "AlreadyExistsException": 409,
    "CommitFailedException": 409,
    "NamespaceNotEmptyException": 409,
    "ValidationException": 400,
}


@contextmanager
def serving_catalog(spark: SparkSession, options: Mapping[str, str]) -> Iterator[str]:
    """Serve the catalog that the options describe; gives the address."""
    catalog = _Catalog(spark, options)
    with _Server(catalog) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
            catalog.close()


class _Catalog:
    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        context: Any = spark.sparkContext
        gateway, jvm = context._gateway, context._jvm
        self._iceberg = jvm.org.apache.iceberg
        self._handlers = self._iceberg.rest.CatalogHandlers
        self._all = self._iceberg.rest.RESTCatalogProperties.SnapshotMode.ALL
        # The one that knows Spark's jars.
        self._loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        # Nobody is meant to have it.
        mapper = self._loader.loadClass("org.apache.iceberg.rest.RESTObjectMapper")
        method = mapper.getDeclaredMethod("mapper", gateway.new_array(jvm.java.lang.Class, 0))
        method.setAccessible(True)
        self._mapper = method.invoke(None, gateway.new_array(jvm.java.lang.Object, 0))
        self._gateway, self._string = gateway, jvm.java.lang.String
        given = jvm.java.util.HashMap()
        for name, value in options.items():
            given.put(name, value)
        self._catalog = self._iceberg.CatalogUtil.buildIcebergCatalog(
            "served", given, context._jsc.hadoopConfiguration()
        )

    def close(self) -> None:
        self._catalog.close()

    def answer(self, method: str, path: list[str], body: str) -> str | None:
        """JSON; None if there is nothing to say."""
        match path:
            case ["v1", "config"]:
                return json.dumps({"defaults": {}, "overrides": {}, "endpoints": _ENDPOINTS})
            case ["v1", "tables", "rename"]:
                request = self._read("RenameTableRequest", body)
                found = self._handlers.renameTable(self._catalog, request)
            case ["v1", "namespaces"]:
                found = self._namespaces(method, body)
            case ["v1", "namespaces", namespace]:
                found = self._namespace(method, self._space(namespace))
            case ["v1", "namespaces", namespace, "tables"]:
                found = self._tables(method, self._space(namespace), body)
            case ["v1", "namespaces", namespace, "tables", name]:
                identifier = self._iceberg.catalog.TableIdentifier.of(self._names(namespace, name))
                found = self._table(method, identifier, body)
            case _:
                raise LookupError(f"{method} {path}")
        return None if found is None else str(self._mapper.writeValueAsString(found))

    def _namespaces(self, method: str, body: str) -> Any:
        if method == "GET":
            return self._handlers.listNamespaces(self._catalog, self._space())
        request = self._read("CreateNamespaceRequest", body)
        return self._handlers.createNamespace(self._catalog, request)

    def _namespace(self, method: str, space: Any) -> Any:
        verbs = {"GET": "loadNamespace", "HEAD": "namespaceExists", "DELETE": "dropNamespace"}
        return getattr(self._handlers, verbs[method])(self._catalog, space)

    def _tables(self, method: str, space: Any, body: str) -> Any:
        if method == "GET":
            return self._handlers.listTables(self._catalog, space)
        request = self._read("CreateTableRequest", body)
        verb = "stageTableCreate" if request.stageCreate() else "createTable"
        return getattr(self._handlers, verb)(self._catalog, space, request)

    def _table(self, method: str, identifier: Any, body: str) -> Any:
        if method == "GET":
            return self._handlers.loadTable(self._catalog, identifier, self._all)
        if method == "POST":
            request = self._read("UpdateTableRequest", body)
            return self._handlers.updateTable(self._catalog, identifier, request)
        verb = {"HEAD": "tableExists", "DELETE": "dropTable"}[method]
        return getattr(self._handlers, verb)(self._catalog, identifier)

    def _names(self, *names: str) -> Any:
        made = self._gateway.new_array(self._string, len(names))
        for number, name in enumerate(names):
            made[number] = name
        return made

    def _space(self, *names: str) -> Any:
        return self._iceberg.catalog.Namespace.of(self._names(*names))

    def _read(self, kind: str, body: str) -> Any:
        kind_of_request = self._loader.loadClass(f"org.apache.iceberg.rest.requests.{kind}")
        return self._mapper.readValue(body, kind_of_request)


class _Server(ThreadingHTTPServer):
    # Clients keep connections open, which are not waited for.
    daemon_threads = True

    def __init__(self, catalog: _Catalog) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.catalog = catalog


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Else the end of each answer waits until the client has confirmed its beginning.
    disable_nagle_algorithm = True
    server: _Server

    def handle_one_request(self) -> None:
        self.do_GET = self.do_HEAD = self.do_POST = self.do_DELETE = self._answer
        super().handle_one_request()

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        path = [unquote_plus(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        try:
            said = self.server.catalog.answer(self.command, path, body)
            code = 204 if said is None else 200
        except Py4JJavaError as error:
            kind = error.java_exception.getClass().getSimpleName()
            code = _CODES.get(kind, 500)
            message = error.java_exception.getMessage()
            said = json.dumps({"error": {"message": message, "type": kind, "code": code}})
        sent = b"" if said is None else said.encode()
        self.send_response(code)
        if code != 204:
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(sent)
