"""What every page is made of: the context, its routes, tables, charts, texts."""
