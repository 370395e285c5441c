"""The user's file of contexts: named clusters, each with its name servers, TLS and account.

The file maps each context to environment variables. The file has no secrets, only the paths of files with secrets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click

from pyromq.cli.connection_options import secret_in
from pyromq.errors import UsageError

CONTEXT = "PYROMQ_CONTEXT"  # environment variable that selects a context
SECRET = "PYROMQ_SECRET_KEY"


def context_file_path() -> Path:
    return Path(click.get_app_dir("pyromq")) / "contexts.json"


@dataclass
class ContextFile:
    """All contexts of the user. `current` names the context that applies unless another one is named."""

    current: str | None = None
    variables: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def load(cls) -> ContextFile:
        """Read the file of contexts; a missing file means no contexts. Raises `UsageError` for a malformed file."""
        path = context_file_path()
        try:
            content = json.loads(path.read_bytes())
            contexts = cls(content["current"], content["contexts"])
            texts = [text for variables in contexts.variables.values() for text in variables.values()]
            if not all(isinstance(text, str) for text in texts):
                raise ValueError("a context maps names to strings")
        except FileNotFoundError:
            return cls()
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(f"contexts cannot be read from {path}: {error!r}; correct or delete the file") from error
        return contexts

    def save(self) -> None:
        """Replace the file of contexts durably. Only its owner may read the file."""
        from pyromq.whole_file import replace_file  # here: only commands that change contexts load it

        content = json.dumps({"current": self.current, "contexts": self.variables}, indent=2)
        replace_file(context_file_path(), content.encode())

    def get(self, name: str) -> dict[str, str]:
        """Return the environment variables of a context. Raises `UsageError` for an unknown name."""
        try:
            return self.variables[name]
        except KeyError:
            known = ", ".join(sorted(self.variables)) or "none"
            advice = "`pyromq context set` creates one"
            raise UsageError(f"context {name!r} does not exist; existing ones: {known}. {advice}") from None


def variables_in_use(named: str | None, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of the context `named`; without a name, those of the current context.

    Variables of the current context that the environment sets are left out. Raises `UsageError` for an unknown name,
    and `click.BadParameter` if the file of the secret cannot be read.
    """
    contexts = ContextFile.load()
    if named is not None:
        variables = contexts.get(named)
    else:
        of_current = contexts.variables.get(contexts.current or "", {})
        variables = {name: value for name, value in of_current.items() if name not in environment}
    return {name: secret_in(value) if name == SECRET else value for name, value in variables.items()}
