"""Archives RocketMQ topics as Parquet files or Delta tables; each micro-batch is written once."""
