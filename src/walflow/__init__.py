"""walflow keeps analytical tables equal to Postgres tables."""
