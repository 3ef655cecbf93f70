#!/usr/bin/env bash
# A real Slurm cluster of pretended nodes on this machine, for tests: munge, slurmctld and one
# slurmd per node. Every node has a host name, a /dev/shm and an /etc/hosts of its own.
#   scripts/slurm-testbed.sh install            only installs the packages that are missing
#   scripts/slurm-testbed.sh start  [DIR]       prints the environment file to source
#   scripts/slurm-testbed.sh stop   [DIR]       ends what `start DIR` started, and its jobs
#   scripts/slurm-testbed.sh status [DIR]       exit code 0 when all nodes are usable
#   scripts/slurm-testbed.sh crash  DIR NODE    kills all processes of a node at once
# `start` is idempotent: what runs is kept, what is missing (a crashed node) is started. It needs
# root and Linux namespaces, and on Debian or Ubuntu installs the packages that are missing.
# Exit code 4: it cannot be set up here; the last line says why.
# Settings, from the environment: SLURM_TESTBED_NODES (4), _CPUS (8 per node), _PORT (the first
# free range from 26900 on). The packages' own configuration and services are not touched, but
# for one link that Debian's package lacks (see `link_pmix`).
set -euo pipefail

usage() { sed -n '2,14s/^# \{0,1\}//p' "$0" >&2; exit 2; }
cannot() { echo "slurm-testbed: $*" >&2; exit 4; }
say() { echo "slurm-testbed: $*" >&2; }

action=${1:-} dir=${2:-${TMPDIR:-/tmp}/hpcslaq-slurm-$(id -u)} node=${3:-}
case $action in install | start | stop | status) ;; crash) [ -n "$node" ] || usage ;; *) usage ;; esac
num_nodes=${SLURM_TESTBED_NODES:-4} num_cpus=${SLURM_TESTBED_CPUS:-8}
packages=(slurmctld slurmd slurm-client munge libpmix2)

# -- what is ours ----------------------------------------------------------------------

# The daemon of a pid file, if it lives and its command line names our directory.
daemon() {
    local pid
    pid=$(cat "$dir/run/$1.pid" 2>/dev/null) && [ -n "$pid" ] || return 1
    # A zombie has no command line.
    grep -qaF -- "$dir/" "/proc/$pid/cmdline" 2>/dev/null && echo "$pid"
}

