"""Errors as sentences for people who look at a page: no class names, codes or command lines, and the next step.

Errors name a topic, a group or a limit, and give advice to programs or at a command line. Brokers, Java's included,
write texts of their own. The audit log keeps the original texts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyromq import errors
from pyromq.errors import MQError

# What RocketMQ's servers write, and what a page says instead. The first expression that matches is used.
_WORDINGS = tuple(
    (re.compile(pattern, re.IGNORECASE), words)
    for pattern, words in (
        (r"No topic route info in name server for the topic: (.+?)\.?", r"topic \1 does not exist"),
        (r"No topic in this broker! topic: (.+)", r"topic \1 does not exist at this broker"),
        (r"topic\[(.+?)\] not exist\b.*", r"topic \1 does not exist"),
        (r"The topic\[(.+?)\] is conflict with system topic.*", r"\1 is the name of a system topic; choose another"),
        (r"(?:the )?subscription group(?: not exist, (\S+)| \[(.+?)\] does not exist).*", r"group \1\2 does not exist"),
        (r"The consumer group <(.+?)> not exist.*", r"group \1 does not exist"),
        (r"the producer group\[(.+?)\] not exist", r"no producer of group \1 is online"),
        (r"No Any Consumer online in the consumer group: \[(.+?)\]", r"no member of group \1 is online"),
        (r"the consumer group\[(.+?)\] not online", r"no member of group \1 is online"),
        (r"Consumer not online, so can not reset offset. Group: (\S+) .*", r"no member of group \1 is online"),
        (r"consumer group (\S+) has no member online", r"no member of group \1 is online"),
        (r"The Consumer <(.+?)> <(.+?)> not online", r"member \2 of group \1 is not online"),
        (r"consumer <(.+?)> <(.+?)> Timeout: .*", r"member \2 of group \1 did not answer in time"),
        (r"The Consumer <(.+?)> Version <(.+?)> too low .*", r"member \1 has version \2, which cannot do this"),
        (
            r"Sending message to topic\[(.+?)\] is forbidden\.?",
            r"topic \1 accepts no messages: its permission forbids it",
        ),
        (
            r"the topic\[(.+?)\] sending message is forbidden",
            r"topic \1 accepts no messages: its permission forbids it",
        ),
        (r"the topic\[(.+?)\] pulling message is forbidden", r"topic \1 cannot be read: its permission forbids it"),
        (r"the broker\[(.+?)\] sending( transaction)? message is forbidden", r"broker \1 accepts no\2 messages now"),
        (r"the broker\[(.+?)\] pulling message is forbidden", r"broker \1 cannot be read now"),
        (r"subscription group no permission, (.+)", r"group \1 may not consume: it is disabled"),
        (r"The specified topic is blank\.?", r"the topic's name is empty"),
        (r"the specified group is blank", r"the group's name is empty"),
        (
            r"[Tt]he specified (topic|group)(?:\[.*?\])? is longer than .*? (\d+)\.?",
            r"the \1's name is too long: the limit is \2 characters",
        ),
        (
            r"The specified topic(?:\[.*?\])? contains illegal characters.*",
            r"the topic's name may have letters, digits, _, -, % and |",
        ),
        (
            r"the specified group\[(.*?)\] contains illegal characters.*",
            r"'\1' is not a valid group name: letters, digits, _, -, % and | may be in its name",
        ),
        (r"can not find message by the offset, (\d+)", r"no message is stored at log offset \1"),
        (r"can not find message\b.*", r"no message is found"),
        (r"look message by offset failed, (\d+)", r"no message is stored at log offset \1"),
        (r"(.+?)@(\S+) is not exist!", r"topic \2 has no queue \1"),
        (r"broker '(.+?)' is not in the route of topic '(.+?)'", r"topic \2 has no queue at broker \1"),
        (r"(?:request )?queueId\[(\S+?)\] is illegal, .*", r"the topic has no queue \1"),
        (r"The stats <(.+?)> <(.+?)> not exist", r"the broker has no statistics \1 of \2"),
        (r"(?:consumer|producer)Group can not equal (\S+?), .*", r"\1 is a name of the system; choose another"),
        (
            r"account (\S+) is not an administrator, which request .* needs",
            r"account \1 is not an administrator, which this needs",
        ),
        (r"Can not update config in black list\.?", r"this setting cannot be changed while the broker runs"),
        (r"Find prepared transaction message failed", r"the half message is not found: it is decided, or has expired"),
        (r"(.+ exists already.*?); alter or replace it", r"\1; open it to change its settings"),
        (r"not the master: no master is known", r"the broker is a replica, and no master is known now"),
        (r"not the master: (\S+)", r"the broker is a replica; the master is at \1"),
        (r"invoke consumer <(.+?)> <(.+?)> Exception: (.*)", r"member \2 of group \1 failed: \3"),
    )
)
# Parts of strings that are for programs and command lines. Each is removed.
_NOT_FOR_PAGES = tuple(
    re.compile(pattern)
    for pattern in (
        r"^(?:\w+\.)+[A-Z]\w*(?:Exception|Error)?:(?: |$)",  # a Java class
        r"\b[A-Z]\w+(?:Exception|Error): ",
        r"\b(?:MESSAGE_ILLEGAL|SERVICE_NOT_AVAILABLE|string2Properties error|recall failed)[:,] ",
        r"\bCODE: \d+ +DESC: ",
        r"\[Errno -?\d+\] ",
        r"[\s,]*See https?://\S+ for further details\.?",
        r"[.;:] *(?:S|s)ee which brokers? registers? (?:that|them): `[^`]*`",
        r"; (?:switch it on there \(vipChannelEnable=true\), or leave out vip_channel|give one of the two another .*)",
        r"; await some futures or flush\(\) first",
        r"; use the name server's port .*",
        r": start it with `with` or start\(\); make a new one after close\(\)",
        r"; [^;]*(?:--\w|`pyromq )[^;]*",
    )
)
_CONNECT_FAILED = re.compile(r"Connect call failed \(.*?\)")
_BRACKETS = re.compile(r"\b([A-Za-z]+)\[([^\[\]]*)\]")
_FIELD = re.compile(r"^(\w+)=('[^']*'|\S+) (is|has|must)\b")


def sentence(error: object) -> str:
    """Return the text of an error as a sentence for a page, without the next step."""
    text = " ".join(str(error).split())
    for pattern in _NOT_FOR_PAGES:
        text = pattern.sub("", text)
    text = _CONNECT_FAILED.sub("the connection was refused", text).strip()
    for pattern, words in _WORDINGS:
        if (found := pattern.fullmatch(text)) is not None:
            text = found.expand(words)
            break
    text = _FIELD.sub(
        lambda found: f"{found[1].replace('_', ' ')} {found[2]} {found[3]}", _BRACKETS.sub(r"\1 \2", text)
    )
    text = text or "no reason was given"
    if text.split(maxsplit=1)[0].rstrip(",:;").isalpha():  # not a name such as broker-a, nor an address
        text = text[0].upper() + text[1:]
    return text + ("" if text.endswith((".", "?", "!", "…")) else ".")


@dataclass(frozen=True, slots=True)
class ErrorAdvice:
    """The heading of an error's page, the next step, and where it is done: texts and addresses of links.

    A link with a role is shown only to visitors of this role.
    """

    title: str
    step: str = ""
    links: tuple[tuple[str, str, str], ...] = ()


_DOCTOR = ("What is wrong?", "/doctor", "viewer")
_BROKERS = ("Brokers", "/brokers", "viewer")
_AGAIN = "Try again in a moment. If it stays, the doctor's page says which server does not answer."
_ADVICE: dict[type[MQError], ErrorAdvice] = {
    errors.TopicNotFound: ErrorAdvice(
        "There is no such topic",
        "Correct the name, or create the topic.",
        (("All topics", "/topics", "viewer"), ("Create a topic", "/new-topic", "admin")),
    ),
    errors.GroupNotFound: ErrorAdvice(
        "There is no such group",
        "Correct the name, or create the group.",
        (("All groups", "/groups", "viewer"), ("Create a group", "/new-group", "admin")),
    ),
    errors.QueryNotFound: ErrorAdvice(
        "Nothing found", "It may have expired or been removed since, or the address is mistyped."
    ),
    errors.AccessDenied: ErrorAdvice(
        "Not permitted by the brokers",
        "This console account's keys do not have the right. An administrator of the brokers can give it to them.",
        (("Accounts", "/accounts", "admin"),),
    ),
    errors.NoPermission: ErrorAdvice(
        "Not permitted", "Change the permission of the topic or the broker, or choose another one.", (_BROKERS,)
    ),
    errors.AlreadyExists: ErrorAdvice("It exists already", "Choose another name, or change the existing one."),
    errors.NoNameServer: ErrorAdvice(
        "No name server answers",
        "Start a name server at this address, or start the console with the address of another one.",
    ),
    errors.AnotherServer: ErrorAdvice(
        "Another server answers", "Correct the address: it is not that of a broker or name server.", (_DOCTOR,)
    ),
    errors.HostNotFound: ErrorAdvice("The host is not found", "Correct the name of the host, or the DNS.", (_DOCTOR,)),
    errors.TlsRefused: ErrorAdvice(
        "The TLS connection failed", "Give both sides TLS and certificates that the other side trusts.", (_DOCTOR,)
    ),
    errors.DeadlineExceeded: ErrorAdvice("No answer in time", _AGAIN, (_DOCTOR, _BROKERS)),
    errors.Unavailable: ErrorAdvice("No answer", _AGAIN, (_DOCTOR, _BROKERS)),
    errors.LimitReached: ErrorAdvice(
        "A limit is reached", "Use less of it, or raise the setting at the broker.", (_BROKERS,)
    ),
    errors.SystemBusy: ErrorAdvice("The broker is busy", "Try again in a moment.", (_BROKERS,)),
    errors.FlowControl: ErrorAdvice("The broker is busy", "Try again in a moment.", (_BROKERS,)),
    errors.ServiceNotAvailable: ErrorAdvice(
        "The broker cannot do it now",
        "Try again in a moment, or look at the broker: its disk may be full.",
        (_BROKERS,),
    ),
    errors.ConsumerNotOnline: ErrorAdvice(
        "No member is online", "Start a member of the group, then try again.", (("All groups", "/groups", "viewer"),)
    ),
    errors.ConsumeTimeout: ErrorAdvice("No answer in time", "The member may be at work: look at its log."),
    errors.CodeNotSupported: ErrorAdvice(
        "This broker cannot do it", "Brokers of this version do not know the request; brokers of pyromq do."
    ),
    errors.MessageRefused: ErrorAdvice("The message is refused", "Correct what the text names, then send it again."),
    errors.IllegalMessage: ErrorAdvice("The message is refused", "Correct what the text names, then send it again."),
    errors.IllegalName: ErrorAdvice("The name is illegal", "Correct the name."),
    errors.SubscriptionParseFailed: ErrorAdvice("The expression cannot be understood", "Correct the expression."),
    errors.RecallRefused: ErrorAdvice("It cannot be cancelled", "Nothing is left to do if it was delivered."),
    errors.BatchDecided: ErrorAdvice("It is decided already", "Look at the transaction again."),
    errors.BatchIncomplete: ErrorAdvice(
        "It cannot be committed", "Have the producer send the attempt again, or roll back."
    ),
    errors.StoreError: ErrorAdvice("The store has a problem", "The log of the broker says more.", (_BROKERS,)),
    errors.ProtocolError: ErrorAdvice(
        "The answer cannot be understood", "Look which server listens at this address.", (_DOCTOR,)
    ),
    errors.NotRunning: ErrorAdvice("The console is closing", "Try again once it runs."),
    errors.UsageError: ErrorAdvice("That is not possible", "Go back and correct it."),
    errors.BrokerError: ErrorAdvice(
        "The broker refused it", "The log of the broker may say more.", (_BROKERS, _DOCTOR)
    ),
}


def advice_for(error: MQError) -> ErrorAdvice:
    """Return the heading and the next step for an error, by its class or the nearest parent class."""
    found = next((_ADVICE[kind] for kind in type(error).__mro__ if kind in _ADVICE), None)
    return found or ErrorAdvice("An error", _AGAIN, (_DOCTOR,))


def notice_text(error: MQError) -> str:
    """Return an error as a notice: its sentence, and the next step unless the text has advice of its own."""
    text = sentence(error)
    has_advice = (isinstance(error, errors.UsageError) and not isinstance(error, errors.AlreadyExists)) or ";" in text
    return text if has_advice else f"{text} {advice_for(error).step}"
