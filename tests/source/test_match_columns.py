"""Which columns a relation message speaks of: in stories of altered tables, told to the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from walflow.model import Column, PgType, TableName, TableSchema
from walflow.source.catalog.attributes import Attribute
from walflow.source.catalog.match_columns import match_columns
from walflow.source.stream.relation import RelationColumn

TEXT = 25
NAMES = "abc"
Form = tuple[tuple[int, str], ...]
"""Numbers and names of the columns that there are."""


@dataclass
class Table:
    """Attribute numbers as Postgres gives them out."""

    columns: dict[int, str] = field(default_factory=dict)
    last: int = 0
    altered: dict[int, int] = field(default_factory=dict)
    """When each attribute was altered last."""
    forms: list[Form] = field(default_factory=list)
    stamps: list[dict[int, int]] = field(default_factory=list)
    """``altered`` as it was with each of the forms."""

    def add(self, name: str) -> None:
        self.last += 1
        self.columns[self.last] = name
        self._done(self.last)

    def drop(self, number: int) -> None:
        del self.columns[number]
        self._done(number)

    def rename(self, number: int, name: str) -> None:
        self.columns[number] = name
        self._done(number)

    def swap(self, one: int, other: int) -> None:
        self.columns[one], self.columns[other] = self.columns[other], self.columns[one]
        self._done(one, other)

    def _done(self, *numbers: int) -> None:
        self.forms.append(tuple(sorted(self.columns.items())))
        self.altered.update(dict.fromkeys(numbers, len(self.forms)))
        self.stamps.append(dict(self.altered))

    def attributes(self, horizon: int) -> list[Attribute]:
        """The catalog's at the end; what was altered last up to the horizon is stable."""
        return [
            Attribute(
                self.columns.get(number, f"........pg.dropped.{number}........"),
                number,
                TEXT if number in self.columns else 0,
                -1,
                dropped=number not in self.columns,
                altered=self.altered[number],
                stable=self.altered[number] <= horizon + 1,
            )
            for number in range(1, self.last + 1)
        ]


def schema(form: Form, stamps: Mapping[int, int] | None = None) -> TableSchema:
    kind = PgType("text", TEXT, TEXT)
    columns = tuple(
        Column(name, kind, "string", attnum=number, altered=(stamps or {}).get(number, 0))
        for number, name in form
    )
    return TableSchema(1, TableName("s", "t"), columns, ())


def message(form: Form) -> list[RelationColumn]:
    return [RelationColumn(name, TEXT, -1, identity=False) for _, name in form]


@st.composite
def stories(draw: st.DrawFn) -> Table:
    table = Table()
    for name in NAMES[: draw(st.integers(1, 3))]:
        table.add(name)
    for _ in range(draw(st.integers(0, 8))):
        free = [name for name in "abcdef" if name not in table.columns.values()]
        alive = sorted(table.columns)
        kinds = ["add"] * bool(free) + ["drop", "rename"] * bool(alive and free)
        kinds += ["swap"] * (len(alive) > 1)
        match draw(st.sampled_from(kinds)):
            case "add":
                table.add(draw(st.sampled_from(free)))
            case "drop":
                table.drop(draw(st.sampled_from(alive)))
            case "rename":
                table.rename(draw(st.sampled_from(alive)), draw(st.sampled_from(free)))
            case _:
                one, other = draw(st.sampled_from(list(combinations(alive, 2))))
                table.swap(one, other)
    return table


def explanations(before: Form | None, form: Form, table: Table) -> set[tuple[int, ...]]:
    """All numbers that the message's columns can have had in some story with this beginning and
    this end: each way is tried, and nothing of the story itself is looked at."""
    first = {number for number, _ in before or ()}
    newest = max(first, default=0)
    end = set(table.columns)
    found = set()
    for numbers in combinations(range(1, table.last + 1), len(form)):
        chosen = set(numbers)
        added_by_then = range(newest + 1, max(chosen, default=0) + 1)
        gone_by_then = (first | set(added_by_then)) - chosen
        never_there = {n for n in chosen if n <= newest} - first
        if not never_there and not gone_by_then & end:
            found.add(numbers)
    return found


def test_it_is_right_or_says_that_it_cannot_know() -> None:
    outcomes: Counter[str] = Counter()

    @settings(max_examples=600, deadline=None)
    @given(stories(), st.data())
    def check(table: Table, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(table.forms) - 1), label="message")
        since = data.draw(st.integers(-1, at), label="before")
        horizon = data.draw(st.integers(-1, at), label="horizon")
        form, before = table.forms[at], table.forms[since] if since >= 0 else None
        truth = tuple(number for number, _ in form)
        known = None if before is None else schema(before)

        ways = explanations(before, form, table)
        assert truth in ways
        bare = match_columns(known, message(form), table.attributes(horizon=-1))
        assert bare == (truth if len(ways) == 1 else None)

        better = match_columns(known, message(form), table.attributes(horizon))
        assert better in (truth, None)
        assert better == truth or bare is None
        if before is not None:
            stamps = table.stamps[since]
            dated = match_columns(
                schema(before, stamps), message(form), table.attributes(horizon=-1)
            )
            assert dated in (truth, None)
            assert dated == truth or bare is None
            outcomes[f"{'told' if dated else 'not told'} knowing what was altered"] += 1
            some = {n: stamps[n] for n in data.draw(st.sets(st.sampled_from(sorted(stamps))))}
            best = match_columns(schema(before, some), message(form), table.attributes(horizon))
            assert best in (truth, None)
            fullest = replace(schema(before, stamps), newest=max(stamps))
            best = match_columns(fullest, message(form), table.attributes(horizon))
            assert best in (truth, None)
            outcomes[f"{'told' if best else 'not told'} with all that there is"] += 1
        # What has been as it is for long enough needs no story.
        full = match_columns(None, message(form), table.attributes(horizon=at))
        if at == len(table.forms) - 1:
            assert full == truth
        outcomes[f"{'told' if bare else 'not told'} by the form before alone"] += 1
        outcomes[f"{'told' if better else 'not told'} with the slot's help"] += 1

    check()
    print(dict(outcomes))
    assert all(count > 50 for count in outcomes.values())
    assert len(outcomes) == 8


