"""Ends the machine at its deadline, and restarts the guardian. The boothook starts the deadman with
cloud-init's Python.

    deadman=THIS python -I -B -c 'import os; exec(os.environ.pop("deadman"))' STATE LOG DEADMAN_SECONDS [REASON]

The deadman needs Python 3.6 or later. The deadman waits, and finally ends the machine, without a fork,
because a benchmark may have left no free process. With REASON the deadman ends the machine at once. STATE:
the folder of the guardian's and the deadman's state. The exit code is 0 only if the machine is to stay on.
"""

import os
import sys
import time
from typing import List

STATE, LOG = sys.argv[1] + "/", sys.argv[2]
HUNG = 1800
"""Longest time from a boot to the guardian's start (seconds). Package upgrades may run before the
guardian."""
POLL = 10
MISSING = 12
"""Number of consecutive checks that find no guardian before the guardian is restarted. A single check is not
enough, because the guardian also ends at a reboot."""
PAUSES = (5, 5, 10, 10, 20, 30, 60)
CGROUP = "/sys/fs/cgroup/"
begun = 0.0


def main(deadman_seconds: int, reasons: List[str]) -> None:
    write("/proc/self/oom_score_adj", "-1000")
    leave_unit()
    if reasons:
        end(reasons[0])
    account = numbers(read(STATE + "deadline"))
    # spent: seconds in earlier boots. start: start by the wall clock; 0 if it is unknown.
    spent, start = account if len(account) == 2 else [0, 0]
    missing, clock = 0, 0
    while True:
        on = int(uptime() - begun)
        # The time for which the machine is on counts, and no clock can falsify it. The time off counts too,
        # by a clock that the guardian has checked. The clock is read once in each boot, because it may jump
        # later.
        if not clock and os.path.exists(STATE + "clock_right"):
            clock = int(time.time())
            start = start or clock - on - spent
            spent = max(spent, clock - on - start)
        left = min(numbers(read(STATE + "limit"))[:1] + [deadman_seconds]) - spent - on
        if left <= 0:
            end("deadline")
        keep_account("%15d %15d\n" % (spent + on, start))
        if os.path.exists(STATE + "stays"):
            return
        missing = watch_guardian(on, missing)
        time.sleep(min(left, POLL))


def watch_guardian(on: int, missing: int) -> int:
    """Restart the guardian if it is gone; return the number of consecutive checks that found no guardian."""
    pid = read(STATE + "guardian.pid").strip()
    if not os.path.exists(STATE + "guardian.pid"):
        if on >= HUNG:
            end("boot-hung")
        return 0
    if pid.isdigit() and "guardian.sh" in read("/proc/" + pid + "/cmdline"):
        return 0
    if missing + 1 < MISSING:
        return missing + 1
    # A guardian that has ended its job was about to power off, but died because no process was available.
    ended = read(STATE + "ended").strip()
    if ended and "power=stay" not in read(STATE + "settings"):
        end(ended)
    if not spawn("sh", STATE + "guardian.sh"):
        return missing
    say("the guardian has gone; starting it again")
    return 0


def end(reason: str) -> None:
    """Request a power-off until the machine is off, finally by force. Replaces power_off in machine.sh, whose
    last step forks."""
    show("BAI-END " + reason)
    write("/proc/sys/kernel/hung_task_panic", "1")
    spawn("sync")
    for pause in PAUSES:
        spawn("shutdown", "-h", "now")
        time.sleep(pause)
    say("shutdown has no effect; forcing a power-off")
    while True:
        spawn("poweroff", "-f")
        time.sleep(10)
        spawn("poweroff", "-f", "-f")
        time.sleep(5)
        write("/proc/sys/kernel/sysrq", "1")
        write("/proc/sysrq-trigger", "s")
        time.sleep(2)
        write("/proc/sysrq-trigger", "o")
        time.sleep(10)


def leave_unit() -> None:
    """Move to our own control group. A shutdown first kills the control groups of cloud-init's units, and may
    hang later.

    A service manager does not touch control groups that it does not know. The move works for both cgroup
    versions, even if both versions are mounted:
    https://docs.kernel.org/admin-guide/cgroup-v2.html#organizing-processes-and-threads
    """
    for hierarchy in ("", "unified/", "systemd/", "pids/"):
        if os.path.exists(CGROUP + hierarchy + "cgroup.procs"):
            try:
                os.makedirs(CGROUP + hierarchy + "bai", exist_ok=True)
            except OSError:
                continue
            write(CGROUP + hierarchy + "bai/cgroup.procs", "0")


def spawn(*command: str) -> bool:
    """Start a program; return False if no process is available. A program that hangs, even at its start, does
    not block us."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except OSError:
        pass
    try:
        if os.fork():
            return True
    except OSError:
        return False
    try:
        os.execvp(command[0], command)
    finally:
        os._exit(127)


def uptime() -> float:
    """Return the seconds since the machine started. The wall clock is not used, because it may be set and so
    jump."""
    try:
        return float(read("/proc/uptime").split()[0])
    except (IndexError, ValueError):
        return time.monotonic()


def numbers(text: str) -> List[int]:
    """Return the words of `text` as numbers; empty if one of them is not a number."""
    words = text.split()
    return [int(word) for word in words] if all(word.isdigit() for word in words) else []


def read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read(4096)
    except OSError:
        return ""


def write(path: str, text: str, flags: int = os.O_WRONLY) -> None:
    try:
        file = os.open(path, flags, 0o644)
    except OSError:
        return
    try:
        os.write(file, text.encode())
    except OSError:
        pass
    finally:
        os.close(file)


def keep_account(text: str) -> None:
    """Write the state into blocks that the file already has, because the disk may be full."""
    write(STATE + "deadline", text, os.O_WRONLY | os.O_CREAT)


def say(text: str) -> None:
    show("BAI %.2f %s" % (uptime() - begun, text))


def show(line: str) -> None:
    """Write one line to the console, where another line may be incomplete, and to the log. Either may be
    missing."""
    write("/dev/console", "\r" + line + "\n", os.O_WRONLY | os.O_APPEND | os.O_NOCTTY)
    write(LOG, line + "\n", os.O_WRONLY | os.O_APPEND)


if __name__ == "__main__":
    begun = uptime()
    main(int(sys.argv[3]), sys.argv[4:])
