"""The forms of a page, read as a browser reads them."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

EMPTY_TYPES = ("submit", "button", "reset")


@dataclass
class Form:
    """A form: what it sends if nothing is typed, and which of its fields a visitor can change, by kind."""

    action: str
    method: str
    values: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    choices: dict[str, list[str]] = field(default_factory=dict)


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.forms = []
        self._form = self._text = self._select = None

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        name = attributes.get("name")
        if tag == "form":
            self._form = Form(attributes.get("action", ""), attributes.get("method", "get"))
            self.forms.append(self._form)
        elif self._form is None:
            return
        elif tag == "textarea":
            self._text = name
            self._note(name, "textarea", "")
        elif tag == "select":
            self._select = name
            self._form.kinds[name] = "select"
            self._form.choices[name] = []
        elif tag == "option" and self._select:
            value = attributes.get("value")
            self._option = value is None
            self._choose(value if value is not None else "", "selected" in attributes)
        elif tag == "input" and name and "readonly" not in attributes:
            self._input(name, attributes)

    def _input(self, name, attributes):
        kind = attributes.get("type", "text")
        value = attributes.get("value", "on" if kind in ("checkbox", "radio") else "")
        if kind in ("checkbox", "radio"):
            self._form.kinds[name] = kind
            self._form.choices.setdefault(name, []).append(value)
            if "checked" in attributes:
                self._form.values[name] = value
        elif kind == "hidden":
            self._form.values[name] = value
        elif kind not in EMPTY_TYPES:
            self._note(name, kind, value)

    def _note(self, name, kind, value):
        self._form.kinds[name] = kind
        self._form.values[name] = value

    def _choose(self, value, is_selected):
        self._form.choices[self._select].append(value)
        if is_selected or self._select not in self._form.values:
            self._form.values[self._select] = value
        self._selected = is_selected or len(self._form.choices[self._select]) == 1

    def handle_data(self, data):
        if self._text and self._form:
            self._form.values[self._text] += data
        elif self._select and self._form and self._form.choices[self._select] and getattr(self, "_option", False):
            self._form.choices[self._select][-1] = data.strip()
            if self._selected:
                self._form.values[self._select] = data.strip()
            self._option = False

    def handle_endtag(self, tag):
        if tag == "form":
            self._form = None
        elif tag == "textarea":
            self._text = None
            if self._form:
                name = list(self._form.values)[-1]
                self._form.values[name] = self._form.values[name].removeprefix("\n")
        elif tag == "select":
            self._select = None


def forms_of(page):
    """Return the forms of a page, in its order."""
    reader = _Reader()
    reader.feed(page)
    return reader.forms


def typed_into(form, number=3):
    """Return the fields of a form as a visitor fills them: each other than it was, where it can be."""
    typed = {name: value for name, value in form.values.items() if name not in form.kinds}
    for name, kind in form.kinds.items():
        before = form.values.get(name)
        if kind in ("select", "radio"):
            typed[name] = next((each for each in form.choices[name] if each != before), before)
        elif kind == "checkbox":
            if before is None:
                typed[name] = form.choices[name][0]
        elif kind == "number":
            typed[name] = str(number)
        elif kind.startswith("datetime"):
            typed[name] = "2026-11-22T17:00"
        else:
            typed[name] = f"typed into {name}"
    return typed
