"""A way to a server that can lose an answer, and can speak TLS where the server does not."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path


class Proxy:
    """Passes on what it is sent, each connection in a thread of its own."""

    def __init__(self, target: int, tls: ssl.SSLContext | None = None) -> None:
        self._target = target
        self._tls = tls
        self._loses_answer_to: bytes | None = None
        self.lost = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def lose_answer_to(self, part_of_question: bytes) -> None:
        """Once: let the server do what it is asked, and cut the connection before its answer."""
        self.lost.clear()
        self._loses_answer_to = part_of_question

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(20)
        for open_one in self._open:
            with contextlib.suppress(OSError):
                open_one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(20)

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            self._open += [client, server]
            thread = threading.Thread(target=self._serve, args=(client, server))
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        with server, contextlib.suppress(OSError):
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_side=True)
            with client:
                self._pass_on(client, server)

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        loses_answer = False
        while True:
            decrypted = isinstance(client, ssl.SSLSocket) and client.pending()
            ready = [client] if decrypted else select.select([client, server], [], [])[0]
            if client in ready:
                question = client.recv(1 << 16)
                if not question:
                    return
                if self._loses_answer_to is not None and self._loses_answer_to in question:
                    self._loses_answer_to, loses_answer = None, True
                server.sendall(question)
            if server in ready:
                answer = server.recv(1 << 16)
                if loses_answer:
                    self.lost.set()
                if loses_answer or not answer:
                    return
                client.sendall(answer)


@contextlib.contextmanager
def proxy_to(port: int, tls: ssl.SSLContext | None = None) -> Iterator[Proxy]:
    proxy = Proxy(port, tls)
    try:
        yield proxy
    finally:
        proxy.close()


def make_certificate(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's side of TLS, and the certificate that clients check it with."""
    key, certificate = folder / "server.key", folder / "server.crt"
    command: list[str | Path] = ["openssl", "req", "-new", "-x509", "-nodes", "-days", "2"]
    command += ["-newkey", "rsa:2048", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    command += ["-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate
