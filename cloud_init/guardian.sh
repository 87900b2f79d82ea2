#!/bin/sh
# shellcheck disable=SC2154
# The guardian: fetches and starts the agent, outlives it, and powers the machine off, however the agent ends.
# $state keeps for the next boot: settings (what is to be done), facts (who we are), init_done, ended.
fetch_seconds=${BAI_FETCH_SECONDS:-600}
install_seconds=300
init_seconds=1800
max_starts=6
agent=
own_python=
keep_failure_seconds=0
keep_success_seconds=0
nodes=1
launch=0
first_node=0
# A kernel short of memory shall kill a benchmark and not the guardian, so only the guardian is protected.
# shellcheck disable=SC2016
spare='{ echo 0 >/proc/self/oom_score_adj; } 2>/dev/null; exec "$@"'

# Records the end of the job, and ends the machine unless it is to stay.
end() {
    { printf '%s\n' "$*" >"$state/ended"; } 2>/dev/null
    case $* in
    "done 4") ;; # cancelled
    "done 0") keep "$keep_success_seconds" ;;
    *) keep "$keep_failure_seconds" ;;
    esac
    finish "$@"
}

# Unmounts the network file systems of an agent that was killed. Their servers may be gone, and a shutdown
# would wait for them. $1: seconds for each file system.
unmount() {
    [ -n "${run:-}" ] && [ -r "$run/mounts" ] || return 0
    while read -r target; do
        bounded "$1" umount -l "$target" </dev/null
    done <"$run/mounts"
}

finish() {
    unmount 10
    print "BAI-END $*"
    if [ "${power:-off}" = stay ]; then
        { printf '' >"$state/stays"; } 2>/dev/null
        exit 0
    fi
    power_off
}

# Keeps the machine for $1 s, so that a user can inspect it, or until it is released.
keep() {
    [ "$1" -gt 0 ] || return 0
    say "keeping this machine for $1 s, or until it is released"
    now
    until=$((now + $1 * 100))
    while [ "$now" -lt "$until" ] && ! released; do
        rest 15
        now
    done
}

released() {
    [ ! -e "$run/release" ] || return 0
    [ -n "$store_url" ] && [ -n "$own_python" ] || return 1
    BAI_FETCH_SECONDS=10 bounded 60 "$own_python" -I -B "$state/fetch_agent.py" listed "$store_url/$job_id/release.json" \
        >/dev/null 2>&1
}

# Waits for $1 s, but a signal ends the wait at once. A shell runs its traps only between two commands.
rest() {
    sleep "$1" &
    wait $!
}

# Handles the shutdown of this machine and its network. We must exit within 5 s, or we delay the shutdown.
terminated() {
    trap '' TERM INT
    say "asked to end"
    if [ -n "$agent" ]; then
        kill -TERM "$agent" 2>/dev/null
        for _ in 1 2 3 4 5 6 7 8 9; do
            kill -0 "$agent" 2>/dev/null || break
            sleep 0.5 2>/dev/null || sleep 1
        done
        kill -KILL "$agent" 2>/dev/null
    fi
    unmount 1
    print "BAI-END terminated"
    exit 0
}

# Runs a command with a time limit. `timeout` exists wherever coreutils or busybox do.
bounded() {
    sh -c "$spare" bounded timeout "$@"
}

fetch() {
    sentence=$(BAI_FETCH_SECONDS=$fetch_seconds bounded $((fetch_seconds + 120)) "$own_python" -I -B "$state/fetch_agent.py" "$@")
}

# Ends with the reason for the exit code of `fetch`.
failed_fetch() {
    say "$2: ${sentence:-no answer in time}"
    case $1 in
    4) end fetch-denied ;;
    5) end fetch-missing ;;
    6) end fetch-corrupt ;;
    7) end disk-full ;;
    8) end clock-wrong ;;
    *) end fetch-failed ;;
    esac
}

find_own_python() {
    own_pythons
    for own_python in $own_pythons; do
        bounded 30 "$own_python" -I -c 'import ssl, zlib' >/dev/null 2>&1 && return
    done
    own_python=
    return 1
}

# Finds the first Python in this list that is new enough for the agent.
find_python() {
    for python in /opt/pytorch/bin/python python3.14 python3.13 python3.12 python3.11 python3.10 python3; do
        command -v "$python" >/dev/null || continue
        bounded 30 "$python" -I -c 'import ssl, zlib, sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1 && return
    done
    return 1
}

