# First process of a node: mounts and pids of its own, in its named network namespace.
# Needs FOLDER (of the node).  Says "ready"; all in the node ends when this process is killed.
set -eu
mount -n --make-rprivate /

# The kubelet's plugin socket has a fixed path, so each node needs its own file system there.  What
# a reboot would lose lies in memory.
mkdir -p /var/lib/kubelet /var/lib/containerd /var/log/pods /var/log/containers \
  /run/containerd /run/netns
for pair in kubelet:/var/lib/kubelet containerd:/var/lib/containerd \
  pods:/var/log/pods logs:/var/log/containers; do
  mkdir -p "$FOLDER/${pair%%:*}"
  mount -n --bind "$FOLDER/${pair%%:*}" "${pair#*:}"
done
mount -n -t tmpfs -o mode=755 heddle /run/containerd
mount -n -t tmpfs -o mode=755 heddle /run/netns

# The kubelet sets these for the whole host.  Here it finds the values that it wants, and writes to
# files of ours; a boot has an id of its own, as on a real node.
mkdir -p "$FOLDER/proc"
show() {
  printf '%s\n' "$2" > "$FOLDER/proc/$1"
  mount -n --bind "$FOLDER/proc/$1" "/proc/sys/$(echo "$1" | tr . /)"
}
boot_id=$(cat /proc/sys/kernel/random/uuid)
show vm.overcommit_memory 1
show vm.panic_on_oom 0
show kernel.panic 10
show kernel.panic_on_oops 1
show kernel.keys.root_maxkeys 1000000
show kernel.keys.root_maxbytes 25000000
show kernel.random.boot_id "$boot_id"
mount -n --make-rshared / # mounts made for pods must show in their namespaces

ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward # of this network namespace only

echo ready
exec > /dev/null
while :; do sleep 1000000 & wait $!; done
