"""Where every thread and every task of this process stands: what an administrator gets who asks for stacks.

Source: RocketMQ 4.9.8, UtilAll.jstack.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback


def stacks() -> str:
    """Return the stacks of all threads, then those of the running loop's tasks, innermost call first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    texts = [
        _text(names.get(ident, "unknown"), f"TID: {ident}", traceback.extract_stack(frame))
        for ident, frame in sorted(sys._current_frames().items())
    ]
    for task in sorted(asyncio.all_tasks(), key=asyncio.Task.get_name):
        frames = [traceback.FrameSummary(f.f_code.co_filename, f.f_lineno, f.f_code.co_name) for f in task.get_stack()]
        texts.append(_text(task.get_name(), "TASK", frames))
    return "\n".join(texts)


def _text(name: str, kind: str, frames: list[traceback.FrameSummary]) -> str:
    lines = [f"{name:<40} {kind}"]
    lines += [f"{name:<40} {frame.name}({frame.filename}:{frame.lineno})" for frame in reversed(frames)]
    return "".join(f"{line}\n" for line in lines)
