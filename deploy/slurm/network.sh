# shellcheck shell=bash disable=SC2154  # the settings of a cluster are dev-cluster's
# Sourced by dev-cluster: a bridge of its own for each cluster, and one shaped link a node.
#
# Cluster K is named slabK, like its bridge, and has 198.18.K.0/24, from the range that RFC 2544 keeps for test networks: no
# real network is shadowed. The bridge has .1, node I has .(10+I), the end of its link on the bridge is named like the node.

# claim_network: takes the first free name and subnet, writes DIR/cluster, makes the bridge.
claim_network() {
  local k lock node
  token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
  # The bridge bears the cluster's mark as its address, so that `down` never removes a later one of the same name.
  mac=02:${token:0:2}:${token:2:2}:${token:4:2}:${token:6:2}:${token:8:2}
  # What clusters share is this machine's list of network links, so that is what is locked.
  exec {lock}</sys/class/net
  flock --wait 60 "$lock" || fail "another cluster has been starting for a minute; wait for it or end it"
  for ((k = 0; k < 256; k++)); do
    [ ! -e "/sys/class/net/slab$k" ] && [ -z "$(ip -4 route show root "198.18.$k.0/24")" ] && break
  done
  [ "$k" -lt 256 ] || fail "all names from slab0 to slab255 are taken on this machine; 'ip link show type bridge' lists them"
  name=slab$k address=198.18.$k.1
  save_cluster
  # Names as they are seen from the nodes.
  {
    printf '127.0.0.1 localhost\n%s %s\n' "$address" "$name"
    for node in $(nodes); do printf '%s %s\n' "$(node_address "$node")" "$node"; done
  } >"$dir/hosts"
  ip link add "$name" address "$mac" type bridge || fail "this system makes no network bridges; it needs the kernel's bridge module and CAP_NET_ADMIN"
  ip address add "$address/24" dev "$name"
  ip link set "$name" up
  exec {lock}<&-
}

node_address() { printf '%s.%d\n' "${address%.*}" $((10 + ${1##*-n})); }

# plug_in NODE: its cable. Each end shapes what it sends, so that the node is slow both ways.
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
  # shellcheck disable=SC2016  # expanded in the node
  nsenter --target "$pid" --net bash -euc '
    [ ! -e /proc/sys/net/ipv6/conf/all/disable_ipv6 ] || echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
    ip link set lo up
    ip address add "$1/24" dev eth0
    ip link set eth0 up
    shift
    [ $# -eq 0 ] || tc qdisc add dev eth0 "$@"' _ "$(node_address "$node")" "${shape[@]}"
}

# remove_network: the bridge and what hangs on it.
remove_network() {
  local link
  [ "$(cat "/sys/class/net/$name/address" 2>/dev/null)" = "$mac" ] || return 0
  # Links go with their node's namespace, a moment after its last process.
  for link in /sys/class/net/"$name"/brif/*; do
    [ ! -e "$link" ] || ip link delete "${link##*/}" 2>/dev/null || true
  done
  ip link delete "$name"
}

# link_state NODE: up or down, as its switch sees it.
link_state() { ip -br link show "$1" 2>/dev/null | awk '{print tolower($2)}'; }
