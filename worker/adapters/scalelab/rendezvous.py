"""Rendezvous of ranks without an MPI launcher, through files in the attempt's directory, which all nodes share.

Each attempt has a separate directory, so the files of another attempt are never read. Uses only the standard library.
"""
import errno
import fcntl
import os
import random
import socket
import struct
import time

from .errors import RunError

POLL = 0.01  # seconds between polls; a network file system sends no notification about a new file
_SIOCGIFADDR = 0x8915


def exchange(attempt_dir, name, rank, ranks, value, timeout):
    """Publishes `value` and returns the values of all ranks in the order of ranks. Each name can be used once.

    Raises RunError of kind "rendezvous" that names the ranks whose values are missing after `timeout` seconds.
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
    """Returns "host:port" of every rank. Each port was free on the rank's node during the rendezvous.

    If possible, the ports are outside of the kernel's ephemeral range, so that outgoing connections do not use them. Each rank
    binds its port until every rank has a port, so ranks on the same node have different ports. Another process may still take a
    port before the framework binds it. Then the framework fails. If is_port_taken recognises the error, all ranks must call `meet`
    again with `tries` + 1.
    """
    with _bind_free_port() as held:
        mine = announce(held.getsockname()[1])
        met = [line.split() for line in exchange(attempt_dir, f"ports-{tries}", rank, ranks, mine, timeout)]
        # No rank releases its port before every rank has seen all ports.
        exchange(attempt_dir, f"seen-{tries}", rank, ranks, "", timeout)
    return [f"{host}:{port}" for host, port in zip(hosts(met), (line[2] for line in met))]


def hosts(met):
    """Returns the hosts of lines that begin with node and address. Returns 127.0.0.1 for all ranks if they are on the same
    node."""
    if len({line[0] for line in met}) == 1:
        return ["127.0.0.1"] * len(met)
    return [line[1] for line in met]


def announce(port=0):
    """Returns this rank's value for `exchange`: node, address and port, separated by spaces. `hosts` parses it."""
    return f"{_node()} {address()} {port}"


def is_port_taken(error):
    """Returns whether a framework's exception means that its port is in use."""
    text = str(error).lower()
    return getattr(error, "errno", None) == errno.EADDRINUSE or "address already in use" in text or "eaddrinuse" in text


def address():
    """Returns this node's address for other nodes. It is the first that exists of these: the address of the interface in
    GLOO_SOCKET_IFNAME; the address to which the host name resolves; the address of the first interface other than loopback."""
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
                probe.bind((found, 0))  # fails if the name resolves to an address that this machine does not have
            return found
    except OSError:
        pass
    for _, interface in socket.if_nameindex():
        found = _interface_address(interface)
        if found is not None and not found.startswith("127."):
            return found
    return "127.0.0.1"


def interface_of(own_address):
    """Returns the name of this node's network interface with that address, or "" if there is none."""
    return next((name for _, name in socket.if_nameindex() if _interface_address(name) == own_address), "")


def _interface_address(interface):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            name = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, name)[20:24])
        except OSError:
            return None


def _node():
    # Simulated nodes can share a machine and its host name, but each has a separate network namespace.
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
    # 0: the kernel chooses a port. It is needed if no port outside of the ephemeral range is free, for example because the range
    # is 1024 to 65535.
    for port in (*random.SystemRandom().sample(ports, min(200, len(ports))), 0):
        held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            held.bind(("", port))
            return held
        except OSError:
            held.close()
    raise RunError("this node has no free port", "rendezvous")


def _read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None
