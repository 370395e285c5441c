"""What `dir(pyromq)` shows a user: the public names, all of which can be had, and no machinery."""

import pyromq


def test_only_public_names_are_shown_and_each_can_be_had():
    assert [name for name in dir(pyromq) if name not in pyromq.__all__] == ["__version__"]
    assert all(getattr(pyromq, name) for name in pyromq.__all__)
