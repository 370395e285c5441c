"""The admin client, for operators."""
