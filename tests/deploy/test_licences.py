"""The check of licences before a release."""

import sys

import pytest
from scripts.licences import declared, unclear


@pytest.mark.parametrize(
    "said",
    [
        ["MIT"],
        ["Apache-2.0 AND BSD-2-Clause"],
        ["License :: OSI Approved :: BSD License"],
        ["3-Clause BSD License"],
        ["Python-2.0"],
        ["GPL-2.0-only OR MIT"],
        ["License agreement of this project", "License :: OSI Approved :: Python Software Foundation License"],
    ],
)
def test_a_permissive_licence_is_clear(said):
    assert unclear({"package 1.0": said}) == []


@pytest.mark.parametrize(
    "said",
    [
        [],
        ["Proprietary"],
        ["LIMITED WARRANTY, DISCLAIMER"],  # contains MIT and ISC
        ["GPL-3.0-or-later"],
        ["LGPL-2.1", "License :: OSI Approved :: MIT License"],
        ["MIT AND GPL-3.0-only"],
        ["GPL-2.0-only OR AGPL-3.0-only"],
        ["BUSL-1.1"],
        ["License :: Other/Proprietary License"],
    ],
)
def test_any_other_licence_is_for_a_person_to_read(said):
    assert [line.partition(":")[0] for line in unclear({"package 1.0": said})] == ["package 1.0"]


def test_licences_are_read_from_the_packages_of_an_environment():
    found = declared(sys.executable)
    (msgspec,) = [said for name, said in found.items() if name.startswith("msgspec ")]
    assert any("BSD" in text for text in msgspec)
    assert unclear({"msgspec": msgspec}) == []
