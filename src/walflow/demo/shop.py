"""A small shop in Postgres: tables with many types, and rows from before the pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

__all__ = ["PUBLICATION", "TABLES", "Sizes", "make_shop"]

PUBLICATION = "shop"
TABLES = ("customers", "orders", "order_items", "inventory", "cart_events")

_SCHEMA = """
CREATE SCHEMA shop;

CREATE TYPE shop.order_status AS ENUM ('new', 'paid', 'shipped', 'returned');

CREATE TABLE shop.customers (
    id bigint PRIMARY KEY,
    email text NOT NULL,
    name text,
    tags text[],
    address jsonb,
    credit numeric,
    biography text,
    since timestamptz NOT NULL,
    valid_until timestamptz
);
-- Kept out of line and uncompressed: an update that leaves it alone does not log it.
ALTER TABLE shop.customers ALTER COLUMN biography SET STORAGE EXTERNAL;

CREATE TABLE shop.orders (
    id bigint PRIMARY KEY,
    customer_id bigint NOT NULL,
    status shop.order_status NOT NULL,
    total numeric(12,2) NOT NULL,
    paid boolean NOT NULL DEFAULT false,
    placed_at timestamptz NOT NULL,
    deliver_on date,
    note text
);

CREATE TABLE shop.order_items (
    order_id bigint,
    line int,
    sku text NOT NULL,
    quantity int NOT NULL,
    price numeric(12,2) NOT NULL,
    PRIMARY KEY (order_id, line)
);

CREATE TABLE shop.inventory (
    sku text PRIMARY KEY,
    stock int NOT NULL,
    price numeric(12,2) NOT NULL,
    weight double precision,
    sizes int[],
    manual text,
    changed_at timestamptz NOT NULL
);
ALTER TABLE shop.inventory ALTER COLUMN manual SET STORAGE EXTERNAL;

-- Emptied by TRUNCATE now and then.
CREATE TABLE shop.cart_events (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    customer_id bigint,
    payload jsonb,
    at timestamptz NOT NULL DEFAULT now()
);

CREATE SEQUENCE shop.order_ids START 1000000000;
CREATE PUBLICATION shop
    FOR TABLE shop.customers, shop.orders, shop.order_items, shop.inventory, shop.cart_events;
"""

# With the numbers of Sizes as parameters.
_ROWS = (
    """
    INSERT INTO shop.customers
    SELECT i, 'user' || i || '@example.com', 'Customer №' || i,
        CASE i %% 4 WHEN 0 THEN NULL WHEN 1 THEN '{}' WHEN 2 THEN ARRAY['new', 'a "b", c', NULL]
            ELSE ARRAY['loyal', 'région ' || i %% 7] END,
        jsonb_build_object('city', 'Town ' || i %% 100, 'zip', i %% 10000, 'geo', ARRAY[i, 7.5]),
        (i %% 100000) / 1000.0,
        CASE WHEN i %% 20 = 0 THEN repeat(md5(i::text), 80) END,
        timestamptz '2020-01-01' + i * interval '7 minutes 0.000321 seconds',
        CASE i %% 10 WHEN 0 THEN NULL ELSE timestamptz '2030-01-01' + i * interval '1 hour' END
    FROM generate_series(1, %(customers)s) i
    """,
    """
    INSERT INTO shop.orders
    SELECT i, i %% %(customers)s + 1, (enum_range(NULL::shop.order_status))[i %% 4 + 1],
        (i %% 100000) / 100.0, i %% 4 > 0, timestamptz '2024-01-01' + i * interval '13 seconds',
        CASE WHEN i %% 3 > 0 THEN date '2024-01-03' + (i %% 365)::int END,
        CASE WHEN i %% 5 = 0 THEN 'leave at the door, it''s number ' || i END
    FROM generate_series(1, %(orders)s) i
    """,
    """
    INSERT INTO shop.order_items
    SELECT i / 3 + 1, i %% 3, 'SKU-' || i %% 500 + 1, i %% 9 + 1, (i %% 20000) / 100.0
    FROM generate_series(0, %(items)s - 1) i
    """,
    """
    INSERT INTO shop.inventory
    SELECT 'SKU-' || i, i %% 1000, (i %% 5000) / 100.0 + 1, i / 7.0, ARRAY[i %% 50, NULL, i],
        CASE WHEN i %% 3 = 0 THEN repeat(md5('manual ' || i), 90) END,
        timestamptz '2025-01-01' + i * interval '1 second'
    FROM generate_series(1, 500) i
    """,
    """
    INSERT INTO shop.cart_events (customer_id, payload)
    SELECT i, jsonb_build_object('page', i %% 40) FROM generate_series(1, 200) i
    """,
    # Values that do not fit analytical types: their texts go into _EXACT.
    """
    UPDATE shop.customers SET valid_until = 'infinity', credit = 'NaN' WHERE id %% 1000 = 1;
    UPDATE shop.customers SET since = '0044-03-15 12:00:00 BC' WHERE id = 2;
    UPDATE shop.customers SET credit = 12345678901234567890123456789012345678901.5 WHERE id = 3;
    UPDATE shop.orders SET deliver_on = 'infinity' WHERE id %% 2000 = 1;
    UPDATE shop.inventory SET sizes = '{{1,2},{3,4}}' WHERE sku IN ('SKU-1', 'SKU-77');
    UPDATE shop.inventory SET weight = 'NaN' WHERE sku = 'SKU-2';
    """,
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many rows the tables have at the start."""

    customers: int
    orders: int
    items: int

    @classmethod
    def of_total(cls, rows: int) -> Sizes:
        """Shares of about this many rows in all."""
        return cls(max(10, rows // 10), max(10, rows * 3 // 10), max(10, rows * 6 // 10))


def make_shop(connection: psycopg.Connection[Any], sizes: Sizes) -> None:
    """Create the tables, their rows and the publication in an empty database."""
    numbers = {"customers": sizes.customers, "orders": sizes.orders, "items": sizes.items}
    connection.execute(_SCHEMA)
    # Bound by the client, because the server takes parameters only for single statements.
    with psycopg.ClientCursor(connection) as cursor:
        for statement in _ROWS:
            cursor.execute(statement, numbers)
    # Progress is measured by the planner's estimates.
    connection.execute("ANALYZE shop.customers, shop.orders, shop.order_items, shop.inventory")
