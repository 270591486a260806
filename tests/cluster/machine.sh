# First process of the cluster's machine: network, mounts and pids of its own.
# Needs FOLDER and API_ADDRESS.  Says "ready"; all in the machine ends when this process is killed.
set -eu
mount -n --make-rprivate /
cd "$FOLDER"

# What the parts of Kubernetes write outside their own folders lands in memory, in here only.
# Overlays and not empty file systems, because the rest of these folders must stay readable.
mkdir -p overlay
mount -n -t tmpfs -o mode=755 heddle "$FOLDER/overlay"
for name in etc opt run var; do
  [ -d "/$name" ] || continue
  mkdir -p "overlay/$name/upper" "overlay/$name/work"
  mount -n -t overlay heddle "/$name" -o \
    "lowerdir=/$name,upperdir=$FOLDER/overlay/$name/upper,workdir=$FOLDER/overlay/$name/work"
  # Where our own folder lies under it, put the real one over its copy in memory.
  case "$FOLDER/" in "/$name/"*) mount -n --no-canonicalize --bind . "$FOLDER" ;; esac
done
mkdir -p /run/netns

ip link set lo up
ip addr add "$API_ADDRESS/32" dev lo
echo 1 > /proc/sys/net/ipv4/ip_forward # of this network namespace only

echo ready
exec > /dev/null
while :; do sleep 1000000 & wait $!; done
