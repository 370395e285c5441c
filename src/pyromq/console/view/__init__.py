"""What every page is made of: the visit, its routes, tables, charts, texts."""
