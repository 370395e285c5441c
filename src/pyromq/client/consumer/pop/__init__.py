"""Consumption message by message (pop): a message is invisible to the group while it is worked on."""
