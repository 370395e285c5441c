"""The fields that a visitor typed into a form, so that a refused form is shown again as it was typed."""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from pyromq.console.security.sessions import RefusedForm


class TypedForm:
    """The values of a form's fields: those of the refused form if there is one, else the values that the page gives.

    `error` is the reason of the refusal.
    """

    def __init__(self, refused: RefusedForm | None) -> None:
        self._fields: Mapping[str, str] | None = refused.fields if refused is not None else None
        self.error = refused.error if refused is not None else ""

    def text(self, name: str, otherwise: object = "") -> str:
        return str(otherwise) if self._fields is None else self._fields.get(name, "")

    def selected(self, name: str, value: str, otherwise: str = "") -> Markup:
        """Return the attribute of an option of a select field: `selected` if the field has this value."""
        return Markup("selected" if self.text(name, otherwise) == value else "")

    def checked(self, name: str, otherwise: bool = False) -> Markup:
        """Return the attribute of a checkbox. `otherwise` tells whether the page ticks the checkbox."""
        ticked = otherwise if self._fields is None else name in self._fields
        return Markup("checked" if ticked else "")

    @property
    def opened(self) -> Markup:
        """The attribute of a `details` element around the form, which is open if the form was refused."""
        return Markup("open" if self._fields is not None else "")
