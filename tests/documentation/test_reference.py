"""The reference is made from the code, and leaves nothing out."""

import re

import pytest
from scripts.documentation import reference
from scripts.documentation.declarations import settings_of

import pyromq
from pyromq import errors
from pyromq.broker.config import BrokerConfig
from pyromq.cli.main import COMMANDS


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    reference.write(folder)
    return {str(page.relative_to(folder)): page.read_text() for page in folder.rglob("*.md")}


def test_every_public_class_is_on_a_page(pages):
    headings = set(re.findall(r"^## (?:Broker: |.*: )?(\w+)$", "\n".join(pages.values()), re.MULTILINE))
    assert set(pyromq.__all__) - headings == set(), "add them to CLASSES of scripts/documentation/reference.py"


def test_every_command_has_a_page(pages):
    assert {f"commands/{name}.md" for name in COMMANDS} <= set(pages)
    assert "--delay" in pages["commands/send.md"]
    assert "## pyromq dlq redrive" in pages["commands/dlq.md"]


@pytest.mark.parametrize("config", reference.described_settings(), ids=lambda config: config.__name__)
def test_every_setting_says_what_it_is_for(config):
    assert [setting.name for setting in settings_of(config) if not setting.reason] == []


def test_a_setting_has_its_default_its_unit_and_the_comment_at_it():
    settings = {setting.name: setting for setting in settings_of(BrokerConfig)}
    assert settings["offsets_interval_ms"].default == "5 000"
    assert settings["offsets_interval_ms"].unit == "ms"
    assert "consumer offsets" in settings["offsets_interval_ms"].reason
    assert "crash" in settings["offsets_interval_ms"].reason
    assert settings["max_message_bytes"].default == "4194304 (4 MiB)"
    assert settings["vip_channel"].reason.startswith("Listen on `port` - 2")  # above the field, in lines


def test_settings_of_brokers_are_told_by_their_names_in_the_file(pages):
    assert "| `flushDiskType` | `flush` | `FlushMode.ASYNC` |" in pages["server-settings.md"]
    assert "| `maxTopics` | `topics` | `50 000` |" in pages["server-settings.md"]


@pytest.mark.parametrize("error", reference.error_classes(), ids=lambda error: error.__name__)
def test_every_error_has_a_cause_and_a_cure_of_its_own(error, pages):
    assert error.__doc__
    assert "cure" in vars(error)
    assert f"## {error.__name__}\n" in pages["errors.md"]


def test_errors_come_from_one_file():
    assert errors.MQError in reference.error_classes()
    assert len(reference.error_classes()) > 40


def test_search_words_are_of_pages_and_errors_that_exist(pages):
    known = {name.removesuffix(".md") for name in pages} | {error.__name__ for error in reference.error_classes()}
    assert set(reference.search_words()) - known == set()