# All processes of a pretended node. Its UTS namespace is pinned by a mount, so the number
# cannot come to mean another one.
processes_of() {
    local number link
    mountpoint -q "$dir/run/$1.uts" || return 0
    number=$(stat -Lc %i "$dir/run/$1.uts")
    for link in /proc/[0-9]*/ns/uts; do
        [ "$(readlink "$link" 2>/dev/null)" = "uts:[$number]" ] || continue
        link=${link#/proc/}
        echo "${link%%/*}"
    done
}

# Kill the processes of a node until there are none: they may be starting others.
clear_node() {
    local pids
    for _ in {1..50}; do
        pids=$(processes_of "$1")
        [ -n "$pids" ] || return 0
        # shellcheck disable=SC2086  # a list of numbers
        kill -9 $pids 2>/dev/null || true
        sleep 0.05
    done
}

node_names() {
    local file
    for file in "$dir"/run/*.uts; do
        [ -e "$file" ] && basename "$file" .uts
    done
    return 0
}

# -- start -----------------------------------------------------------------------------

missing_packages() {
    local package
    for package in "${packages[@]}"; do
        [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
            echo "$package"
    done
}

# Every wait of apt is bounded, also that for a server that does not answer.
apt_get() {
    DEBIAN_FRONTEND=noninteractive timeout -k 10 "${SLURM_TESTBED_APT_S:-240}" apt-get -qq \
        -o DPkg::Lock::Timeout=60 -o Acquire::Retries=1 -o Acquire::http::Timeout=20 \
        -o Acquire::https::Timeout=20 "$@" </dev/null >>"$log" 2>&1
}

install_packages() {
    local missing policy=/usr/sbin/policy-rc.d made='' failed='' log
    mapfile -t missing < <(missing_packages)
    [ "${#missing[@]}" -gt 0 ] || return 0
    command -v apt-get >/dev/null || cannot "needs ${missing[*]}, and there is no apt-get"
    say "installing ${missing[*]}"
    log=$(mktemp)
    # The packages' own services must not start: they would run with another configuration.
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod 755 $policy
        made=1
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    fi
    apt_get install -y --no-install-recommends "${missing[@]}" ||
        { apt_get update && apt_get install -y --no-install-recommends "${missing[@]}"; } ||
        failed=1
    if [ -n "$made" ]; then rm -f $policy; trap - EXIT; fi
    if [ -n "$failed" ]; then tail -n 5 "$log" >&2; fi
    rm -f "$log"
    [ -z "$failed" ] || cannot "apt-get cannot install ${missing[*]} (no network?)"
}

# Slurm's PMIx plugin opens a name that only libpmix-dev ships; without it `srun --mpi=pmix` fails.
link_pmix() {
    local libraries
    libraries=/usr/lib/$(uname -m)-linux-gnu/pmix2/lib
    if [ -e "$libraries/libpmix.so.2" ] && [ ! -e "$libraries/libpmix.so" ]; then
        ln -s libpmix.so.2 "$libraries/libpmix.so"
    fi
}

is_port_free() { ! (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# The controller's port; the nodes' follow. Chosen once for a directory.
choose_port() {
    local base offset
    if [ -s "$dir/port" ]; then cat "$dir/port"; return; fi
    for ((base = ${SLURM_TESTBED_PORT:-26900}; base < 32000; base += num_nodes + 1)); do
        for ((offset = 0; offset <= num_nodes; offset++)); do
            is_port_free $((base + offset)) || continue 2
        done
        echo "$base" | tee "$dir/port"
        return
    done
    cannot "no free range of $((num_nodes + 1)) ports between 26900 and 32000"
}

write_configuration() {
    local port=$1 host
    # As Slurm itself takes it, without asking any name server.
    host=$(uname -n)
    host=${host%%.*}
    cat >"$dir/slurm.conf" <<END
ClusterName=testbed
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# A requeued job waits until its old credential has expired: 2 minutes by default.
AuthInfo=socket=$dir/munge/socket,cred_expire=10
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
SlurmctldPidFile=$dir/run/slurmctld.pid
SlurmdPidFile=$dir/run/%n.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/%n.log
# PMIx keeps its files here: on the second node they must not meet those of the first.
TmpFS=$dir/tmp/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$dir/log/jobcomp.txt
SwitchType=switch/none
MpiDefault=none
# More processors than the machine has.
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PropagateResourceLimits=NONE
ReturnToService=2
KillWait=5
SlurmdTimeout=20
MinJobAge=86400
JobRequeue=1
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
NodeName=n[1-$num_nodes] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + num_nodes))] CPUs=$num_cpus Boards=1 SocketsPerBoard=1 CoresPerSocket=$num_cpus ThreadsPerCore=1 RealMemory=4000
PartitionName=main Nodes=ALL Default=YES DefaultTime=10 MaxTime=60 PriorityTier=10
PartitionName=low Nodes=ALL DefaultTime=10 MaxTime=60 PriorityTier=1 PreemptMode=REQUEUE GraceTime=0
PartitionName=gentle Nodes=ALL DefaultTime=10 MaxTime=60 PriorityTier=1 PreemptMode=REQUEUE GraceTime=20
PartitionName=high Nodes=ALL DefaultTime=10 MaxTime=60 PriorityTier=100 PreemptMode=OFF
END
    { grep -vE '\sn[0-9]+(\s|$)' /etc/hosts || true; } >"$dir/hosts"
    local i
    for ((i = 1; i <= num_nodes; i++)); do echo "127.0.0.1 n$i" >>"$dir/hosts"; done
    cat >"$dir/env.sh" <<END
export SLURM_CONF=$dir/slurm.conf
# The nodes are one machine: Open MPI talks over the loopback, does not bind to processors that
# are only pretended, yields, and leaves out the network layers that take a second to probe.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_MCA_hwloc_default_binding_policy=none OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=^ofi,uct,openib OMPI_MCA_btl_tcp_if_include=lo
export OMPI_MCA_coll=^han,ucc OMPI_MCA_mpi_yield_when_idle=1
export MPIR_CVAR_POLLS_BEFORE_YIELD=1 MPIR_CVAR_CH4_PROGRESS_THROTTLE=true
export MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT=1
# UCX takes the System V memory of another node for one of its own: shmat fails.
export UCX_TLS=tcp,self
END
}

start_munge() {
    daemon munged >/dev/null && return
    if [ ! -s "$dir/munge/key" ]; then
        (umask 077; head -c 1024 /dev/urandom >"$dir/munge/key")
    fi
    chmod 400 "$dir/munge/key"
    rm -f "$dir"/munge/socket* "$dir/run/munged.pid"
    munged --key-file="$dir/munge/key" --socket="$dir/munge/socket" \
        --pid-file="$dir/run/munged.pid" --log-file="$dir/log/munged.log" \
        --seed-file="$dir/munge/seed" --num-threads=2 --force || cannot "munged did not start"
}

start_node() {
    local name=$1
    daemon "$name" >/dev/null && return
    mkdir -p "$dir/spool/$name" "$dir/tmp/$name"
    chmod 1777 "$dir/tmp/$name"
    clear_node "$name"
    rm -f "$dir/run/$name.pid"
    if mountpoint -q "$dir/run/$name.uts"; then umount "$dir/run/$name.uts"; fi
    : >"$dir/run/$name.uts"
    # shellcheck disable=SC2016  # the inner shell expands them
    unshare --uts="$dir/run/$name.uts" --mount --propagation private sh -c '
        hostname "$2" && mount -t tmpfs -o mode=1777 shm /dev/shm &&
            mount --bind "$1/hosts" /etc/hosts && exec slurmd -f "$1/slurm.conf" -N "$2"
    ' sh "$dir" "$name" || cannot "slurmd of $name did not start; see $dir/log/$name.log"
}

num_usable() { timeout 5 sinfo -h -N -o '%N %t' | sort -u | grep -cE ' (idle|mix|alloc)$' || true; }

wait_for_nodes() {
    local try until=$((SECONDS + 25))
    for ((try = 0; SECONDS < until; try++)); do
        [ "$(num_usable)" = "$num_nodes" ] && return
        # Down since it crashed, or drained by a failed launch.
        if ((try % 20 == 10)); then
            timeout 5 scontrol update "nodename=n[1-$num_nodes]" state=resume >/dev/null 2>&1 || true
        fi
        sleep 0.1
    done
    timeout 5 sinfo -N -l >&2 || true
    cannot "not all nodes are usable after 25 s; see $dir/log"
}

needs_root() { [ "$(id -u)" = 0 ] || cannot "needs root (the nodes are namespaces)"; }

needs_namespaces() {
    unshare --uts --mount --propagation private \
        sh -c 'hostname testbed && mount -t tmpfs shm /dev/shm' >/dev/null 2>&1 ||
        cannot "may not make namespaces here (a container without CAP_SYS_ADMIN?)"
}

# With nothing but the loopback Slurm finds no address and Open MPI no way between nodes.
needs_network() {
    [ -n "$(hostname -I 2>/dev/null)" ] || cannot "no network interface is up but the loopback"
}

needs_debian() {
    command -v dpkg-query >/dev/null || command -v slurmctld >/dev/null ||
        cannot "needs Slurm and munge, or Debian or Ubuntu to install them"
}

# Before anything is installed: whether it would be of use.
install() {
    needs_root
    needs_namespaces
    needs_network
    needs_debian
    if command -v dpkg-query >/dev/null; then install_packages; fi
}

start() {
    needs_root
    [ ! -e "$dir" ] || [ -O "$dir" ] || cannot "$dir belongs to somebody else"
    mkdir -p "$dir"/{munge,log,state,run,spool,tmp}
    chmod 711 "$dir" "$dir/munge"
    dir=$(cd "$dir" && pwd -P)
    exec 9>"$dir/lock"
    flock -w 120 9 || cannot "another start holds $dir/lock"
    needs_namespaces
    needs_network
    needs_debian
    if command -v dpkg-query >/dev/null; then install_packages; link_pmix; fi
    export SLURM_CONF=$dir/slurm.conf
    if ! daemon slurmctld >/dev/null; then
        local port
        port=$(choose_port)
        write_configuration "$port"
    fi
    (
        start_munge
        if ! daemon slurmctld >/dev/null; then
            rm -f "$dir/run/slurmctld.pid"
            slurmctld -f "$SLURM_CONF" || cannot "slurmctld did not start; see $dir/log"
        fi
        local i
        for ((i = 1; i <= num_nodes; i++)); do start_node "n$i"; done
    ) 9>&- </dev/null >>"$dir/log/start.log" 2>&1 || { tail -n 3 "$dir/log/start.log" >&2; exit 4; }
    wait_for_nodes
    echo "$dir/env.sh"
}

# -- stop, status, crash ---------------------------------------------------------------

stop_daemon() {
    local pid
    pid=$(daemon "$1") || return 0
    kill "$pid" 2>/dev/null || true
    for _ in {1..50}; do
        daemon "$1" >/dev/null || break
        sleep 0.1
    done
    if pid=$(daemon "$1"); then kill -9 "$pid" 2>/dev/null || true; fi
    rm -f "$dir/run/$1.pid"
}

stop() {
    [ -d "$dir/run" ] || { say "nothing was started in $dir"; return; }
    dir=$(cd "$dir" && pwd -P)
    export SLURM_CONF=$dir/slurm.conf
    # The controller first, so that it starts no job anew whose node goes.
    stop_daemon slurmctld
    local name
    for name in $(node_names); do
        stop_daemon "$name"
        clear_node "$name"
        if mountpoint -q "$dir/run/$name.uts"; then umount "$dir/run/$name.uts"; fi
        rm -f "$dir/run/$name.uts"
    done
    stop_daemon munged
    rm -rf "$dir"/{state,spool,tmp,port}
    say "stopped $dir"
}

status() {
    [ -d "$dir/run" ] || { say "nothing was started in $dir"; exit 1; }
    dir=$(cd "$dir" && pwd -P)
    export SLURM_CONF=$dir/slurm.conf
    daemon slurmctld >/dev/null || { say "is down"; exit 1; }
    timeout 5 sinfo -N -o '%N %t %c %P'
    [ "$(num_usable)" = "$(node_names | wc -l)" ]
}

crash() {
    dir=$(cd "$dir" && pwd -P)
    mountpoint -q "$dir/run/$node.uts" || { say "there is no node $node in $dir"; exit 3; }
    clear_node "$node"
    rm -f "$dir/run/$node.pid"
}

"$action"
