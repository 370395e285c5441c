import json


def test_bench_sends_and_pulls_what_was_sent(cli, served):
    sent = json.loads(cli("bench", "send", "--topic", "bench-both", "--count", "300", "--size", "10", "-o", "json").out)
    one = json.loads(
        cli("bench", "send", "--topic", "bench-both", "--count", "5", "--in-flight", "1", "-o", "json").out
    )
    pulled = json.loads(cli("bench", "pull", "--topic", "bench-both", "-o", "json").out)

    assert (sent["sent"], sent["body_bytes"]) == (300, 10)
    assert one["p50_ms"] <= one["p99_ms"]
    assert pulled["pulled"] == 307  # each run sends one more before its clock starts
    assert pulled["messages_per_second"] > 0
