"""`python -m pyromq` is `pyromq`."""

from pyromq.cli.main import main

if __name__ == "__main__":
    main()
