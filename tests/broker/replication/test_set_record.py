"""The values of the registry: JSON both ways, and clear errors for what does not fit."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.broker.replication.set_record import (
    Loss,
    Member,
    ReplicaInfo,
    SetRecord,
    SetSettings,
    decode_value,
)
from pyromq.errors import ProtocolError

numbers = st.integers(1, 255)
members = st.builds(Member, numbers, st.integers(0, 1 << 62))
lists = st.lists(members, max_size=4, unique_by=lambda member: member.number).map(tuple)
losses = st.builds(Loss, st.integers(1, 99), numbers, st.integers(0, 1 << 62), lists, st.text(max_size=9))
records = st.builds(
    SetRecord, st.integers(1, 1 << 40), st.none() | numbers, lists, st.none() | numbers, st.lists(losses).map(tuple)
)


@given(records)
def test_a_record_is_read_as_it_was_written(record):
    assert decode_value(SetRecord, msgspec.json.encode(record), "state") == record


def test_the_json_of_a_record():
    record = SetRecord(7, 2, (Member(1, 8817), Member(2, 4403)))
    text = '{"epoch":7,"master":2,"inSync":[[1,8817],[2,4403]],"preferred":null,"losses":[]}'
    assert msgspec.json.encode(record).decode() == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "SetRecord"),
        ("{}", "epoch"),
        ('{"epoch":0,"master":null,"inSync":[]}', "epoch 0 is below 1"),
        ('{"epoch":1,"master":300,"inSync":[]}', "replica number 300"),
        ('{"epoch":1,"master":1,"inSync":[[1,5],[1,6]]}', "twice in the in-sync list"),
        ('{"epoch":1,"master":1,"inSync":[[1]]}', "inSync"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_key(text, reason):
    with pytest.raises(ProtocolError, match="/pyromq/c/s/state") as caught:
        decode_value(SetRecord, text.encode(), "/pyromq/c/s/state")
    assert reason in str(caught.value)


def test_settings_that_differ_are_named_with_both_values():
    mine, theirs = SetSettings(1 << 30, 2, False), SetSettings(1 << 20, 2, True)
    text = (
        "mappedFileSizeCommitLog is 1073741824 here and 1048576 there, enableElectUncleanMaster is false here and true"
    )
    assert mine.difference(theirs) == text + " there"
    assert mine.difference(mine) is None


def test_a_replica_registers_its_addresses():
    info = ReplicaInfo(2, 77, "10.0.0.2:10911", "10.0.0.2:10912", "5.0", end=900, last_epoch=3)
    assert decode_value(ReplicaInfo, msgspec.json.encode(info), "replica/2") == info
