"""What the catalog says: publications, tables, types, rights."""
