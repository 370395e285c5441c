"""How many stored records a subscription by an SQL92 expression judges in a second of one core."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from random import Random

from pyromq.clock import SystemClock
from pyromq.filter.sql import parse_sql
from pyromq.message import StoredMessage, encode_properties
from pyromq.store.message_store import MessageStore
from pyromq.store.store_config import StoreConfig

RECORDS = 100_000
EXPRESSIONS = ("price >= 90", "price >= 90 AND region IN ('EU', 'US')", "price BETWEEN 90 AND 99 OR missing = 'x'")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=5)
    rounds = arguments.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        store = MessageStore(StoreConfig(Path(folder)), SystemClock(), store_address=bytes(8))
        store.open()
        random = Random(1)
        for number in range(RECORDS):
            own = {"price": str(random.randrange(100)), "region": "EU"}
            common = {"UNIQ_KEY": f"{number:032d}", "KEYS": f"order-{number}", "WAIT": "true", "TAGS": "paid"}
            store.append(StoredMessage("orders", bytes(128), encode_properties(common | own)))
        print("| expression | wanted | records judged a second of processor time |")
        print("|---|---:|---:|")
        for expression in EXPRESSIONS:
            taken = [_judged(store, expression) for _ in range(rounds)]
            wanted = taken[0][0] / RECORDS
            rate = statistics.median(RECORDS / seconds for _, seconds in taken)
            print(f"| `{expression}` | {wanted:.0%} | {rate:,.0f} |")
        store.close()


def _judged(store: MessageStore, expression: str) -> tuple[int, float]:
    """Read the queue to its end as pulls do; return how many were wanted, and the processor time."""
    started, offset, wanted = time.process_time(), 0, 0
    while offset < RECORDS:
        found = store.read("orders", 0, offset, 256, max_bytes=1 << 19, wanted=parse_sql(expression))
        offset = found.next_offset
        wanted += found.count
    return wanted, time.process_time() - started


if __name__ == "__main__":
    main()
