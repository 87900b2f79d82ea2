#!/bin/sh
# shellcheck disable=SC2034
# Shared by the boothook and the guardian: prints lines on the console, and retries a power-off until it
# works.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
set -u
root=/var/lib/bai
state=$root/boot
log=/var/log/bai-guardian.log
mkdir -p "$state" "${log%/*}" 2>/dev/null
{ printf '' >>"$log"; } 2>/dev/null || log=/dev/null

# Sets `now` to the centiseconds since the machine started. The clock is not used, because it may be set and
# jump.
now() {
    read -r now _ </proc/uptime || now=0.00
    now=${now%.*}${now#*.}
    # A leading zero would make it octal.
    now=${now#"${now%%[!0]*}"}
    now=${now:-0}
}

now
begun=$now

# Writes one line to the console, where GetConsoleOutput finds it, and to the log. Either may be missing. The
# console may be in the middle of a line, such as the prompt for a login.
print() {
    { printf '\r%s\n' "$*" >>/dev/console; } 2>/dev/null
    { printf '%s\n' "$*" >>"$log"; } 2>/dev/null
}

# Prints a line with the time since the start. Does not fork, because a fork that fails (a benchmark may have
# left no process) ends this shell.
say() {
    now
    now=$((now - begun + 100))
    print "BAI $((now / 100 - 1)).${now#"${now%??}"} $*"
}

# Runs a command in the background without our streams, so that a command that hangs does not block us.
in_background() {
    "$@" </dev/null >/dev/null 2>&1 &
}

# A task that hangs in the kernel (in a volume or a driver) blocks every shutdown, and the machine costs money
# meanwhile. From here on the kernel panics because of such a task and restarts (boothook.sh), and the next
# boot powers off. This is set only at the end, because before that a slow disk would cost a benchmark.
panic_if_hung() {
    { echo 1 >/proc/sys/kernel/hung_task_panic; } 2>/dev/null
}

# Never returns. Requests a power-off until the machine is gone, finally by force, because `shutdown` may be
# missing, hang, or do nothing. The pauses give services time to stop. Never uses `halt`, because a halted
# instance still costs money.
power_off() {
    # A shutdown that is already under way must not wait for us.
    trap - TERM
    panic_if_hung
    in_background sync
    for pause in 5 5 10 10 20 30 60; do
        in_background shutdown -h now
        sleep "$pause"
    done
    say "shutdown has no effect; forcing a power-off"
    while :; do
        in_background poweroff -f
        sleep 10
        in_background poweroff -f -f
        sleep 5
        { echo 1 >/proc/sys/kernel/sysrq; } 2>/dev/null
        { echo s >/proc/sysrq-trigger; } 2>/dev/null
        sleep 2
        { echo o >/proc/sysrq-trigger; } 2>/dev/null
        sleep 10
    done
}

# cloud-init's own interpreter comes first, because it exists wherever cloud-init runs us.
own_pythons() {
    read -r line 2>/dev/null <"$(command -v cloud-init || echo /dev/null)" || line=
    # shellcheck disable=SC2086
    set -- ${line#"#!"}
    case ${1:-} in
    */env) shift ;;
    esac
    own_pythons="${1:-} python3 /usr/libexec/platform-python"
}

# Prints an id of this start of the machine. A container has its host's boot id, so the first process's start
# is added.
this_boot() {
    read -r boot_id </proc/sys/kernel/random/boot_id || boot_id=unknown
    read -r first </proc/1/stat || first=
    # The name in parentheses may hold spaces; the start is the 20th word after it.
    # shellcheck disable=SC2086
    set -- ${first##*\) }
    printf '%s\n' "$boot_id-${20:-0}"
}

# Succeeds if the process whose pid is in the file $1 lives and has $2 in its command line, because pids are
# reused.
lives() {
    read -r pid 2>/dev/null <"$1" && grep -q "$2" "/proc/${pid:-none}/cmdline" 2>/dev/null
}
