"""A machine of the simulated set: its folder, its clock, and the process that does what a `Replica` asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyromq.broker.replication import replica_actions as act
from pyromq.broker.replication.peers import standing
from pyromq.broker.replication.replica import Replica
from pyromq.broker.replication.replica_port import ReplicaConfig
from pyromq.broker.replication.replica_stream import Frame, FrameRequest, Hello, Report
from pyromq.broker.replication.set_record import Member, ReplicaInfo
from pyromq.testing.simulated_disk import Killed

from .model_store import Died, ModelEpochs, ModelLog
from .network import Connection

if TYPE_CHECKING:
    from .set_life import SetLife

TICK_SECONDS = 0.1
KEEP_SECONDS = 0.7
PIECES = (5, 24, 400)  # bytes of the log in one frame
ANSWER_SECONDS = 0.5  # a request to the registry without an answer is given up then


KILLED = (Died, Killed)


class Machine:
    """One of the set's machines, with everything that outlives a process."""

    epochs_class = ModelEpochs
    replica_class = Replica
    renews_incarnation = True  # at a start that may have lost reported bytes

    def __init__(self, life: SetLife, number: int) -> None:
        self.life = life
        self.number = number
        self.log = ModelLog()
        self.epochs = self.epochs_class()
        self.incarnation = life.random.getrandbits(40)
        self.process: Process | None = None
        self.is_on = True
        self.highest_promise = 0
        self.paused_until = 0.0
        self._clock_offset = life.random.random() * 1000
        self._clock_stood_at: float | None = None
        self._starts = 0

    # -- clock

    def clock(self) -> float:
        """Return what this machine takes for the time."""
        true = self.life.time.now if self._clock_stood_at is None else self._clock_stood_at
        return true + self._clock_offset

    def jump(self, seconds: float) -> None:
        self._clock_offset += seconds

    def stop_clock(self) -> None:
        self._clock_stood_at = self.life.time.now

    def start_clock(self) -> None:
        if self._clock_stood_at is not None:
            self._clock_offset -= self.life.time.now - self._clock_stood_at
            self._clock_stood_at = None

    # -- life

    def start(self, number: int = -1) -> None:
        """Begin a process, unless one runs or a later start is planned."""
        if self.process is not None or number not in (-1, self._starts):
            return
        self.is_on = True
        try:
            self.open_folder()
        except KILLED:
            self.close_folder(in_order=False)
            self.start_after(0.1)
            return
        self.life.check_promise(self)
        self.process = Process(self)
        self.process.begin()

    def start_after(self, seconds: float) -> None:
        self._starts += 1
        self.life.time.after(seconds, self.start, self._starts)

    def end(self, *, silent: bool = False, in_order: bool = False) -> None:
        """End the process, whatever it does. `silent`: no other machine is told by closed connections."""
        process, self.process = self.process, None
        self.paused_until = 0.0
        if process is not None:
            process.close(silent=silent)
            self.close_folder(in_order=in_order)

    def lose_power(self) -> None:
        self.end(silent=True)
        self.is_on = False
        self.lose_unflushed()
        self.life.check_listed()

    def lose_folder(self) -> None:
        self.lose_power()
        self.empty_folder()
        self.highest_promise = 0

    # -- folder

    def open_folder(self) -> None:
        self.log.reopen()
        self.epochs.reopen()

    def close_folder(self, *, in_order: bool) -> None:
        if in_order:
            self.log.flush()

    def cut_folder(self, action: act.CutLog) -> None:
        """Cut the log of a process that has ended in order."""
        self.log.cut(action.end)
        self.epochs.cut(action.end)

    def lose_unflushed(self) -> None:
        log = self.log
        log.cut(self.life.random.randint(log.flushed_end, log.written_end))
        if not self.life.sync_flush and self.renews_incarnation:
            self.incarnation = self.life.random.getrandbits(40)

    def empty_folder(self) -> None:
        self.log, self.epochs = ModelLog(), self.epochs_class()
        self.incarnation = self.life.random.getrandbits(40)

    def replace_log(self) -> None:
        """Begin an empty log under a new incarnation; the promise stays."""
        self.log = ModelLog()
        self.epochs.cut(0)
        self.incarnation = self.life.random.getrandbits(40)

    def die_at_a_write(self) -> None:
        self.epochs.dies_in = self.life.random.randint(1, 5)

    def live_on(self) -> None:
        """Take back `die_at_a_write`."""
        self.epochs.dies_in = -1

    @property
    def member(self) -> Member:
        return Member(self.number, self.incarnation)


