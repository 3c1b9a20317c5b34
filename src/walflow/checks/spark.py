"""What Spark needs to start: a Java, and the destination's jars."""

from __future__ import annotations

from collections.abc import Iterator

from walflow.checks.findings import Area, Facts, Finding, Verdict, attempted, ok, warning
from walflow.destinations import packages_of
from walflow.spark.jars import find_jars, jar_folder, missing_jars, telling_of_jars
from walflow.spark.java import find_java

__all__ = ["check_spark"]

_AREA = Area.SPARK


def check_spark(facts: Facts) -> Iterator[Finding]:
    """Does not start Spark."""
    if facts.settings.spark.remote is not None:
        yield ok(_AREA, "java", "Spark runs on a Spark Connect server, which has Java and jars")
        return
    for check, look in (("java", _java()), ("jars", _jars(facts))):
        for finding in attempted(_AREA, check, look):
            if finding.verdict is Verdict.ERROR:
                facts.spark_can_start = False
            yield finding


def _java() -> Iterator[Finding]:
    java = find_java()
    yield ok(_AREA, "java", f"Java {java.version} is at {java.home}")


def _jars(facts: Facts) -> Iterator[Finding]:
    packages = packages_of(facts.settings.destination.uri)
    missing = missing_jars(packages)
    if not missing:
        if packages:
            yield ok(_AREA, "jars", f"the destination's jars are in {jar_folder()}")
        return
    if not facts.quick and facts.spark_can_start:
        facts.doing(f"fetching {', '.join(missing)}")
        with telling_of_jars(facts.doing):
            find_jars(packages, facts.settings.spark.ivy_settings)
        yield ok(_AREA, "jars", f"the destination's jars were fetched into {jar_folder()}")
        return
    yield warning(
        _AREA,
        "jars",
        f"The first start will fetch {', '.join(missing)}, which needs a network.",
        "Without one, name a mirror (spark.ivy_settings: an Ivy settings file), or put the jars "
        f"into {jar_folder()}.",
    )