# Installs a Python of the machine's distribution, once in the machine's life.
install_python() {
    say "no Python of version 3.10 or later; installing one"
    if command -v apt-get >/dev/null; then
        DEBIAN_FRONTEND=noninteractive bounded "$install_seconds" sh -c \
            'apt-get -o DPkg::Lock::Timeout=120 update && apt-get -o DPkg::Lock::Timeout=120 install --yes --no-install-recommends python3'
    elif command -v dnf >/dev/null; then
        bounded "$install_seconds" dnf --assumeyes install python3.12 ||
            bounded "$install_seconds" dnf --assumeyes install python3.11
    elif command -v zypper >/dev/null; then
        bounded "$install_seconds" zypper --non-interactive install python312 ||
            bounded "$install_seconds" zypper --non-interactive install python311
    elif command -v yum >/dev/null; then
        bounded "$install_seconds" yum --assumeyes install python3
    elif command -v apk >/dev/null; then
        bounded "$install_seconds" apk add python3
    else
        return 1
    fi
}

pythons() {
    if ! find_python; then
        install_python
        find_python || end no-python
    fi
    find_own_python || own_python=$python
    say "python $python"
}

# The instance's facts do not change, so after a reboot the file replaces the metadata service.
facts() {
    rank=
    read -r instance_id rank 2>/dev/null <"$state/facts"
    if [ -z "$rank" ]; then
        if ! fetch facts; then
            say "facts: ${sentence:-no answer in time}"
            end no-metadata
        fi
        { printf '%s\n' "$sentence" >"$state/facts"; } 2>/dev/null
        instance_id=${sentence% *} rank=${sentence#* }
    fi
    rank=$((first_node + rank))
    say "instance $instance_id rank $rank"
}

bring_bundle() {
    fetch bundle "$bundle_url" "$bundle_sha256" "$root/agent/$bundle_sha256" || failed_fetch $? bundle
    say "bundle $bundle_sha256"
}

bring_job() {
    if [ -n "$job_url" ] && [ ! -e "$root/job.toml" ]; then
        fetch file "$job_url" "$job_sha256" "$root/job.toml" || failed_fetch $? "job descriptor"
    fi
    if [ ! -s "$root/job.toml" ]; then
        say "$root/job.toml is not there; cloud-init may have failed to write it"
        end fetch-missing
    fi
    say "job $job_id"
}

# S3 accepts no signature that is off by a quarter of an hour, and metrics need a time. Only `fetch` needs no
# right clock.
wait_for_clock() {
    [ -n "$store_url$bundle_url" ] || return 0
    fetch clock "${store_url:-$bundle_url}"
    case $? in
    0) { printf '' >"$state/clock_right"; } 2>/dev/null ;;
    8) failed_fetch 8 clock ;;
    *) say "clock: ${sentence:-no answer in time}" ;;
    esac
}

# Runs each of the user's init commands once. A command that was interrupted by a reboot is run again.
init_commands() {
    number=0
    while [ -r "$state/init/$number" ]; do
        if ! grep -qx "$number" "$state/init_done" 2>/dev/null; then
            say "init command $number"
            sh -c "$spare" init timeout "$init_seconds" sh "$state/init/$number" &
            wait $!
            code=$?
            if [ "$code" -ne 0 ]; then
                say "init command $number ended with $code; $log has its words"
                end init-failed "$number"
            fi
            { printf '%s\n' "$number" >>"$state/init_done"; } 2>/dev/null
        fi
        number=$((number + 1))
    done
}

# Kills an agent that hangs, so that it is started again. A healthy agent writes its heartbeat every 15 s,
# whatever the store does. With several nodes this is not needed: the others give up a silent node long
# before. Looks are counted, because clocks may be set.
watch_heartbeat() {
    [ "$nodes" -eq 1 ] || return 0
    seen='' looks=0
    while [ "$looks" -lt 15 ]; do
        sleep 20 || return 0
        kill -0 "$1" 2>/dev/null || return 0
        read -r beat 2>/dev/null <"$run/heartbeat.json" || beat=''
        looks=$((looks + 1))
        [ "$beat" = "$seen" ] || looks=0
        seen=$beat
    done
    say "agent without a heartbeat for 300 s; killing it"
    kill -KILL "$1" 2>/dev/null
}

