"""Properties that the source, the sink and jobs add to messages.

RocketMQ has no messages without a body. With option nullBody=tombstone, a row with a null body is written as a
tombstone, and read as a row with a null body.
"""

TOMBSTONE, TOMBSTONE_BODY = "TOMBSTONE", b"\0"  # property `true` and body of a tombstone
UNDECODABLE = "UNDECODABLE"  # of a row: why its body is null, or still as stored
BORN = "BORN_TIMESTAMP"  # column bornTimestamp in ms: all messages of a run have one born time
ORIGIN = "ORIGIN"  # of copies: CLUSTER:TOPIC/BROKER/QUEUE/OFFSET
REDRIVES = "REDRIVES"  # of redriven dead letters: the number of redrives
