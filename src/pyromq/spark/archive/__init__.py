"""Archives topics in Parquet or Delta, each batch once."""