def told(*alterations: Callable[[Table], None], since: int, at: int) -> tuple[int, ...] | None:
    """Of a table (a, b, c), 1 to 3: matched with its schemas after so many alterations."""
    table = Table()
    for name in NAMES:
        table.add(name)
    for alter in alterations:
        alter(table)
    start = len(NAMES) - 1
    stamps = table.stamps[start + since]
    before = replace(schema(table.forms[start + since], stamps), newest=max(stamps))
    return match_columns(before, message(table.forms[start + at]), table.attributes(horizon=-1))


def gone(*numbers: int) -> list[Attribute]:
    return [Attribute(f"........pg.dropped.{n}........", n, 0, -1, dropped=True) for n in numbers]


def test_renames_and_swaps_after_the_message_mislead_nobody() -> None:
    swapped = (lambda t: t.swap(1, 2), lambda t: t.rename(3, "d"), lambda t: t.swap(1, 3))
    for at in range(4):
        assert told(*swapped, since=0, at=at) == (1, 2, 3)


def test_what_was_added_or_dropped_later_is_not_in_it() -> None:
    later = (lambda t: t.add("d"), lambda t: t.drop(2), lambda t: t.add("e"))
    forms = [(1, 2, 3), (1, 2, 3, 4), (1, 3, 4), (1, 3, 4, 5)]
    assert [told(*later, since=0, at=at) for at in range(4)] == forms
    # c may have been called d until it was dropped, after the message, and d be another one now.
    last = (lambda t: t.drop(3), lambda t: t.add("d"))
    assert [told(*last, since=0, at=at) for at in range(3)] == [None, (1, 2), None]


def test_a_column_that_was_dropped_and_made_anew_is_not_guessed() -> None:
    anew = (lambda t: t.drop(3), lambda t: t.add("c"))
    assert told(*anew, since=0, at=0) is None
    assert told(*anew, since=0, at=2) is None
    assert told(*anew, since=0, at=1) == (1, 2)
    assert told(*anew, since=1, at=2) == (1, 2, 4)
    # So long as it is known that there had been one.
    form = ((1, "a"), (4, "c"))
    attributes = [Attribute("a", 1, TEXT, -1), *gone(2, 3), Attribute("c", 4, TEXT, -1)]
    assert match_columns(schema(form[:1]), message(form), attributes) is None
    assert match_columns(replace(schema(form[:1]), newest=3), message(form), attributes) == (1, 4)


def test_columns_beside_the_published_ones() -> None:
    attributes = [
        Attribute("id", 1, 23, -1),
        Attribute("sum", 2, 23, -1, generated=True),
        Attribute("secret", 3, 25, -1),
        Attribute("x", 4, 25, -1),
    ]
    columns = [RelationColumn("id", 23, -1, True), RelationColumn("x", 25, -1, False)]
    before = replace(schema(((1, "id"), (4, "x"))), unpublished=frozenset({2, 3}))
    assert match_columns(before, columns, attributes) == (1, 4)
    more = [*attributes, Attribute("y", 5, 25, -1)]
    assert match_columns(before, columns, more) == (1, 4)
    assert match_columns(before, [*columns, RelationColumn("y", 25, -1, False)], attributes) is None
    long_ago = [replace(attribute, stable=True) for attribute in attributes]
    assert match_columns(None, columns, long_ago) == (1, 4)
    assert match_columns(None, columns, attributes) is None


def test_a_form_without_numbers_is_nothing_to_go_by() -> None:
    attributes = [*gone(1), Attribute("a", 2, TEXT, -1)]
    form = ((2, "a"),)
    assert match_columns(schema(((0, "a"),)), message(form), attributes) is None
    assert match_columns(schema(form), message(form), attributes) == (2,)
    assert match_columns(None, message(form), []) is None


def test_as_many_columns_as_a_table_can_have() -> None:
    many = 1600
    form = tuple((number, f"c{number}") for number in range(1, many + 1))
    live = [Attribute(name, number, TEXT, -1) for number, name in form]
    assert match_columns(schema(form), message(form), live) == tuple(range(1, many + 1))
    # Every second one is gone, and nobody knows since when.
    holey = [replace(a, dropped=a.attnum % 2 == 0) for a in live]
    assert match_columns(schema(form), message(form[::2]), holey) == tuple(range(1, many, 2))
    assert match_columns(None, message(form[::2]), holey) is None
