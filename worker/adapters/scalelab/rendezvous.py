"""Where ranks that no MPI launcher joins meet for the first time: files in the attempt's directory, which all nodes see.

Each attempt has a directory of its own, so what another attempt has left is never seen. Standard library only.
"""
import errno
import fcntl
import os
import random
import socket
import struct
import time

from .errors import RunError

POLL = 0.01  # seconds: the directory of another machine does not tell when a file comes
_SIOCGIFADDR = 0x8915


def exchange(attempt_dir, name, rank, ranks, value, timeout):
    """The lines that all ranks give under this name, in the order of ranks; each name serves once.

    RunError of kind "rendezvous" that names the ranks that have not come within `timeout` seconds.
    """
    directory = os.path.join(attempt_dir, "rendezvous", name)
    os.makedirs(directory, exist_ok=True)
    unfinished = os.path.join(directory, f".{rank}")
    with open(unfinished, "w", encoding="utf-8") as file:
        file.write(value)
    os.rename(unfinished, os.path.join(directory, str(rank)))
    deadline = time.monotonic() + timeout
    values = [None] * ranks
    while True:
        for other in range(ranks):
            if values[other] is None:
                values[other] = _read(os.path.join(directory, str(other)))
        if None not in values:
            return values
        if time.monotonic() >= deadline:
            missing = ", ".join(str(r) for r in range(ranks) if values[r] is None)
            raise RunError(
                f"rank {rank} waited {timeout:g} s in vain for rank {missing} of {ranks} at the rendezvous: see their "
                "output, or raise comm_timeout_s if they start slowly",
                "rendezvous",
            )
        time.sleep(POLL)


def meet(attempt_dir, rank, ranks, timeout, tries=0):
    """"host:port" of every rank, each a port that was free on that rank's node when all had met.

    Ports lie outside of the kernel's ephemeral range, so no outgoing connection takes one, and are held until every rank has
    one, so ranks of one node never share. Whoever else takes a port between here and the framework's own bind is seen as an
    error of the framework: where it tells (see is_port_taken), all ranks call again with `tries` one higher.
    """
    with _bind_free_port() as held:
        mine = announce(held.getsockname()[1])
        met = [line.split() for line in exchange(attempt_dir, f"ports-{tries}", rank, ranks, mine, timeout)]
        # No port is given back before every rank has seen that all are taken.
        exchange(attempt_dir, f"seen-{tries}", rank, ranks, "", timeout)
    return [f"{host}:{port}" for host, port in zip(hosts(met), (line[2] for line in met))]


def hosts(met):
    """The hosts of lines that begin with node and address: 127.0.0.1 for all where they are on one node."""
    if len({line[0] for line in met}) == 1:
        return ["127.0.0.1"] * len(met)
    return [line[1] for line in met]


def announce(port=0):
    """What a rank gives to `exchange` where only rank 0 listens: node, address and port; read by `hosts`."""
    return f"{_node()} {address()} {port}"


def is_port_taken(error):
    """Whether a framework's exception says that it could not have its port."""
    text = str(error).lower()
    return getattr(error, "errno", None) == errno.EADDRINUSE or "address already in use" in text or "eaddrinuse" in text


def address():
    """This node's address as other nodes see it: that of interface GLOO_SOCKET_IFNAME, else the one that its name stands for,
    else that of its first interface."""
    chosen = os.environ.get("GLOO_SOCKET_IFNAME", "")
    if chosen:
        found = _interface_address(chosen)
        if found is None:
            raise RunError(f"network interface {chosen} (GLOO_SOCKET_IFNAME) has no IPv4 address here", "rendezvous")
        return found
    try:
        found = socket.gethostbyname(socket.gethostname())
        if not found.startswith("127."):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.bind((found, 0))  # a name may stand for another machine's address, or for one of long ago
            return found
    except OSError:
        pass
    for _, interface in socket.if_nameindex():
        found = _interface_address(interface)
        if found is not None and not found.startswith("127."):
            return found
    return "127.0.0.1"


def interface_of(own_address):
    """The name of this node's network interface with that address; empty when there is none."""
    return next((name for _, name in socket.if_nameindex() if _interface_address(name) == own_address), "")


def _interface_address(interface):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            name = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, name)[20:24])
        except OSError:
            return None


def _node():
    # Simulated nodes share a host name's machine; each has its network for itself.
    return f"{socket.gethostname()}/{os.readlink('/proc/self/ns/net')}"


def _ephemeral_range():
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            low, high = map(int, file.read().split())
            return low, high
    except (OSError, ValueError):
        return 32768, 60999


def _bind_free_port():
    low, high = _ephemeral_range()
    ports = [p for p in range(10000, 65536) if not low <= p <= high]
    for port in random.SystemRandom().sample(ports, min(200, len(ports))):
        held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            held.bind(("", port))
            return held
        except OSError:
            held.close()
    raise RunError("no free port was found outside of the ephemeral range of this node", "rendezvous")


def _read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None
