"""Net changes in columns, step by step: the log's rows as Arrow has them (``log_rows``), what tells
rows apart (``identity``, ``comparable``), and what changes come to, of tables with a key
(``by_key``) and without one (``keyless``)."""
