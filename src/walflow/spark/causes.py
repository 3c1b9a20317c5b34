"""Why Spark could not do something: what is at the bottom of its exceptions.

Spark wraps what went wrong many times over: the job was aborted, because a stage failed, because a
task failed, because a file could not be written, because of a missing right to a folder. Only the
last of it says what to do, and it stands in the stack trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

__all__ = ["Cause", "cause_of"]

_LONGEST = 500

_CAUSED_BY = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_THROWN = re.compile(r"(?P<kind>(?:[a-z_]\w*\.)+[A-Z][\w$]*|[A-Z]\w*(?:Error|Exception))(?:: |$)")
_LOST_TASK = re.compile(r"most recent failure: .*?\([^()]*executor [^()]*\): (.+)$", re.MULTILINE)
_PYTHON = re.compile(
    r"^Traceback \(most recent call last\):\n(?:[ \t]+.*\n|\n)*(\S.*)$", re.MULTILINE
)
# A path, a URL, a host with its port or domain: what one has to look at.
_PLACE = re.compile(r"/\w|:\d{2,5}\b|\w\.\w")
# Around what was thrown by others.
_NOISE = re.compile(
    r"Job aborted|The Spark SQL phase|Writing job aborted|Task failed"
    r"|An exception was thrown from the Python worker"
)
# Of these the name says nothing that the message does not.
_PLAIN = frozenset(
    (
        "Exception",
        "RuntimeException",
        "IOException",
        "UncheckedIOException",
        "SparkException",
        "Error",
        "IllegalArgumentException",
        "IllegalStateException",
        "RuntimeIOException",
        "ConnectException",
        "HttpHostConnectException",
        "FileNotFoundException",
        "PSQLException",
        "SQLException",
        "UncheckedSQLException",
        "RESTException",
        "ServiceUnavailableException",
        "ServiceFailureException",
        "UnsupportedOperationException",
        "ValidationException",
        "AnalysisException",
        "ParseException",
        "NullPointerException",
        "ParentNotDirectoryException",
    )
)
_DENIED = {
    "AccessDeniedException": "permission denied",
    "ReadOnlyFileSystemException": "the file system is read-only",
    "NoSuchFileException": "no such file",
    "NotDirectoryException": "not a folder",
    "UnknownHostException": "unknown host",
    "ClassNotFoundException": "there is no class",
    "NoClassDefFoundError": "there is no class",
}

_MKDIRS = re.compile(r"Mkdirs failed to create (?:file:)?(\S+)(?: \(exists=.*)?")
# Tables and folders are called as users like, `forbidden` and `timed out` too. So classes count
# only where a class is told, and words only where an exception's own words begin.
_PATH = re.compile(r"\S*/\S*|`[^`]*`")
_REFUSING = frozenset(
    (
        "AccessControlException",
        "AccessDeniedException",
        "ForbiddenException",
        "NotDirectoryException",
        "ParentNotDirectoryException",
        "ReadOnlyFileSystemException",
    )
)
_NOT_ALLOWED = re.compile(
    r"(?:^|[:(\]])\s*(?:permission[ _]denied|access ?denied|read-only file system"
    r"|not a directory|mkdirs failed|403 forbidden)\b",
    re.IGNORECASE,
)
_MISTAKEN = re.compile(
    r"Unknown catalog type|Cannot initialize (?:Catalog|FileIO)|both type and catalog-impl"
    r"|Cannot find catalog plugin|ClassNotFoundException|NoClassDefFoundError|No suitable driver"
    r"|Invalid uri|Unsupported scheme|No FileSystem for scheme|Target host is not specified"
    r"|password authentication failed",
    re.IGNORECASE,
)
_AWAY = re.compile(
    r"Connection refused|UnknownHost|timed? ?out|No route to host|Connection reset"
    r"|NoHttpResponse|Network is unreachable|Service ?Unavailable|connection attempt failed",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Cause:
    """What is at the bottom of an exception of Spark's, or of Java's below it."""

    message: str
    """One line: what happened, and where."""
    not_allowed: bool = False
    """A right is missing, or a place is none that could be written to."""
    mistaken: bool = False
    """A setting cannot be right."""
    unknown_user: bool = False
    """A server does not take us for anybody it knows, which may pass: a token can be a new one."""
    away: bool = False
    """A server did not answer, which may pass."""

    @property
    def may_pass(self) -> bool:
        """Whether trying again can help, if nobody does anything about it."""
        return not (self.not_allowed or self.mistaken)


def cause_of(error: BaseException) -> Cause:
    """The cause, of any exception."""
    if _is_broken_connection(error):
        return Cause("the connection to Spark's JVM broke")
    chain = _chain(_trace(error))
    message = _message(chain) or type(error).__name__
    texts = [_PATH.sub("", thrown) for thrown in chain]
    classes = {name for thrown in chain for name in _classes(thrown)}
    mistaken = any(_MISTAKEN.search(thrown) for thrown in texts)
    refused = bool(classes & _REFUSING) or any(_NOT_ALLOWED.search(thrown) for thrown in texts)
    return Cause(
        message[:_LONGEST],
        not_allowed=not mistaken and refused,
        mistaken=mistaken,
        unknown_user="NotAuthorizedException" in classes,
        away=any(_AWAY.search(thrown) for thrown in texts),
    )


def _is_broken_connection(error: BaseException) -> bool:
    from py4j.protocol import (  # type: ignore[import-untyped]
        Py4JError,
        Py4JJavaError,
        Py4JNetworkError,
    )

    if isinstance(error, Py4JNetworkError):
        return True
    # What Java answered has a trace.
    is_of_java = isinstance(error, Py4JJavaError) or "Trace:" in str(error)
    return isinstance(error, Py4JError) and not is_of_java


def _trace(error: BaseException) -> str:
    """The text with all that it was caused by."""
    with suppress(Exception):
        # Of an exception that PySpark knows, its words leave the trace out.
        trace = getattr(error, "_stackTrace", None) or getattr(error, "_stacktrace", None)
        if isinstance(trace, str) and trace.strip():
            return f"{trace}"
    with suppress(Exception):  # a JVM that has ended tells nothing any more
        # "An error occurred while calling o1.sql.", and the trace begins behind a colon.
        return re.sub(r"\AAn error occurred while calling .+\n: ", "", str(error).strip())
    return ""


def _chain(trace: str) -> list[str]:
    """What was thrown, from the outermost on: class and message, each on one line."""
    head = trace.strip().partition("\n")[0]
    found = [head]
    found += [match[1] for match in _LOST_TASK.finditer(trace)]
    if python := _PYTHON.findall(trace):
        found.append(python[-1])
        return found
    return found + [match[1] for match in _CAUSED_BY.finditer(trace)]


def _classes(thrown: str) -> Iterator[str]:
    """The names of the classes that it begins with."""
    text = thrown.strip()
    while (found := _THROWN.match(text)) is not None:
        yield found["kind"].rpartition(".")[2]
        text = text[found.end() :].strip()


def _message(chain: list[str]) -> str:
    """The innermost cause; if it names no place, with the nearest one around it that does."""
    texts = [text for text in (_text(thrown) for thrown in chain) if text]
    texts = [text for text in texts if not _NOISE.match(text)] or texts[-1:]
    if not texts:
        return ""
    innermost = texts[-1]
    bare = innermost.partition(": ")[2] or innermost
    if whole := next((text for text in texts[:-1] if bare in text), None):
        return whole
    if _PLACE.search(innermost):
        return innermost
    around = next((text for text in reversed(texts[:-1]) if _PLACE.search(text)), None)
    if around is None:
        # The outermost may say at least what was being done.
        around = texts[0]
    return around if innermost in around else f"{around}: {innermost}"


def _text(thrown: str) -> str:
    """Without the names of classes that say nothing."""
    text = thrown.strip()
    while (found := _THROWN.match(text)) is not None:
        name = found["kind"].rpartition(".")[2]
        rest = text[found.end() :].strip()
        if name in _DENIED:
            return f"{_DENIED[name]}: {rest}" if rest else _DENIED[name]
        if name not in _PLAIN and not rest.startswith(found["kind"]):
            # One that is not known tells more than its message alone.
            return f"{name}: {rest}" if rest else name
        text = rest
    text = re.sub(r"\A\[[A-Z_.]+\] ", "", text)
    # Hadoop's words for a folder that could not be made, and where it was not.
    return _MKDIRS.sub(r"the folder \1 cannot be created: no right, or a file has its name", text)
