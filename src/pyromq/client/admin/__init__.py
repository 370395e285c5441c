"""The admin client: questions and changes of operators."""
