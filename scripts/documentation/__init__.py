"""The documentation site: pages of this repository, and a reference made from the code. See `build`."""
