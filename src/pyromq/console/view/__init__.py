"""The parts that all pages share: request context, routes, tables, charts, texts."""
