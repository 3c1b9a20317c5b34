"""A live load on the shop: several sessions act as customers and staff."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any, Self

import psycopg

from walflow.demo.shop import Sizes

__all__ = ["ShopLoad"]

Session = psycopg.Connection[Any]

_TRUNCATE_SECONDS = 4.0


class ShopLoad:
    """Runs from ``start`` to ``stop``; ``check`` raises what ended a session early."""

    def __init__(self, uri: str, sizes: Sizes, *, rate: float, sessions: int = 2) -> None:
        """``rate`` is in row changes a second, over all sessions."""
        self._stop = threading.Event()
        self._may_truncate = threading.Event()
        self._shoppers = [
            _Shopper(uri, sizes, rate / sessions, number, self._stop, self._may_truncate)
            for number in range(sessions)
        ]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        for shopper in self._shoppers:
            shopper.start()

    def stop(self) -> None:
        """End after the running transactions. Repeats safely."""
        self._stop.set()
        for shopper in self._shoppers:
            shopper.join()

    def check(self) -> None:
        for shopper in self._shoppers:
            if shopper.error is not None:
                raise shopper.error

    def allow_truncate(self) -> None:
        """From now on, truncate a table now and then. Repeats safely.

        (A copy that meets a truncate starts over, which would only prolong the demo.)
        """
        self._may_truncate.set()

    @property
    def changes(self) -> int:
        """Rows changed so far."""
        return sum(shopper.changes for shopper in self._shoppers)

    @property
    def transactions(self) -> int:
        return sum(shopper.transactions for shopper in self._shoppers)


class _Shopper(threading.Thread):
    """One session. Sessions share rows, so that they wait for each other's locks."""

    def __init__(
        self,
        uri: str,
        sizes: Sizes,
        rate: float,
        number: int,
        stop: threading.Event,
        may_truncate: threading.Event,
    ) -> None:
        super().__init__(name=f"walflow-shopper-{number}", daemon=True)
        self.changes = 0
        self.transactions = 0
        self.error: BaseException | None = None
        self._uri = uri
        self._sizes = sizes
        self._rate = rate
        self._number = number
        self._stop_event = stop
        self._may_truncate = may_truncate
        self._random = random.Random(number)
        self._truncated = 0.0

    def run(self) -> None:
        try:
            with psycopg.connect(self._uri, application_name="walflow demo load") as connection:
                self._shop(connection)
        except BaseException as error:  # raised again by check()
            self.error = error

    def _shop(self, connection: Session) -> None:
        kinds, weights = zip(
            (self._order, 40),
            (self._ship, 25),
            (self._move_customer, 12),
            (self._restock, 12),
            (self._cancel, 6),
            (self._browse, 4),
            (self._rename_article, 1),
            strict=True,
        )
        began, done = time.monotonic(), 0
        while not self._stop_event.is_set():
            work: Callable[[Session], int] = self._random.choices(kinds, weights)[0]
            try:
                with connection.transaction():
                    changed = work(connection)
            except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
                continue
            done += changed
            self.changes = done
            self.transactions += 1
            ahead = done / self._rate - (time.monotonic() - began)
            if ahead > 0:
                self._stop_event.wait(ahead)

    def _order(self, connection: Session) -> int:
        """An order with items that leave the stock, as one transaction of several statements."""
        lines = self._random.randint(1, 4)
        skus = sorted(f"SKU-{self._random.randint(1, 500)}" for _ in range(lines))
        row = connection.execute(
            "INSERT INTO shop.orders (id, customer_id, status, total, placed_at, note)"
            " VALUES (nextval('shop.order_ids'), %s, 'new', %s, clock_timestamp(), %s)"
            " RETURNING id",
            [
                self._random.randint(1, self._sizes.customers),
                round(self._random.uniform(1, 900), 2),
                "gift ✨" if lines == 4 else None,
            ],
        ).fetchone()
        assert row is not None
        connection.cursor().executemany(
            "INSERT INTO shop.order_items VALUES (%s, %s, %s, %s, %s)",
            [
                (row[0], line, sku, self._random.randint(1, 5), line + 9.99)
                for line, sku in enumerate(skus)
            ],
        )
        return (
            1
            + lines
            + self._count(
                connection,
                "UPDATE shop.inventory SET stock = stock - 1, changed_at = clock_timestamp()"
                " WHERE sku = ANY(%s)",
                [skus],
            )
        )

    def _ship(self, connection: Session) -> int:
        status = self._random.choice(["paid", "shipped", "returned"])
        deliver_on = "infinity" if self._random.random() < 0.01 else "2026-12-24"
        return self._count(
            connection,
            "UPDATE shop.orders SET status = %s, paid = true, deliver_on = %s WHERE id = %s",
            [status, deliver_on, self._random.randint(1, self._sizes.orders)],
        )

    def _move_customer(self, connection: Session) -> int:
        """Leaves the long biography alone, so Postgres does not send it."""
        customer = self._random.randint(1, self._sizes.customers // 20) * 20
        credit = "NaN" if self._random.random() < 0.05 else str(self._random.randint(0, 10**6))
        return self._count(
            connection,
            "UPDATE shop.customers SET address = address || jsonb_build_object('zip', %s::int),"
            " credit = %s::numeric, tags = array_append(tags[1:4], %s::text) WHERE id = %s",
            [self._random.randint(0, 99999), credit, f"moved, {self._number}", customer],
        )

    def _restock(self, connection: Session) -> int:
        first = self._random.randint(1, 490)
        return self._count(
            connection,
            "UPDATE shop.inventory SET stock = stock + 10, price = price + 0.01"
            " WHERE sku = ANY(%s)",
            [sorted(f"SKU-{number}" for number in range(first, first + 5))],
        )

    def _cancel(self, connection: Session) -> int:
        order = self._random.randint(1, self._sizes.orders)
        items = self._count(connection, "DELETE FROM shop.order_items WHERE order_id = %s", [order])
        return items + self._count(connection, "DELETE FROM shop.orders WHERE id = %s", [order])

    def _browse(self, connection: Session) -> int:
        due = time.monotonic() - self._truncated > _TRUNCATE_SECONDS
        if self._number == 0 and due and self._may_truncate.is_set():
            self._truncated = time.monotonic()
            connection.execute("TRUNCATE shop.cart_events")
        return self._count(
            connection,
            "INSERT INTO shop.cart_events (customer_id, payload)"
            " SELECT i, jsonb_build_object('page', i) FROM generate_series(1, 5) i",
            [],
        )

    def _rename_article(self, connection: Session) -> int:
        """Change the key, or change it back. The long manual is not sent."""
        number = self._random.randint(1, 166) * 3
        return self._count(
            connection,
            "UPDATE shop.inventory SET sku = CASE WHEN sku LIKE '%%-new'"
            " THEN replace(sku, '-new', '') ELSE sku || '-new' END"
            " WHERE sku IN (%s, %s)",
            [f"SKU-{number}", f"SKU-{number}-new"],
        )

    def _count(self, connection: Session, statement: str, values: list[Any]) -> int:
        return connection.execute(statement, values).rowcount
