# The verbs of the target, and its default state. PORT is 1 or 2, SUBSYS a subsystem NQN, STATE as nvmet spells it
# (optimized non-optimized inaccessible persistent-loss change).
C=/sys/kernel/config/nvmet
NULLB=/sys/kernel/config/nullb
NQN=nqn.2025-01.io.nvmetvm
HOSTNQN=nqn.2014-08.org.nvmexpress:uuid:11111111-1111-1111-1111-111111111111

# subsystem SUBSYS ANYHOST SERIAL: create it, open to any host (1) or to those allowed (0).
subsystem() {
	mkdir "$C/subsystems/$1"
	echo "$2" >"$C/subsystems/$1/attr_allow_any_host"
	echo "$3" >"$C/subsystems/$1/attr_serial"
}

# namespace SUBSYS NSID DEVICE UUID [ANAGROUP]: add and enable it.
namespace() {
	mkdir "$C/subsystems/$1/namespaces/$2"
	(
		cd "$C/subsystems/$1/namespaces/$2"
		echo -n "$3" >device_path
		echo "$4" >device_uuid
		echo "${5:-1}" >ana_grpid
		echo 1 >enable
	)
}

# enable|disable SUBSYS NSID: a disabled namespace keeps its settings, and hosts see it go.
enable() { echo 1 >"$C/subsystems/$1/namespaces/$2/enable"; }
disable() { echo 0 >"$C/subsystems/$1/namespaces/$2/enable"; }

# port PORT ADDRESS SERVICE: define it; it listens once a subsystem is linked to it.
port() {
	mkdir "$C/ports/$1"
	(
		cd "$C/ports/$1"
		echo tcp >addr_trtype
		echo ipv4 >addr_adrfam
		echo "$2" >addr_traddr
		echo "$3" >addr_trsvcid
	)
}

# link|unlink PORT SUBSYS: unlinking kills the subsystem's connections on that port at once.
link() { ln -s "$C/subsystems/$2" "$C/ports/$1/subsystems/$2"; }
unlink() { rm "$C/ports/$1/subsystems/$2"; }

# allow|disallow SUBSYS HOSTNQN
allow() {
	mkdir -p "$C/hosts/$2"
	ln -s "$C/hosts/$2" "$C/subsystems/$1/allowed_hosts/$2"
}
disallow() { rm "$C/subsystems/$1/allowed_hosts/$2"; }

# ana PORT GROUP STATE: set the ANA state of a group on a port, creating the group if need be.
ana() {
	mkdir -p "$C/ports/$1/ana_groups/$2"
	echo "$3" >"$C/ports/$1/ana_groups/$2/ana_state"
}

# referral PORT NAME ADDRESS SERVICE
referral() {
	mkdir "$C/ports/$1/referrals/$2"
	(
		cd "$C/ports/$1/referrals/$2"
		echo tcp >addr_trtype
		echo ipv4 >addr_adrfam
		echo "$3" >addr_traddr
		echo "$4" >addr_trsvcid
		echo 1 >addr_portid
		echo 1 >enable
	)
}

# nullblk NAME MEBIBYTES BLOCKSIZE [KEY=VALUE...]: a RAM-backed /dev/NAME; one that is there is kept, with its data.
nullblk() {
	if [ -d "$NULLB/$1" ]; then return; fi
	mkdir "$NULLB/$1"
	(
		cd "$NULLB/$1"
		echo "$2" >size
		echo "$3" >blocksize
		echo 1 >memory_backed
		shift 3
		for setting; do echo "${setting#*=}" >"${setting%%=*}"; done
		echo 1 >power
	)
}

# defaults: build the target's whole state from nothing.
defaults() {
	nullblk n512 64 512 discard=1
	nullblk n4k 64 4096 discard=1
	nullblk zoned 64 4096 zoned=1 zone_size=4 zone_max_open=4 zone_max_active=6
	truncate -s 32M /file.img

	subsystem $NQN:multi 1 NVMETVM-MULTI
	namespace $NQN:multi 1 /dev/n512 aaaaaaaa-0000-0000-0000-000000000001 1
	namespace $NQN:multi 2 /dev/n4k aaaaaaaa-0000-0000-0000-000000000002 2
	namespace $NQN:multi 3 /dev/ram0 aaaaaaaa-0000-0000-0000-000000000003 1
	subsystem $NQN:file 1 NVMETVM-FILE
	namespace $NQN:file 1 /file.img aaaaaaaa-0000-0000-0000-000000000004
	subsystem $NQN:zns 1 NVMETVM-ZNS
	namespace $NQN:zns 1 /dev/zoned aaaaaaaa-0000-0000-0000-000000000005
	subsystem $NQN:closed 0 NVMETVM-CLOSED
	namespace $NQN:closed 1 /dev/ram1 aaaaaaaa-0000-0000-0000-000000000006
	allow $NQN:closed $HOSTNQN

	port 1 "$addr1" "$port1"
	port 2 "$addr2" "$port2"
	ana 1 1 optimized
	ana 1 2 optimized
	ana 2 1 non-optimized
	ana 2 2 inaccessible
	for name in multi file zns closed; do
		link 1 $NQN:$name
		link 2 $NQN:$name
	done
	referral 1 other 127.0.9.9 8009
}

# teardown: take everything down; every connection dies. Devices and their data stay, extra null_blk devices go.
teardown() {
	for f in "$C"/ports/*/subsystems/* "$C"/subsystems/*/allowed_hosts/*; do
		if [ -e "$f" ]; then rm "$f"; fi
	done
	for d in "$C"/ports/*/referrals/* "$C"/ports/*/ana_groups/* "$C"/ports/* \
		"$C"/subsystems/*/namespaces/* "$C"/subsystems/* "$C"/hosts/*; do
		# Group 1 belongs to the port and goes with it.
		case $d in */ana_groups/1) continue ;; esac
		if [ -d "$d" ]; then rmdir "$d"; fi
	done
	for d in "$NULLB"/*; do
		case ${d##*/} in features | n512 | n4k | zoned) continue ;; esac
		echo 0 >"$d/power"
		rmdir "$d"
	done
}

# sha256 DEVICE OFFSET BYTES: the hash of what the device itself holds, not of pages cached by an earlier read.
sha256() {
	if [ -b "$1" ]; then size=$(blockdev --getsize64 "$1"); else size=$(stat -c %s "$1"); fi
	if [ $(($2 + $3)) -gt "$size" ]; then
		echo "$1 has $size bytes, it ends before $2 + $3"
		return 1
	fi
	sync
	echo 1 >/proc/sys/vm/drop_caches
	set -o pipefail
	dd if="$1" bs=65536 skip="$2" count="$3" iflag=skip_bytes,count_bytes,fullblock status=none | sha256sum
}

# state: every setting of the target, one a line, in a fixed order.
state() {
	find "$C" -type l | sort
	find "$C" -type f | sort | while read -r f; do echo "$f=$(cat "$f" 2>/dev/null || true)"; done
}
