"""Files of accounts: what RocketMQ's say, what is wrong in one and where, and that no secret is told."""

from pathlib import Path

import pytest

from pyromq.errors import UsageError
from pyromq.permissions.account import DENY, PUB, SUB
from pyromq.permissions.acl_files import parse_acl_file, write_acl_file

FILE = Path("plain_acl.yml")

# As distributed with RocketMQ 4.9.
SAMPLE = b"""
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*
accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
    groupPerms:
      # the group should convert to retry topic
      - groupA=DENY
      - groupB=PUB|SUB
      - groupC=SUB
  - accessKey: rocketmq2
    secretKey: 12345678
    whiteRemoteAddress: 192.168.1.*
    # if it is admin, it could access all resources
    admin: true
"""


def account_of(text):
    (account,) = parse_acl_file(FILE, f"accounts:\n- {{{text}}}".encode()).accounts
    return account


def test_the_sample_file_of_rocketmq():
    file = parse_acl_file(FILE, SAMPLE)
    first, second = file.accounts
    assert (first.access_key, first.secret_key, first.admin) == ("RocketMQ", "12345678", False)
    assert (first.default_topic_right, first.default_group_right) == (DENY, SUB)
    assert first.rights == {
        "topicA": DENY, "topicB": PUB | SUB, "topicC": SUB,
        "%RETRY%groupA": DENY, "%RETRY%groupB": PUB | SUB, "%RETRY%groupC": SUB,
    }  # fmt: skip
    assert (second.admin, second.rights, second.from_addresses.text) == (True, {}, "192.168.1.*")
    assert [pattern.text for pattern in file.white_list] == ["10.10.103.*", "192.168.0.*"]
    assert (file.version.counter, file.doubts) == (0, ())


@pytest.mark.parametrize("content", [b"", b"\n# nothing yet\n", b"accounts:\n", b"{}"])
def test_a_file_without_content_has_no_accounts(content):
    assert parse_acl_file(FILE, content).accounts == ()


def test_what_is_absent_is_denied():
    account = account_of("accessKey: abcdefg, secretKey: 1234567")
    assert (account.right_on("any"), account.right_on("%RETRY%any"), account.admin) == (DENY, DENY, False)


def test_the_version_is_that_of_the_file():
    file = parse_acl_file(FILE, b"dataVersion:\n- counter: 3\n  timestamp: 1700000000000\n")
    assert (file.version.counter, file.version.timestamp) == (3, 1700000000000)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("accounts: [}", "plain_acl.yml, line 1: no YAML"),
        ("a: 1\naccounts:\n\t- x", "plain_acl.yml, line 3: no YAML"),
        ("- accounts", "plain_acl.yml: the file is not a mapping"),
        ("accounts: yes", "accounts is not a list"),
        ("accounts: [text]", "account 1 is not a mapping"),
        ("accounts: [{secretKey: 1234567}]", "account 1: accessKey has 0 characters"),
        ("accounts: [{accessKey: abcdefg, secretKey: hidden}]", "account 'abcdefg': secretKey has 6 characters"),
        ("accounts: [{accessKey: abcdefg, secretKey: 2001-01-01}]", "account 'abcdefg': secretKey is read as date"),
        ("accounts: [{accessKey: abcdefg, secretKey: 1234.5678}]", "account 'abcdefg': secretKey is read as float"),
        ("accounts: [{accessKey: abcdefg, secretKey: 1234567, admin: 2}]", "admin is neither true nor false"),
        ("accounts: [{accessKey: abcdefg, secretKey: 1234567, topicPerms: [a]}]", "topicPerms has 'a'; write NAME="),
        ("accounts: [{accessKey: abcdefg, secretKey: 1234567, topicPerms: ['=PUB']}]", "topicPerms has '=PUB'"),
        ("accounts: [{accessKey: abcdefg, secretKey: 1234567, whiteRemoteAddress: 1.2}]", "is read as float"),
        ("accounts: [{accessKey: abcdefg, secretKey: 1234567, whiteRemoteAddress: x}]", "'x' is not an address"),
        ("globalWhiteRemoteAddresses: [x]", "plain_acl.yml: 'x' is not an address"),
        ("dataVersion: [{counter: x}]", "dataVersion is not a list of counter and timestamp"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(content, complaint):
    with pytest.raises(UsageError) as raised:
        parse_acl_file(FILE, content.encode())
    assert complaint in str(raised.value)


@pytest.mark.parametrize(
    "content",
    [
        "accounts: [{accessKey: abcdefg, secretKey: hidden}]",
        "accounts: [{accessKey: abcdefg, secretKey: hidden-key]]",
        "accounts:\n- accessKey: abcdefg\n  secretKey: hidden: hidden",
        "accounts: [{accessKey: abcdefg, secretKey: [hidden]}]",
        "hidden",
    ],
)
def test_no_complaint_tells_a_secret(content):
    with pytest.raises(UsageError) as raised:
        parse_acl_file(FILE, content.encode())
    assert "hidden" not in str(raised.value)
    assert "hidden" not in repr(account_of("accessKey: abcdefg, secretKey: hidden-key"))


def test_what_may_be_meant_otherwise_is_doubted():
    content = b"""
accounts:
- {accessKey: abcdefg, secretKey: 1234567, topicPerms: [a=PUP], defaultGroupPerm: sub, topicPerm: [b=PUB]}
- {accessKey: abcdefg, secretKey: 7654321}
"""
    file = parse_acl_file(FILE, content)
    assert [account.secret_key for account in file.accounts] == ["1234567"]
    assert list(file.doubts) == [
        "the right 'PUP' of a in topicPerms of account 'abcdefg' is unknown and counts as DENY",
        "the right 'sub' of defaultGroupPerm of account 'abcdefg' is unknown and counts as DENY",
        "'topicPerm' of account 'abcdefg' is unknown and does nothing",
        "account 'abcdefg' comes twice; the first one counts",
    ]
    assert file.accounts[0].right_on("a") == DENY


def test_what_is_written_is_read_again():
    raw = parse_acl_file(FILE, SAMPLE).raw | {"note": "Zürich"}
    again = parse_acl_file(FILE, write_acl_file(raw))
    assert again.raw == raw
    assert again.accounts == parse_acl_file(FILE, SAMPLE).accounts
