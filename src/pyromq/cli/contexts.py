"""Contexts: clusters that a person has named, each with its name servers, TLS and account, in one file of theirs.

The file holds variables of the environment by context, and no secrets: of an account's only where it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click

from pyromq.cli.connecting import secret_in
from pyromq.errors import UsageError

CONTEXT = "PYROMQ_CONTEXT"  # the variable that names one
SECRET = "PYROMQ_SECRET_KEY"


def contexts_file() -> Path:
    """Where contexts are kept."""
    return Path(click.get_app_dir("pyromq")) / "contexts.json"


@dataclass
class Contexts:
    """All contexts, and the name of the one that holds where no other is named; None where none does."""

    current: str | None = None
    variables: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def load(cls) -> Contexts:
        """Read the file, if there is one. Raises `UsageError` for one that cannot be understood."""
        path = contexts_file()
        try:
            content = json.loads(path.read_bytes())
            contexts = cls(content["current"], content["contexts"])
            texts = [text for variables in contexts.variables.values() for text in variables.values()]
            if not all(isinstance(text, str) for text in texts):
                raise ValueError("contexts are texts by name")
        except FileNotFoundError:
            return cls()
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(f"contexts cannot be read from {path}: {error!r}; mend it, or delete it") from error
        return contexts

    def save(self) -> None:
        """Write the file, for its owner only, whole or not at all."""
        path = contexts_file()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        beside = path.with_suffix(".new")
        beside.touch(mode=0o600)
        beside.write_text(json.dumps({"current": self.current, "contexts": self.variables}, indent=2), encoding="utf-8")
        beside.replace(path)

    def get(self, name: str) -> dict[str, str]:
        """Return a context's variables. Raises `UsageError` for a name that is none."""
        try:
            return self.variables[name]
        except KeyError:
            known = ", ".join(sorted(self.variables)) or "none"
            advice = "`pyromq context set` makes one"
            raise UsageError(f"there is no context {name!r}; there are: {known}. {advice}") from None


def variables_in_use(named: str | None, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what the context that is `named`, else the current one, says; the environment outranks the latter.

    Raises `UsageError` for a name that is none, and for an account's secret that cannot be read.
    """
    contexts = Contexts.load()
    if named is not None:
        variables = contexts.get(named)
    else:
        of_current = contexts.variables.get(contexts.current or "", {})
        variables = {name: value for name, value in of_current.items() if name not in environment}
    return {name: secret_in(value) if name == SECRET else value for name, value in variables.items()}