class Process:
    """What runs on a machine between two crashes: one `Replica`, its connections, and what feeds them."""

    def __init__(self, machine: Machine) -> None:
        life = machine.life
        config = ReplicaConfig("c", "set", machine.member, life.settings, life.sync_flush)
        self.machine = machine
        self.life = life
        self.log = machine.log
        self.replica = machine.replica_class(config, machine.log, machine.epochs, now=machine.clock())
        self.ours: dict[int, Connection] = {}
        self.theirs: dict[int, Connection] = {}
        self.feeds: dict[int, list[Any]] = {}  # number: connection, epoch, log offset
        self.serve = act.Serve(None, None)
        self.may_append = False
        self.trouble: str | None = None
        self.handed_over = ""
        self.checked_end = 0  # up to there, what is confirmed here has been compared
        self._told_confirmed = 0
        self._ticks = 0
        self._waiting: list[tuple[Callable[..., None], tuple[object, ...]]] = []  # what came during a pause

    @property
    def is_alive(self) -> bool:
        return self.machine.process is self

    # -- events

    def run(self, function: Callable[..., None], *arguments: object) -> None:
        """Call a function; at the end of the pause if there is one, in order."""
        if self.machine.process is not self:
            return
        if self.machine.paused_until > self.life.time.now or self._waiting:
            if not self._waiting:
                self.life.time.after(self.machine.paused_until - self.life.time.now, self._resume)
            self._waiting.append((function, arguments))
        else:
            self._call(function, arguments)

    def _call(self, function: Callable[..., None], arguments: tuple[object, ...]) -> None:
        try:
            function(*arguments)
        except KILLED:
            self.life.note(f"{self.machine.number} killed at a write")
            self.machine.live_on()
            self.machine.end()
            self.machine.start_after(self.life.random.choice((0.05, 0.3, 4.0)))

    def _resume(self) -> None:
        """Do what came during the pause."""
        pause = self.machine.paused_until - self.life.time.now
        if pause > 0:
            self.life.time.after(pause, self._resume)
            return
        waiting, self._waiting = self._waiting, []
        for function, arguments in waiting:
            if self.is_alive:
                self._call(function, arguments)

    def event(self, name: str, *arguments: object, **named: object) -> None:
        """Give the replica an event, and do what it asks."""
        self.run(self._do_event, name, arguments, named)

    def _do_event(self, name: str, arguments: tuple[object, ...], named: dict[str, object]) -> None:
        machine = self.machine
        actions = getattr(self.replica, name)(machine.clock(), *arguments, **named)
        machine.highest_promise = max(machine.highest_promise, machine.epochs.promised)
        for action in actions:
            if machine.process is self:
                DO[type(action)](self, action)

    def begin(self) -> None:
        self._tick()
        self._keep_lease()

    def _tick(self) -> None:
        if not self.is_alive:
            return
        time = self.life.time
        time.after(TICK_SECONDS, self._tick)
        if self.machine.paused_until > time.now:
            return
        self.run(self._work)

    def _work(self) -> None:
        self._ticks += 1
        if self._ticks % 2:
            self._heartbeat()
        random = self.life.random.random()
        self._append()
        self._do_event("tick", (), {"is_waiting": random < 0.9})
        if not self.is_alive:
            return
        if random < 0.4:
            self.log.flush()
        self._do_event("log_grew", (), {})
        if self.is_alive:
            self.pump()
            self.life.read(self)

    def _append(self) -> None:
        refused = self.serve.sends_refused is not None
        chance = self.life.random.random()
        if self.may_append and self.replica.is_master and not self.log.is_full and chance < (0.1 if refused else 0.7):
            for _ in range(self.life.random.choice((1, 1, 2, 5))):
                self.log.append_record(self.life.next_record())

    def _heartbeat(self) -> None:
        frame = Frame(self.replica.epoch, self.log.end, self.log.confirmed_end, b"")
        for number, connection in self.theirs.items():
            connection.send(1, Process.event, "frame_received", self.machine.number, frame)
            assert connection.numbers[0] == number

    def pump(self) -> None:
        """Send what the log has more than the fed links, and the confirmed end."""
        end = self.log.written_end
        confirmed = self.log.confirmed_end
        is_news = confirmed > self._told_confirmed
        self._told_confirmed = confirmed
        for connection, epoch, at in list(self.feeds.values()):
            feed = self.feeds[connection.numbers[0]]
            if at == end and is_news:
                self._send_frame(connection, Frame(epoch, end, confirmed, b""))
            while at < end:
                data = self.log.piece(at, self.life.random.choice(PIECES))
                self._send_frame(connection, Frame(epoch, at, confirmed, data))
                at += len(data)
            feed[2] = at

    def _send_frame(self, connection: Connection, frame: Frame) -> None:
        connection.send(1, Process.event, "frame_received", self.machine.number, frame)

    # -- registry

    def _keep_lease(self) -> None:
        if not self.is_alive:
            return
        self.life.time.after(KEEP_SECONDS, self._keep_lease)
        if self.machine.paused_until > self.life.time.now:
            return
        sent = self.machine.clock()
        self.life.ask(self.machine, lambda: self._renewed(sent), lambda answer: self.event("lease_renewed", sent), None)

    def _renewed(self, sent: float) -> None:
        last_epoch = standing(self.machine.epochs.lines, self.log.end)[0]
        info = ReplicaInfo(self.machine.number, self.machine.incarnation, "a", "h", "1", self.log.end, last_epoch)
        self.life.registry.renew(self.life.time.now, info)

    def read_record(self, action: act.ReadRecord) -> None:
        life, number = self.life, action.number
        life.ask(
            self.machine,
            lambda: life.registry.read(life.time.now),
            lambda reading: self.event("record_read", number, reading),
            lambda: self.event("read_failed", number),
        )

    def swap_record(self, action: act.SwapRecord) -> None:
        number = action.number

        def answered(revision: int | None) -> None:
            if revision is None:
                self.event("swap_failed", number)
            else:
                self.event("swap_done", number, revision)

        def execute() -> int | None:
            return self.life.registry.swap(action.revision, action.record)

        self.life.ask(self.machine, execute, answered, lambda: self.event("swap_failed", number))

    # -- links

    def dial(self, action: act.Dial) -> None:
        self.life.time.after(self.life.network.delay(), self._dialled, action.number)

    def _dialled(self, number: int) -> None:
        own = self.machine.number
        other = self.life.machines[number]
        if not self.is_alive:
            return
        if not other.is_on or {(own, number), (number, own)} & self.life.network.cuts:
            self.life.time.after(1.0, self.event, "disconnected", act.Link(number, True))
        elif other.process is None:
            self.event("refused", number)
        else:
            connection = Connection(self.life.network, (own, number), (self, other.process))
            self.life.network.connections.append(connection)
            self.ours[number] = connection
            self.event("connected", number)

    def send_hello(self, action: act.SendHello) -> None:
        link = action.link
        connection = (self.ours if link.is_ours else self.theirs).get(link.number)
        if connection is not None:
            side = 0 if link.is_ours else 1
            connection.send(side, Process.got_hello, connection, 1 - side, action.hello)

    def got_hello(self, connection: Connection, side: int, hello: Hello) -> None:
        number = connection.numbers[1 - side]
        if side == 1 and self.theirs.get(number) is not connection:
            old = self.theirs.get(number)
            if old is not None:
                self._drop(old, 1)
                self.event("disconnected", act.Link(number, False))
            self.theirs[number] = connection
        self.event("hello_received", act.Link(number, side == 0), hello)

    def send_request(self, action: act.SendRequest) -> None:
        connection = self.ours.get(action.number)
        if connection is not None:
            connection.send(0, Process.got_request, connection, action.request)

    def got_request(self, connection: Connection, request: FrameRequest) -> None:
        if self.theirs.get(connection.numbers[0]) is connection:
            self.event("request_received", connection.numbers[0], request)

    def send_report(self, action: act.SendReport) -> None:
        connection = self.ours.get(action.number)
        if connection is not None:
            connection.send(0, Process.got_report, connection, action.report)

    def got_report(self, connection: Connection, report: Report) -> None:
        if self.theirs.get(connection.numbers[0]) is connection:
            self.event("report_received", connection.numbers[0], report)
            self.pump()

    def feed(self, action: act.Feed) -> None:
        connection = self.theirs.get(action.number)
        if connection is not None:
            self.feeds[action.number] = [connection, action.epoch, action.start]
            self.pump()

    def close_link(self, action: act.CloseLink) -> None:
        link = action.link
        if action.reason:
            self.life.wrong(f"{self.machine.number} refuses {link.number}: {action.reason}")
        connection = (self.ours if link.is_ours else self.theirs).get(link.number)
        if connection is not None:
            self._drop(connection, 0 if link.is_ours else 1)

    def lost(self, connection: Connection, side: int) -> None:
        """Note that the other side closed a connection."""
        number = connection.numbers[1 - side]
        connection.is_open[side] = False
        if (self.ours if side == 0 else self.theirs).get(number) is connection:
            self._drop(connection, side)
            self.event("disconnected", act.Link(number, side == 0))

    def _drop(self, connection: Connection, side: int) -> None:
        number = connection.numbers[1 - side]
        connection.send(side, Process.lost, connection, 1 - side)
        connection.is_open[side] = False
        (self.ours if side == 0 else self.theirs).pop(number, None)
        if side == 1:
            self.feeds.pop(number, None)

    def close(self, *, silent: bool) -> None:
        for side, connections in enumerate((self.ours, self.theirs)):
            for connection in list(connections.values()):
                if silent:
                    connection.is_open[side] = False
                else:
                    self._drop(connection, side)

    # -- roles

    def confirmed(self, action: act.Confirmed) -> None:
        self.life.check_confirmed(self, self.log.confirmed_end)
        self.life.time.after(0, self.pump)

    def become_master(self, action: act.BecomeMaster) -> None:
        self.life.elected(self, action.epoch)
        self.life.time.after(self.life.random.choice((0.01, 0.2)), self._promoted)

    def _promoted(self) -> None:
        self.may_append = True

    def set_serve(self, action: act.Serve) -> None:
        self.serve = action

    def step_down(self, action: act.StepDown) -> None:
        self.life.note(f"{self.machine.number} steps down: {action.reason}")
        self._reopen()

    def cut_log(self, action: act.CutLog) -> None:
        machine = self.machine
        self.life.note(f"{machine.number} cuts {machine.log.written_end} to {action.end}, epoch {action.epoch}")
        machine.end(in_order=True)
        machine.cut_folder(action)
        machine.start_after(self.life.random.choice((0.02, 0.1, 0.5)))
        self.life.check_listed()

    def replace_log(self, action: act.ReplaceLog) -> None:
        machine = self.machine
        self.life.note(f"{machine.number} begins anew at {action.first}: {action.reason}")
        machine.end(in_order=True)
        machine.replace_log()
        machine.start_after(self.life.random.choice((0.02, 0.1, 0.5)))

    def _reopen(self) -> None:
        self.machine.end(in_order=True)
        self.machine.start_after(self.life.random.choice((0.02, 0.1, 0.5)))

    def ask_operator(self, action: act.AskOperator) -> None:
        self.trouble = action.text
        self.life.note(f"{self.machine.number} asks: {action.text}")

    def stop(self, action: act.StopReplica) -> None:
        self.life.wrong(f"{self.machine.number} stops: {action.reason}")

    def leave(self, action: act.MayLeave) -> None:
        self.life.note(f"{self.machine.number} leaves")
        self.machine.end(in_order=True)
        self.machine.start_after(self.life.random.choice((0.1, 2.0)))

    def end_hand_over(self, action: act.HandedOver) -> None:
        self.handed_over = action.reason

    def ignore(self, action: act.Action) -> None:
        pass


DO: dict[type, Any] = {
    act.ReadRecord: Process.read_record,
    act.SwapRecord: Process.swap_record,
    act.Dial: Process.dial,
    act.CloseLink: Process.close_link,
    act.SendHello: Process.send_hello,
    act.SendRequest: Process.send_request,
    act.SendReport: Process.send_report,
    act.Feed: Process.feed,
    act.Confirmed: Process.confirmed,
    act.BecomeMaster: Process.become_master,
    act.FollowMaster: Process.ignore,
    act.Serve: Process.set_serve,
    act.StepDown: Process.step_down,
    act.CutLog: Process.cut_log,
    act.ReplaceLog: Process.replace_log,
    act.AskOperator: Process.ask_operator,
    act.StopReplica: Process.stop,
    act.HandedOver: Process.end_hand_over,
    act.MayLeave: lambda process, action: process.leave(action),
}
