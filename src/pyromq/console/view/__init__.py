"""Parts of every page: request context, routes, tables, charts, texts."""