# The agent decides how a run ends, and writes result.json. An agent that ends without that file is started
# again, and continues where it stopped.
run_agent() {
    starts=0
    # An agent that has lost its guardian still runs.
    if lives "$state/agent.pid" start_agent.py; then
        watch_heartbeat "$pid" &
    fi
    while lives "$state/agent.pid" start_agent.py; do
        rest 2
    done
    while [ "$starts" -lt "$max_starts" ]; do
        starts=$((starts + 1))
        say "agent start $starts"
        { printf '' >"$state/agent.err"; } 2>/dev/null && said=$state/agent.err || said=/dev/null
        sh -c "$spare" agent "$python" "$root/agent/$bundle_sha256/start_agent.py" run "$root/job.toml" --dir "$run" \
            --rank "$rank" --instance-id "$instance_id" --launch "$launch" --quiet 2>"$said" &
        agent=$!
        { echo "$agent" >"$state/agent.pid"; } 2>/dev/null
        watch_heartbeat "$agent" &
        watch=$!
        wait "$agent"
        code=$?
        kill "$watch" 2>/dev/null
        agent=
        say "agent ended with $code"
        if [ "$code" -le 6 ] && [ -e "$run/result.json" ]; then
            if [ "$code" -eq 5 ]; then
                # If the store failed, nobody can read the sentence there.
                said=$(sed -n 's/.*"sentence": "\([^"]*\)".*/\1/p' "$run/result.json" 2>/dev/null | head -n 1)
                [ -z "$said" ] || say "agent: $said"
            fi
            end "done" "$code"
        fi
        said=$(tail -n 1 "$said" 2>/dev/null)
        [ -z "$said" ] || say "agent: $said"
        [ "$code" -ne 2 ] || end bad-descriptor
        pause=$((starts * starts))
        # Other nodes give up a node that is silent for limits.peer_silence, which is at least 20 s.
        [ "$nodes" -eq 1 ] || [ "$pause" -le 3 ] || pause=3
        [ "$starts" -ge "$max_starts" ] || rest "$pause"
    done
    end agent-crashed "$code"
}

environment() {
    HOME=${HOME:-/root}
    cd / || return
    AWS_REGION=$region AWS_DEFAULT_REGION=$region
    export HOME AWS_REGION AWS_DEFAULT_REGION
    if [ -n "$s3_endpoint" ]; then
        S3_ENDPOINT=$s3_endpoint AWS_ENDPOINT_URL_S3=$s3_endpoint
        export S3_ENDPOINT AWS_ENDPOINT_URL_S3
    fi
    if [ ! -w /tmp ]; then
        mkdir -p "$root/tmp" && TMPDIR=$root/tmp && export TMPDIR
    fi
}

# Snaps refresh by themselves, even during a benchmark.
hold_snaps() {
    command -v snap >/dev/null && in_background timeout 60 snap refresh --hold=72h
}

# Exits if another guardian runs in this boot.
only_one() {
    lock=/run
    [ -w "$lock" ] || lock=$state
    lock=$lock/bai-guardian.$(this_boot)
    if ! mkdir "$lock" 2>/dev/null; then
        [ -e "$state/guardian.pid" ] || sleep 2 # the other one may be between its two steps
        ! lives "$state/guardian.pid" guardian.sh || exit 0
    fi
    { echo $$ >"$state/guardian.pid"; } 2>/dev/null
}

exec </dev/null >>"$log" 2>&1
only_one
trap '' HUP
trap terminated TERM INT
{ echo -1000 >/proc/self/oom_score_adj; } 2>/dev/null
say "guardian"
hold_snaps
if [ ! -r "$state/settings" ] && [ -r "$root/baked/raw_job.py" ]; then
    # An image with the agent in it: the user data is the job descriptor itself.
    find_python || install_python
    find_python || end no-python
    if ! sentence=$(bounded 60 "$python" -I -B "$root/baked/raw_job.py"); then
        say "user data: $sentence"
        end bad-descriptor
    fi
fi
if [ ! -r "$state/settings" ]; then
    say "$state/settings is not there; cloud-init may have failed to write it"
    end no-settings
fi
# The file has quoted assignments of the shell: power, keep_failure_seconds, keep_success_seconds, nodes,
# launch, first_node, job_id, region, s3_endpoint, bundle_url, bundle_sha256, job_url, job_sha256, store_url.
# shellcheck source=/dev/null
. "$state/settings"
run=$root/jobs/$job_id
environment
if read -r reason 2>/dev/null <"$state/ended"; then
    say "this job has ended before"
    finish "$reason"
fi
pythons
facts
bring_bundle
bring_job
wait_for_clock
init_commands
run_agent
