"""The licences of the packages of an environment, and which of them a person must read.

A permissive licence asks nothing of users but to keep its text.
"""

import json
import re
import subprocess

PERMISSIVE = re.compile(
    r"\b(MIT|BSD|Apache|ISC|PSF|Python-2\.0|Python Software Foundation|MPL|Mozilla|HPND|Unlicense|Zlib|0BSD|CC0)\b"
)
OF_SOURCES = re.compile(r"GPL|General Public|SSPL|BUSL|EUPL|CDDL")  # some ask for sources; others forbid uses
# Run by the environment's Python, which may be any version. The first line: some packages declare their whole licence.
DECLARED = """\
import importlib.metadata, json
found = {}
for each in importlib.metadata.distributions():
    said = each.metadata.get_all("License-Expression", []) + each.metadata.get_all("License", [])
    said += [line for line in each.metadata.get_all("Classifier", []) if line.startswith("License ::")]
    found[f"{each.name} {each.version}"] = [text.strip().splitlines()[0] for text in said if text.strip()]
print(json.dumps(found))
"""


def declared(python):
    """Return the licences that each package of an environment declares, by name and version."""
    done = subprocess.run([python, "-c", DECLARED], check=True, capture_output=True, text=True, encoding="utf-8")
    return json.loads(done.stdout)


def unclear(packages):
    """Return a line for each package of which a person must read the licence."""
    return [
        f"{name}: {'; '.join(said)[:80] or 'no licence named'}"
        for name, said in sorted(packages.items())
        if not any(PERMISSIVE.search(text) for text in said) or any(_binds(text) for text in said)
    ]


def _binds(text):
    """Return whether a licence has conditions that its reader cannot avoid by the other side of an `OR`."""
    return all(OF_SOURCES.search(choice) for choice in re.split(r" OR ", text))
