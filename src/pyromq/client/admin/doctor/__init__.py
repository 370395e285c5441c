"""Why something does not work: checked step by step."""
