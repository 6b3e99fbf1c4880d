# shellcheck shell=bash disable=SC2154  # dev-cluster sets the variables of a cluster
# Functions for dev-cluster: one bridge for each cluster, and one shaped link for each node.
#
# Cluster K and its bridge are named slabK. The cluster's subnet is 198.18.K.0/24, from the range that RFC 2544 reserves for test
# networks, so it hides no real network. The bridge has address .1, node I has .(10+I). The end of a link on the bridge is named like
# the link's node.

# claim_network: claims the first free name and subnet, writes DIR/cluster and creates the bridge.
claim_network() {
  local k lock node
  token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
  # The address of the bridge identifies the cluster, so that `down` never removes a later bridge of the same name.
  mac=02:${token:0:2}:${token:2:2}:${token:4:2}:${token:6:2}:${token:8:2}
  # All clusters share this machine's list of network links, so this folder is locked.
  exec {lock}</sys/class/net
  flock --wait 60 "$lock" || fail "another cluster has been starting for a minute; wait for it or end it"
  for ((k = 0; k < 256; k++)); do
    [ ! -e "/sys/class/net/slab$k" ] && [ -z "$(ip -4 route show root "198.18.$k.0/24")" ] && break
  done
  [ "$k" -lt 256 ] || fail "all names from slab0 to slab255 are taken on this machine; 'ip link show type bridge' lists them"
  name=slab$k address=198.18.$k.1
  save_cluster
  # /etc/hosts of the nodes.
  {
    printf '127.0.0.1 localhost\n%s %s\n' "$address" "$name"
    for node in $(nodes); do printf '%s %s\n' "$(node_address "$node")" "$node"; done
  } >"$dir/hosts"
  ip link add "$name" address "$mac" type bridge || fail "this system cannot create network bridges; they need the kernel's bridge module and CAP_NET_ADMIN"
  ip address add "$address/24" dev "$name"
  ip link set "$name" up
  exec {lock}<&-
}

node_address() { printf '%s.%d\n' "${address%.*}" $((10 + ${1##*-n})); }

# plug_in NODE: creates the node's link. Each end shapes its outgoing traffic, so that both directions have the rate.
plug_in() {
  local node=$1 pid error shape=()
  [ "$rate" = none ] || shape=(root tbf rate "$rate" burst 128kb latency 50ms)
  pid=$(init_pid "$node")
  ip link add "$node" type veth peer name eth0 netns "$pid"
  ip link set "$node" master "$name" up
  if [ "$rate" != none ]; then
    error=$(tc qdisc add dev "$node" "${shape[@]}" 2>&1) ||
      fail "the link of $node cannot be shaped to $rate; try --rate none (${error%%$'\n'*})"
  fi
  # shellcheck disable=SC2016  # the shell in the node expands it
  nsenter --target "$pid" --net bash -euc '
    [ ! -e /proc/sys/net/ipv6/conf/all/disable_ipv6 ] || echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
    ip link set lo up
    ip address add "$1/24" dev eth0
    ip link set eth0 up
    shift
    [ $# -eq 0 ] || tc qdisc add dev eth0 "$@"' _ "$(node_address "$node")" "${shape[@]}"
}

# remove_network: removes the bridge and its links.
remove_network() {
  local link
  [ "$(cat "/sys/class/net/$name/address" 2>/dev/null)" = "$mac" ] || return 0
  # The kernel removes links with their node's namespace, some time after the last process of the node has ended.
  for link in /sys/class/net/"$name"/brif/*; do
    [ ! -e "$link" ] || ip link delete "${link##*/}" 2>/dev/null || true
  done
  ip link delete "$name"
}

# link_state NODE: prints up or down, the state of the link's end on the bridge.
link_state() { ip -br link show "$1" 2>/dev/null | awk '{print tolower($2)}'; }
